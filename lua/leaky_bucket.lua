-- Leaky bucket: arithmetic only, twin of src/limit/algo/leaky_bucket.rs, same names, same order.
-- rule   rate units leave every per ms, evenly; a unit waits for its turn at most queue ms;
--        nodelay 1: those that would wait go at once
-- state  used, at, per: units taken that have not left, times per, as of time at. The next free
--        slot is used / rate ms after at, exactly
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- What has not left by now, the most there can be, and whether that has to be stored even after a
-- refusal.
local function level(rule, state, now)
  local rate, per, queue = rule[1], rule[2], rule[3]
  local full = queue * rate + per
  if not state then return 0, full, false end

  local used, at = state[1], state[2]
  if state[3] ~= per then used = ceil(used / max(state[3], 1) * per) end
  used = min(used, full)
  if at <= now then
    if now - at >= ceil(used / rate) then return 0, full, false end
    return used - (now - at) * rate, full, false
  end
  -- The clock went back: the slots stay where they are, but none may be further ahead than the
  -- queue is long, and that for good.
  if at - now > floor((full - used) / rate) then return full, full, true end
  return used + (at - now) * rate, full, false
end

-- The slot `used` after now, in microseconds.
local function slot(rule, used, now)
  local rate = rule[1]
  return (now + floor(used / rate)) * 1000 + floor(used % rate * 1000 / rate)
end

local function decide(rule, state, now, cost)
  local rate, per, queue, nodelay = rule[1], rule[2], rule[3], rule[4]
  local used, full, mended = level(rule, state, now)
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
    retry = ceil(used / rate)
  end
  if admitted then used = used + need end

  local reset = ceil(used / rate)
  local store = cost > 0 and (admitted or mended)
  return admitted, floor((full - used) / per), retry, reset, slot(rule, used, now), store and reset,
    { used, now, per }
end

-- The receipt is the slot after the charge. Where requests wait for their slots only the last one
-- can be given back: those behind others would leave a hole.
local function adjust(rule, state, now, delta, receipt)
  local rate, per, nodelay = rule[1], rule[2], rule[4]
  local used, full = level(rule, state, now)
  if delta < 0 and (used == 0 or nodelay == 0 and slot(rule, used, now) ~= receipt) then return false end
  local burst = floor(full / per)
  used = max(min(used + max(min(delta, burst), -burst) * per, full), 0)
  return max(ceil(used / rate), 1), { used, now, per }
end

return { decide = decide, adjust = adjust, fields = 3 }
