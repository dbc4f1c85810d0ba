-- Calendar window: arithmetic only, twin of src/limit/algo/calendar.rs, same names, same order.
-- rule   at most limit in each window; then id and start of five windows in a row, the second of
--        which the caller took for the current one. What the calendar says is the caller's
--        knowledge, what time it is is ours: any of the first three may turn out to be current
-- state  count, id of the window it belongs to (a local date, so that it is equal for callers
--        with different releases of the time zone database)

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
  return counted.decide(rule[1], now, cost, window_at(rule, state, now))
end

local function adjust(rule, state, now, delta, receipt)
  return counted.adjust(now, delta, receipt, window_at(rule, state, now))
end

return { decide = decide, adjust = adjust, fields = 2 }
