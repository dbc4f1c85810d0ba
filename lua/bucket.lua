-- Token buckets: arithmetic only. Twin of src/limiting/algorithm/token_bucket.rs: same names, same order. Joined before
-- the algorithms as `bucket(fields)`, which stores four or five numbers of a record. With `sharing`, decisions by one
-- record are those that this function returns: see lua/fair.lua.
-- rule   rate tokens refill every per ms; at most burst at once; with five fields also: debt tokens may be taken in
--        advance; interval 1: all tokens refill at once every per ms; empty 1: a new bucket starts empty; refunds, if
--        there is a seventh number: the limit may refund charges
-- state  records of lua/refill.lua
-- No state means a full bucket, so the key of a full bucket may expire.
-- The code that every decision runs calls few functions, because calls are expensive: it compares numbers instead of
-- calling max and min, and rounds with `%` instead of calling ceil and floor. That is exact for the same numbers.

local shared
local function refilling()
  shared = shared or refill(fields)
  return shared
end

-- Reports whether charges get marks. At intervals a bucket without the charge would refill at other times, so the
-- bounds of the ledger do not apply.
local function is_marked(rule)
  return rule[7] and rule[5] ~= 1
end

local function matches(rule, record)
  return record[3] == rule[1] and record[4] == rule[2] and (record[5] or 1) == (rule[5] == 1 and rule[2] or 1)
end

-- Returns what is in use now, the time of that, burst and debt in the same unit, lump and refill of a lump, and whether
-- the state has to be stored even after a refusal.
local function level(rule, record, now)
  local rate, per = rule[1], rule[2]
  local full, floor_debt = rule[3] * per, (rule[4] or 0) * per
  local lump = rule[5] == 1 and per or 1
  local gain = rate * lump
  if not record then
    local empty = rule[6] == 1
    return empty and full or 0, now, full, floor_debt, lump, gain, empty
  end

  local used, at = record[1], record[2]
  if at > now then
    -- A time further ahead than a whole refill comes from a clock that was wrong. It has to be corrected and stored, or
    -- the refill would start again with each refusal.
    local most = full + floor_debt
    if most < used then most = used end
    if at > now + (most + -most % gain) / gain * lump then return used, now, full, floor_debt, lump, gain, true end
  elseif at < now then
    local steps = (now - at - (now - at) % lump) / lump
    if steps * gain >= used then
      used, at = 0, now
    else
      used, at = used - steps * gain, at + steps * lump
    end
  end
  return used, at, full, floor_debt, lump, gain, false
end

-- Returns how long to store a bucket that is full after `reset`. One that starts empty is stored for another day.
local function stored_for(rule, reset)
  return reset + 1 + (rule[6] == 1 and 86400000 or 0)
end

local function decide(rule, record, now, cost)
  local per, most = rule[2], rule[3] + (rule[4] or 0)
  local used, at, full, floor_debt, lump, gain, is_repaired = level(rule, record, now)

  local need = (cost <= most and cost or most + 1) * per
  local over = used + need - full
  if floor_debt > 0 then over = math.max(over - floor_debt, math.min(over, used - full + 1)) end
  local admitted = cost == 0 or over <= 0
  local before, retry = used, 0
  if admitted then
    used = used + need
  elseif cost > most then
    retry = -1
  else
    retry = at + (over + -over % gain) / gain * lump - now
  end

  local reset = at + (used + -used % gain) / gain * lump - now
  local ttl, next = false, nil
  if cost > 0 and (admitted or is_repaired) then
    ttl, next = stored_for(rule, reset), { used, at, rule[1], per, fields == 5 and lump or nil }
    if admitted and (rule[7] or record and record[6]) then
      refilling().mark_charge(next, not is_repaired and record or {}, before, is_marked(rule))
    end
  end
  local free = full - used
  return admitted, free > 0 and (free - free % per) / per or 0, retry, reset > 0 and reset or 0, at > now and at or now,
    ttl, next
end

-- Corrects a charge; the receipt is its time. A refund gives back what is certainly left of the charge. Tokens charged
-- on top empty the bucket at most to its debt.
local function adjust(rule, record, now, delta, receipt)
  local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
  local per, burst, debt = rule[2], rule[3], rule[4] or 0
  local before, at, full, floor_debt, lump, gain, is_repaired = level(rule, record, now)
  local refill, marks = refilling(), not is_repaired and record or {}
  local next = { before, at, rule[1], per, fields == 5 and lump or nil }
  local more
  if delta < 0 then
    local need = min(-delta, floor(refill.USED_MAX / per)) * per
    local refund = refill.max_refund(marks, before, at, gain, lump, need, receipt)
    if refund == 0 or not record then return false end
    next[1], more = before - refund, ceil(refund / per)
    refill.mark_refund(next, marks, receipt, refund)
  else
    next[1] = max(min(before + min(delta, burst + debt) * per, full + floor_debt), before)
    more = ceil((next[1] - before) / per)
    refill.mark_charge(next, marks, before, is_marked(rule))
  end
  if next[1] == 0 then next[2] = max(now, at) end
  return stored_for(rule, next[2] + ceil(next[1] / gain) * lump - now), next, more
end

local kept_ms
if sharing then decide, adjust, kept_ms = sharing(level, adjust, refilling, is_marked, stored_for) end

return record_algorithm(fields, matches, decide, adjust, function()
  local refill = refilling()

  function refill.convert(rule, record, now)
    local lump = rule[5] == 1 and rule[2] or 1
    local own = refill.converted(record, now, rule[1], rule[2], fields == 5 and lump or nil)
    return own, own[1]
  end

  function refill.ttl(rule, record, now)
    return math.max(stored_for(rule, refill.lifetime(record, now)), kept_ms and kept_ms(rule) or 1)
  end

  function refill.charge_left(_, record, now, cost, receipt)
    return refill.left_units(record, now, cost, receipt)
  end

  return refill
end, function(rule)
  return { rule[1], rule[2], fields == 5 and (rule[5] == 1 and rule[2] or 1) or nil }
end)
