-- Calendar window: arithmetic only, twin of src/limit/algo/calendar.rs, same names, same order.
-- rule   at most limit in each window; then id and start of five windows in a row, the second of
--        which the caller took for the current one. What the calendar says is the caller's
--        knowledge, what time it is is ours: any of the first three may turn out to be current
-- state  count, id of the window it belongs to (a local date, so that it is equal for callers
--        with different releases of the time zone database)
local max = math.max

-- What the window that holds now has counted, its id, its end, and whether that has to be stored
-- even after a refusal.
local function window_at(rule, state, now)
  local place = 2
  if now >= rule[7] then place = 6 elseif now >= rule[5] then place = 4 end
  if now < rule[3] or now >= rule[9] then
    -- The clocks are too far apart to tell. Whatever window is counted goes on until nothing was
    -- charged to it for as long as a window lasts.
    return state and state[1] or 0, state and state[2] or rule[4], now + rule[7] - rule[5], false
  end

  local count, id, stop, mended = 0, rule[place], rule[place + 3], false
  if state and state[2] == id then
    count = state[1]
  elseif state and state[2] == rule[place + 2] then
    -- Time does not run backwards.
    count, id, stop = state[1], state[2], rule[place + 5]
  elseif state and state[2] > id then
    -- Left by another clock, or by shorter windows inside this one.
    count, mended = state[1], true
  end
  return count, id, stop, mended
end

local function decide(rule, state, now, cost)
  local limit = rule[1]
  local count, id, stop, mended = window_at(rule, state, now)

  local admitted = cost == 0 or count + cost <= limit
  if admitted then count = count + cost end

  local left = stop - now
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = left
  end
  local store = cost > 0 and (admitted or mended)
  return admitted, max(limit - count, 0), retry, left, id, store and left, { count, id }
end

-- The receipt is the id of the window charged; when that window is over nothing is given back.
local function adjust(rule, state, now, delta, receipt)
  local count, id, stop = window_at(rule, state, now)
  if delta < 0 and (count == 0 or id ~= receipt) then return false end
  return stop - now, { max(count + delta, 0), id }
end

return { decide = decide, adjust = adjust, fields = 2 }
