-- Usage of a key under several settings of its limit: arithmetic only. Twin of src/limiting/algorithm/records.rs, which
-- explains it: same names, same order. Joined before the algorithms.
--
-- A key has one record for each recent basis (rate and period, or window), the one that decided last first. Each
-- request is charged to all of them. Almost always there is one.
--
-- state  the fields of a record; `others` has further records, each with the time `drop_at` when it is dropped.
--        As text: own | drop_at other | drop_at other

-- Operands of a division stay below this number: see src/limiting/algorithm/exact.rs.
local EXACT = 4503599627370496
-- Most records of a key besides the one that decides.
local OTHERS = 3

-- Returns `decide` and `adjust` for states with several records, or with one of another basis. one:
--   matches(rule, record, now)                     whether the record has the basis of the rule
--   decide(rule, record, now, cost), adjust(rule, record, now, delta, receipt)
--                                                  as for a state with one record; the third value of `adjust` is how
--                                                  many units were charged or refunded, a part of one as one
--   sound(record)                                  whether the numbers are valid
--   decide_among(rule, own, others, now, cost)     as `decide`; what the own record does not know, others may. If not
--                                                  the same as `decide`
--   convert(rule, record, now)                     the record converted to the basis of the rule, and its usage
--   join_converted(one, used, other, other_used)   joins two converted records, each with its usage, if it is not the
--                                                  one with more usage that remains
--   corrected(rule, record, now)                   a record of the rule with the numbers of the rule, if others do not
--                                                  know them
--   ttl(rule, record, now)                         how long to store a record of the rule
--   lifetime(record, now)                          how long the record contains usage
--   charged(record, now, cost)                     the record after a charge
--   charge_left(rule, record, now, cost, receipt)  how much of that charge is certainly left in the record
--   receipt_elsewhere(receipt)                     the receipt by which records of other bases find the charge, if not
--                                                  the same
--   refunded(record, now, units, receipt)          the record after a refund of so many units
--   drop_at(record, now)                           when to drop a record that its own basis charged last before `now`,
--                                                  if not after its usage and KEPT_MS
local function with_all_records(one)
  local KEPT_MS = 600000
  local max, min = math.max, math.min

  local function copy(record)
    return { unpack(record, 1, #record) }
  end

  local function join_converted(one, used, other, other_used)
    if other_used > used then return other, other_used end
    return one, used
  end

  local function drop_at(record, now)
    return now + max(KEPT_MS, one.lifetime(record, now))
  end

  -- Returns the record of the rule's basis, the others, whether it was not the first of the state, and whether it was
  -- in the state at all.
  local function select_record(rule, state, now)
    local all, own = {}, false
    if one.matches(rule, state, now) then
      own = state
    elseif one.sound(state) then
      all[1] = copy(state)
      all[1].drop_at = (one.drop_at or drop_at)(state, now)
    end
    local moved = not own
    for _, record in ipairs(state.others or {}) do
      if not own and record.drop_at > now and one.matches(rule, record, now) then
        own = record
      elseif one.sound(record) then
        all[#all + 1] = record
      end
    end
    local found = own ~= false
    local others, most = {}, 0
    for _, record in ipairs(all) do
      if record.drop_at > now then
        if not found then
          local converted, used = one.convert(rule, record, now)
          if own then
            own, most = (one.join_converted or join_converted)(own, most, converted, used)
          else
            own, most = converted, used
          end
        end
        others[#others + 1] = record
      end
    end
    -- Too many: the one whose usage ends first is dropped, of equals the one that decided longest ago.
    while #others > OTHERS do
      local first, least = 0, math.huge
      for i, record in ipairs(others) do
        local left = min(one.lifetime(record, now), record.drop_at - now)
        if left <= least then first, least = i, left end
      end
      table.remove(others, first)
    end
    return own, others, moved, found
  end

  -- Joins an own record and others, changed by `change`. Returns how long to store the state, and the state.
  local function join_records(ttl, own, others, now, change)
    own.others = nil
    for i, record in ipairs(others) do
      local changed = change(record)
      changed.drop_at = record.drop_at
      ttl = max(ttl, min(one.lifetime(changed, now), record.drop_at - now))
      own.others = own.others or {}
      own.others[i] = changed
    end
    return ttl, own
  end

  local function decide(rule, state, now, cost)
    local own, others, moved = select_record(rule, state, now)
    local admitted, remaining, retry, reset, receipt, ttl, next
    if one.decide_among then
      admitted, remaining, retry, reset, receipt, ttl, next = one.decide_among(rule, own, others, now, cost)
    else
      admitted, remaining, retry, reset, receipt, ttl, next = one.decide(rule, own, now, cost)
    end
    -- The wait of a refusal is only exact if the record that it was computed from is stored.
    if not ttl and own and moved and cost > 0 then
      if one.corrected then own = one.corrected(rule, own, now) end
      ttl, next = one.ttl(rule, own, now), copy(own)
    end
    if ttl then
      ttl, next = join_records(ttl, next, others, now, function(record)
        return admitted and one.charged(record, now, cost) or copy(record)
      end)
    end
    return admitted, remaining, retry, reset, receipt, ttl, next
  end

  -- A refund reduces the record of the rule that made the charge, and the others by what is certainly left of the
  -- charge in all of them.
  local function adjust(rule, state, now, delta, receipt)
    local own, others, _, found = select_record(rule, state, now)
    if delta < 0 and not found then return false end
    local ttl, next, more = one.adjust(rule, own, now, delta, receipt)
    if not ttl then return false end
    if delta >= 0 then
      ttl, next = join_records(ttl, next, others, now, function(record) return one.charged(record, now, more) end)
      return ttl, next, more
    end
    local units = one.charge_left(rule, own, now, -delta, receipt)
    if one.receipt_elsewhere then receipt = one.receipt_elsewhere(receipt) end
    for _, record in ipairs(others) do
      units = min(units, one.charge_left(rule, record, now, -delta, receipt))
    end
    ttl, next = join_records(ttl, next, others, now, function(record)
      return one.refunded(record, now, units, receipt)
    end)
    return ttl, next, more
  end

  return decide, adjust
end

-- Creates an algorithm whose states consist of records. `functions` returns the functions that only several records
-- need, see `with_all_records`. `basis` returns the numbers that follow the first two in every record of a rule, if
-- they are always the same.
local function record_algorithm(fields, matches, decide_one, adjust_one, functions, basis)
  local decide_all, adjust_all
  local function load()
    local one = functions()
    one.matches, one.decide, one.adjust = matches, decide_one, adjust_one
    decide_all, adjust_all = with_all_records(one)
  end

  local function decide(rule, state, now, cost)
    if not state or not state.others and matches(rule, state, now) then return decide_one(rule, state, now, cost) end
    if not decide_all then load() end
    return decide_all(rule, state, now, cost)
  end

  local function adjust(rule, state, now, delta, receipt)
    if not state or not state.others and matches(rule, state, now) then
      return adjust_one(rule, state, now, delta, receipt)
    end
    if not adjust_all then load() end
    return adjust_all(rule, state, now, delta, receipt)
  end

  return { decide = decide, adjust = adjust, fields = fields, basis = basis }
end
