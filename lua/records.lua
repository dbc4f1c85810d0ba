-- Keys whose numbers change: arithmetic only, twin of src/limit/algo/records.rs, same names, same
-- order. Joined before the algorithm files.
--
-- A state evolves by some of a rule's numbers (its rate and period, its window: the basis); the others
-- (burst, limit, debt, queue) only decide, and never cap what is stored. A key has one record for each
-- basis that has charged it lately, the one that decided last first; a charge through one is a charge
-- to all. Almost always there is one.
--
-- state  the fields of a record; in `others` those of further ones, each with the time `till` when it
--        is forgotten. As text: own | till other | till other

-- Operands of a division stay below this: see src/limit/algo/exact.rs.
local EXACT = 4503599627370496

-- What is done where there is more than one record, or one of another basis. one:
--   owns(rule, record, now)                  whether the record is one of the rule's basis
--   decide(rule, record, now, cost), adjust(rule, record, now, delta, receipt): as of a state; the
--     third that `adjust` returns is how much of a positive delta was charged
--   sound(record)                            whether it can be computed with
--   adopt(rule, record, now)                 what the rule makes of a record of another basis, and how
--                                            much is used of it
--   lasts(rule, record, now)                 how long a record of the rule is to be stored
--   life(record, now)                        for how long the record counts anything
--   charged(record, now, cost)               the record after a charge
--   left(rule, record, now, cost, receipt)   how much of that charge is in the record for certain
--   back(record, now, units, receipt)        the record after so much of it was given back
--   kept                                     how long a record at least outlives its last charge by its
--                                            own rule, if not KEPT_MS
local function among(one)
  local KEPT_MS, OTHERS = 600000, 3
  local max, min = math.max, math.min

  local function copy(record)
    return { unpack(record, 1, #record) }
  end

  -- The record of the rule's basis, the others, whether the first was not the first of them, and
  -- whether it was among them.
  local function seen(rule, state, now)
    local all, own = {}, false
    if one.owns(rule, state, now) then
      own = state
    elseif one.sound(state) then
      all[1] = copy(state)
      all[1].till = now + max(one.kept or KEPT_MS, one.life(state, now))
    end
    local moved = not own
    for _, record in ipairs(state.others or {}) do
      if not own and record.till > now and one.owns(rule, record, now) then
        own = record
      elseif one.sound(record) then
        all[#all + 1] = record
      end
    end
    local found = own ~= false
    local others, most = {}, -1
    for _, record in ipairs(all) do
      if record.till > now then
        if not found then
          local adopted, used = one.adopt(rule, record, now)
          if used > most then own, most = adopted, used end
        end
        if #others < OTHERS then others[#others + 1] = record end
      end
    end
    return own, others, moved, found
  end

  -- The life and the state of an own record and others, each of which `change` changes.
  local function joined(ttl, own, others, now, change)
    own.others = nil
    for i, record in ipairs(others) do
      local changed = change(record)
      changed.till = record.till
      ttl = max(ttl, min(one.life(changed, now), record.till - now))
      own.others = own.others or {}
      own.others[i] = changed
    end
    return ttl, own
  end

  local function decide(rule, state, now, cost)
    local own, others, moved = seen(rule, state, now)
    local admitted, remaining, retry, reset, receipt, ttl, next = one.decide(rule, own, now, cost)
    -- What a refusal has told holds only if the record that told it stays.
    if not ttl and own and moved and cost > 0 then ttl, next = one.lasts(rule, own, now), copy(own) end
    if ttl then
      ttl, next = joined(ttl, next, others, now, function(record)
        return admitted and one.charged(record, now, cost) or copy(record)
      end)
    end
    return admitted, remaining, retry, reset, receipt, ttl, next
  end

  -- A charge is given back to the record of the rule that made it, to others as far as it is for
  -- certain still in all of them.
  local function adjust(rule, state, now, delta, receipt)
    local own, others, _, found = seen(rule, state, now)
    if delta < 0 and not found then return false end
    local ttl, next, more = one.adjust(rule, own, now, delta, receipt)
    if not ttl then return false end
    if delta >= 0 then
      return joined(ttl, next, others, now, function(record) return one.charged(record, now, more) end)
    end
    local units = one.left(rule, own, now, -delta, receipt)
    for _, record in ipairs(others) do
      units = min(units, one.left(rule, record, now, -delta, receipt))
    end
    return joined(ttl, next, others, now, function(record) return one.back(record, now, units, receipt) end)
  end

  return decide, adjust
end

-- An algorithm of records. rest: what `among` needs and one record of the rule's basis does not; basis:
-- the numbers that follow the first two in every record of a rule, if they are always the same.
local function recorded(fields, owns, decide_one, adjust_one, rest, basis)
  local decide_all, adjust_all
  local function load()
    local one = rest()
    one.owns, one.decide, one.adjust = owns, decide_one, adjust_one
    decide_all, adjust_all = among(one)
  end

  local function decide(rule, state, now, cost)
    if not state or not state.others and owns(rule, state, now) then return decide_one(rule, state, now, cost) end
    if not decide_all then load() end
    return decide_all(rule, state, now, cost)
  end

  local function adjust(rule, state, now, delta, receipt)
    if not state or not state.others and owns(rule, state, now) then
      return adjust_one(rule, state, now, delta, receipt)
    end
    if not adjust_all then load() end
    return adjust_all(rule, state, now, delta, receipt)
  end

  return { decide = decide, adjust = adjust, fields = fields, basis = basis }
end
