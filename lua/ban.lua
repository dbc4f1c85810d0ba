-- Ban: arithmetic only. Twin of src/limiting/algorithm/ban.rs, which explains it: same names, same order.
-- rule   after refusals within so many ms, a ban lasts so many ms; grow: each further one lasts so many times as long;
--        at_most: the longest ban in ms
-- state  end of the last ban, bans so far, and the times of the refusals that count. As text: `until level ms ms ...`
-- cost   0 asks whether the key is banned, anything else counts a refusal. The receipt of the answer is the number of
--        bans; it is negative if this refusal began the last one.
local max, min = math.max, math.min
local LEVEL_MAX = 99

-- Returns how long a ban lasts after `level` others.
local function length_of(rule, level)
  local length, grow, at_most = rule[3], rule[4], rule[5]
  if grow > 1 then
    for _ = 1, level do
      if length >= at_most then break end
      length = length * grow
    end
  end
  return min(length, at_most)
end

-- Returns how long bans are remembered after the last one.
local function memory_of(rule)
  return rule[4] > 1 and rule[5] or 0
end

local function ttl_of(rule, state, now)
  local last = #state > 2 and state[#state] + rule[2] or 0
  return max(state[1] + memory_of(rule), last, now + 1) - now
end

local function decide(rule, state, now, cost)
  local after, within, at_most = rule[1], rule[2], rule[5]
  local until_ms, level, repaired = 0, 0, false
  if state and state[2] then
    until_ms, level = state[1], min(state[2], LEVEL_MAX)
    -- A ban that ends later comes from a longer setting, or from a clock that was wrong. It has to be stored, or it would
    -- start again with each request.
    if until_ms > now + at_most then until_ms, repaired = now + at_most, true end
  else
    state = {}
  end
  if now < until_ms then
    local left = until_ms - now
    local next = repaired and { until_ms, level }
    return false, 0, left, left, level, next and ttl_of(rule, next, now), next
  end
  if now >= until_ms + memory_of(rule) then until_ms, level = 0, 0 end

  local next = { until_ms, level }
  for i = 3, #state do
    if state[i] > now - within and state[i] <= now + within then next[#next + 1] = state[i] end
  end
  local count = #next - 2
  if cost == 0 then
    local reset = count > 0 and next[#next] + within - now or 0
    return true, max(after - count, 0), 0, reset, level, false
  end
  next[#next + 1] = max(now, count > 0 and next[#next] or 0)
  count = count + 1
  if count < after then
    return false, after - count, 0, next[#next] + within - now, level, ttl_of(rule, next, now), next
  end
  local length = length_of(rule, level)
  level = min(level + 1, LEVEL_MAX)
  next = { now + length, level }
  return false, 0, length, length, -level, ttl_of(rule, next, now), next
end

-- Nothing corrects a ban.
local function adjust()
  return false
end

return { decide = decide, adjust = adjust }
