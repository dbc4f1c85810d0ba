-- GCRA: arithmetic only, twin of src/limit/algo/gcra.rs, same names, same order.
-- rule   rate units every per ms; at most burst at once
-- state  tat, fraction: the theoretical arrival time in whole ms and 1/rate ms; the rate and per
--        it was computed with
-- Absent state is a time that has passed.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- What is still ahead of now, in units of 1/rate ms (which are units of token / per as well), and
-- whether the state has to be stored even after a refusal.
local function backlog(rule, state, now)
  local rate, per, burst = rule[1], rule[2], rule[3]
  local full = burst * per
  if not state or state[1] < now then return 0, full, false end

  local ahead = state[1] - now
  if state[3] ~= rate or state[4] ~= per then
    local used = (ahead * state[3] + state[2]) / max(state[4], 1) * per
    return min(ceil(used), full), full, true
  end
  -- Further ahead than a whole burst was left by another clock, or by a larger burst. It must be
  -- mended for good, or the wait would start anew with each refusal.
  if ahead > ceil(full / rate) then return full, full, true end
  local used = ahead * rate + state[2]
  return min(used, full), full, used > full
end

local function stamp(rule, now, used)
  local rate = rule[1]
  return ceil(used / rate) + 1, { now + floor(used / rate), used % rate, rate, rule[2] }
end

local function decide(rule, state, now, cost)
  local rate, per, burst = rule[1], rule[2], rule[3]
  local used, full, mended = backlog(rule, state, now)

  local need = min(cost, burst + 1) * per
  local over = used + need - full
  local admitted = cost == 0 or over <= 0
  if admitted then used = used + need end

  local retry = 0
  if cost > burst then
    retry = -1
  elseif not admitted then
    retry = ceil(over / rate)
  end
  local ttl, next = stamp(rule, now, used)
  local store = cost > 0 and (admitted or mended)
  return admitted, floor((full - used) / per), retry, ceil(used / rate), 0, store and ttl, next
end

-- Units given back move the time to now at most; units taken on top a whole burst ahead at most.
local function adjust(rule, state, now, delta)
  local per, burst = rule[2], rule[3]
  local used, full = backlog(rule, state, now)
  if delta < 0 and used == 0 then return false end
  local change = max(min(delta, burst), -burst) * per
  return stamp(rule, now, max(min(used + change, full), 0))
end

return { decide = decide, adjust = adjust, fields = 4 }
