-- Fixed window: arithmetic only, twin of src/limit/algo/fixed_window.rs, same names, same order.
-- rule   at most limit in each window ms; clock 1: windows start at multiples of window since the
--        epoch; clock 0: a window starts with its first request
-- state  count, start of the window it belongs to
local max = math.max

local function decide(rule, state, now, cost)
  local limit, window, clock = rule[1], rule[2], rule[3]

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

  local admitted = cost == 0 or count + cost <= limit
  if admitted then count = count + cost end

  local left = start + window - now
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = left
  end
  return admitted, max(limit - count, 0), retry, left, cost > 0 and (admitted or mended) and left, count, start
end

return { decide = decide, fields = 2 }
