-- Fixed window: arithmetic only, twin of src/limit/algo/fixed_window.rs, same names, same order.
-- rule   at most limit in each window ms; clock 1: windows start at multiples of window since the
--        epoch; clock 0: a window starts with its first request
-- state  count, start of the window it belongs to
local max = math.max

-- What the window that holds now has counted, its start, its end, and whether that has to be stored
-- even after a refusal.
local function window_at(rule, state, now)
  local window, clock = rule[2], rule[3]

  local count, start, mended = 0, now, false
  if state then
    count, start = state[1], state[2]
    -- A start further ahead than a whole window was left by another clock. It must be mended for
    -- good, or the window would start anew with each refusal.
    if start > now + window then start, mended = now, true end
  end
  local at = max(now, start)
  if clock == 1 then
    local aligned = at - at % window
    if start < aligned then count = 0 end
    start = aligned
  elseif at >= start + window then
    count, start = 0, at
  end
  return count, start, start + window, mended
end

local function decide(rule, state, now, cost)
  return counted.decide(rule[1], now, cost, window_at(rule, state, now))
end

local function adjust(rule, state, now, delta, receipt)
  return counted.adjust(now, delta, receipt, window_at(rule, state, now))
end

return { decide = decide, adjust = adjust, fields = 2 }
