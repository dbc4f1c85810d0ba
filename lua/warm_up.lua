-- Warm-up: arithmetic only. Twin of src/limiting/algorithm/warm_up.rs, which explains it: same names, same order.
-- rule   rate tokens refill every per ms, up to burst; a cold bucket takes warm ms until it refills at that rate
-- state  used and cold, at the time `at`, both in tokens times per: used, at, cold, rate, per, warm
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- Most usage of a record, and most that one charge adds; their sum is still exact.
local USED_MAX = EXACT / 2

local function matches(rule, record)
  return record[4] == rule[1] and record[5] == rule[2] and record[6] == rule[4]
end

-- Returns how much a charge of `need` adds beyond that to a bucket that is so cold, rounded to the nearest integer.
local function extra_of(cold, need, rate, warm)
  local most = rate * warm
  local threshold = floor(most / 2)
  local a, b = max(cold - threshold, 0), max(cold - need - threshold, 0)
  local half = most - threshold
  return floor((2 * (a - b) * (a + b) + half) / (2 * half))
end

-- Returns how long the record contains usage or warmth.
local function lifetime(record, now)
  local used, at, cold, rate, warm = record[1], record[2], record[3], record[4], record[6]
  return at + ceil((used + rate * warm - cold) / rate) - now
end

-- Returns the record at `now`.
local function advanced(record, now)
  local used, at, cold, rate, per, warm = record[1], record[2], record[3], record[4], record[5], record[6]
  if now <= at then return { used, at, cold, rate, per, warm } end
  if lifetime(record, now) <= 0 then return { 0, now, rate * warm, rate, per, warm } end
  local gone = (now - at) * rate
  return { max(used - gone, 0), now, min(cold + max(gone - used, 0), rate * warm), rate, per, warm }
end

-- Returns the record at `now`, or at its own time if that is later, and whether it has to be stored even after a refusal.
local function level(rule, record, now)
  local rate, per, burst, warm = rule[1], rule[2], rule[3], rule[4]
  if not record then return { 0, now, rate * warm, rate, per, warm }, false end
  local next = advanced(record, now)
  -- A time further ahead comes from a clock that was wrong.
  if next[2] - now > ceil(burst * per / rate) + warm then
    next[2] = now
    return next, true
  end
  return next, false
end

local function decide(rule, record, now, cost)
  local rate, per, burst, warm = rule[1], rule[2], rule[3], rule[4]
  local next, is_repaired = level(rule, record, now)
  local full = burst * per
  local need = min(cost, burst) * per
  local over = next[1] + need - full
  local admitted = cost == 0 or cost <= burst and over <= 0
  local retry = 0
  if cost > burst then
    retry = -1
  elseif not admitted then
    retry = next[2] + ceil(over / rate) - now
  end
  if admitted and cost > 0 then
    next[1] = next[1] + need + extra_of(next[3], need, rate, warm)
    next[3] = max(next[3] - need, 0)
  end
  -- What a request of one unit costs now. Later ones cost less.
  local threshold = floor(rate * warm / 2)
  local unit = per + ceil(2 * max(next[3] - threshold, 0) * per / (rate * warm - threshold))
  local free = full - next[1] - per
  local remaining = free < 0 and 0 or 1 + floor(free / unit)
  local reset = max(next[2] + ceil(next[1] / rate) - now, 0)
  local store = cost > 0 and (admitted or is_repaired)
  return admitted, remaining, retry, reset, next[2], store and max(lifetime(next, now), 1), next
end

-- Corrects a charge; the receipt is its time. What was refilled since then may have belonged to the charge, so only the
-- rest is refunded.
local function adjust(rule, record, now, delta, receipt)
  local rate, per, burst = rule[1], rule[2], rule[3]
  local next = level(rule, record, now)
  local before, full, more = next[1], burst * per, nil
  if delta < 0 then
    local need = min(-delta, floor(USED_MAX / per)) * per
    local gone = max(next[2] - receipt, 0)
    local left = gone >= ceil(need / rate) and 0 or min(need - gone * rate, before)
    if left == 0 then return false end
    next[1], more = before - left, ceil(left / per)
  else
    next[1] = max(min(before + min(delta, burst) * per, full), before)
    more = ceil((next[1] - before) / per)
  end
  return max(lifetime(next, now), 1), next, more
end

return record_algorithm(nil, matches, decide, adjust, function()
  local one = { lifetime = lifetime }

  function one.sound(record)
    local rate, per, warm = record[4], record[5], record[6]
    if #record ~= 6 or rate < 1 or per < 1 or warm < 1 or rate * warm > 2 ^ 26 then return false end
    return record[1] <= USED_MAX and record[3] <= rate * warm
  end

  local function need_of(record, cost)
    return min(cost, floor(USED_MAX / record[5]) + 1) * record[5]
  end

  function one.charged(record, now, cost)
    local next = advanced(record, now)
    local need = need_of(record, cost)
    next[1] = min(next[1] + need + extra_of(next[3], need, next[4], next[6]), USED_MAX)
    next[3] = max(next[3] - need, 0)
    return next
  end

  function one.charge_left(_, record, now, cost, receipt)
    local next, need = advanced(record, now), need_of(record, cost)
    local gone = max(next[2] - receipt, 0)
    if gone >= ceil(need / next[4]) then return 0 end
    return min(need - gone * next[4], next[1]) / next[5]
  end

  function one.refunded(record, now, units)
    local next = advanced(record, now)
    next[1] = next[1] - min(floor(units * next[5]), next[1])
    return next
  end

  function one.convert(rule, record, now)
    local rate, per, warm = rule[1], rule[2], rule[4]
    local found = advanced(record, now)
    local used = min(ceil(found[1] / found[5] * per), USED_MAX)
    local cold = min(ceil(found[3] / (found[4] * found[6]) * (rate * warm)), rate * warm)
    return { used, found[2], cold, rate, per, warm }, used
  end

  function one.ttl(_, record, now)
    return max(lifetime(record, now), 1)
  end

  return one
end)
