-- Leaky bucket: arithmetic only. Twin of src/limiting/algorithm/leaky_bucket.rs: same names, same order.
-- rule   rate units leave the queue evenly every per ms; a unit waits at most queue ms; nodelay 1: admitted requests
--        proceed at once; if there is a fifth number, the limit may refund charges (not if it is 0); a sixth number is
--        delay_after: so many units of the queue proceed at once
-- state  used, at, rate, per (a record of lua/refill.lua): the next free slot is exactly used / rate ms after at
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- Slots further ahead than this, which no queue reaches, are not distinguished.
local SLOT_MAX_MS = 1000000000000

local shared
local function refilling()
  shared = shared or refill(4)
  return shared
end

-- Sets the marks after a charge. Only nodelay uses them, because slots are not times of charges.
local function mark_charge(rule, next, record, used)
  local wanted = rule[4] == 1 and rule[5]
  if wanted or record and #record > 5 then refilling().mark_charge(next, record or {}, used, wanted) end
end

local function matches(rule, record)
  return record[3] == rule[1] and record[4] == rule[2]
end

-- Returns the units that have not left by now, the most there can be, and whether the state has to be stored even after
-- a refusal.
local function level(rule, record, now)
  local rate, per, queue = rule[1], rule[2], rule[3]
  local full = queue * rate + per
  if not record then return 0, full, false end

  local used, at = record[1], record[2]
  if at <= now then
    if now - at >= ceil(used / rate) then return 0, full, false end
    return used - (now - at) * rate, full, false
  end
  -- The clock went back. The slots remain where they are. A time further ahead than a whole refill comes from a clock
  -- that was wrong: then the slots may be as far ahead as the queue is long, or as it was. That has to be stored.
  local most = max(full, used)
  local slots = at - now > floor(most / rate) and EXACT or used + (at - now) * rate
  if slots + per > EXACT then return most, full, true end
  return slots, full, false
end

-- Returns the slot after `used` units from now on, in microseconds.
local function slot(rule, used, now)
  local rate = rule[1]
  return (now + min(floor(used / rate), SLOT_MAX_MS)) * 1000 + floor(used % rate * 1000 / rate)
end

local function decide(rule, record, now, cost)
  local rate, per, nodelay, delay_after = rule[1], rule[2], rule[4], rule[6] or 0
  local used, full, is_repaired = level(rule, record, now)
  local burst = floor(full / per)

  local need = min(cost, burst + 1) * per
  local over = used + need - full
  local admitted = cost == 0 or over <= 0
  local retry = 0
  if cost > burst then
    retry = -1
  elseif not admitted then
    retry = ceil(over / rate)
  elseif cost > 0 and nodelay == 0 then
    retry = ceil(max(used - delay_after * per, 0) / rate)
  end
  local before = used
  if admitted then used = used + need end

  local reset = ceil(used / rate)
  local store = cost > 0 and (admitted or is_repaired)
  local receipt = nodelay == 1 and now or slot(rule, used, now)
  local next = { used, now, rate, per }
  if admitted and cost > 0 then mark_charge(rule, next, record, before) end
  return admitted, max(floor((full - used) / per), 0), retry, reset, receipt, store and reset, next
end

-- Corrects a charge. With nodelay, the receipt is the time of the charge, and what is certainly left of it is refunded.
-- Otherwise the receipt is the slot after the charge. Only the last slot can be refunded: any other would leave a gap
-- in the queue. With marks, charges with nodelay are in it, whose refunds move the slots of others to this one.
local function adjust(rule, record, now, delta, receipt)
  local rate, per, nodelay = rule[1], rule[2], rule[4]
  local before, full = level(rule, record, now)
  before = min(before, EXACT / 2)
  local next, more = { before, now, rate, per }, nil
  if delta < 0 then
    local refill, marks = refilling(), record or {}
    local need = min(-delta, floor(refill.USED_MAX / per)) * per
    if nodelay == 1 then
      next[1] = before - refill.max_refund(marks, before, now, rate, 1, need, receipt)
    elseif not marks[6] and slot(rule, before, now) == receipt then
      next[1] = before - min(need, before)
    end
    if next[1] == before then return false end
    more = ceil((before - next[1]) / per)
    refill.mark_refund(next, marks, nodelay == 1 and receipt or 0, before - next[1])
  else
    next[1] = max(min(before + min(delta, floor(full / per)) * per, full), before)
    more = ceil((next[1] - before) / per)
    mark_charge(rule, next, record, before)
  end
  return max(ceil(next[1] / rate), 1), next, more
end

return record_algorithm(4, matches, decide, adjust, function()
  local refill = refilling()

  function refill.convert(rule, record, now)
    local own = refill.converted(record, now, rule[1], rule[2])
    return own, own[1]
  end

  function refill.ttl(_, record, now)
    return max(refill.lifetime(record, now), 1)
  end

  -- The slot of one rule says nothing about the slots of another, so without nodelay nothing is certain to be left.
  function refill.charge_left(rule, record, now, cost, receipt)
    return rule[4] == 1 and refill.left_units(record, now, cost, receipt) or 0
  end

  return refill
end, function(rule) return { rule[1], rule[2] } end)
