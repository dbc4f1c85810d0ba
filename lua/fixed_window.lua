-- Fixed window: arithmetic only, twin of src/limit/algo/fixed_window.rs, same names, same order.
-- rule   at most limit in each window ms; clock 1: windows start at multiples of window since the
--        epoch; clock 0: a window starts with its first request
-- state  count, start of the window it belongs to
local max = math.max

-- What the window that holds now has counted, its start, and whether that has to be stored even
-- after a refusal.
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
  return count, start, mended
end

local function decide(rule, state, now, cost)
  local limit, window = rule[1], rule[2]
  local count, start, mended = window_at(rule, state, now)

  local admitted = cost == 0 or count + cost <= limit
  if admitted then count = count + cost end

  local left = start + window - now
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = left
  end
  local store = cost > 0 and (admitted or mended)
  return admitted, max(limit - count, 0), retry, left, start, store and left, { count, start }
end

-- The receipt is the start of the window charged; when that window is over nothing is given back.
local function adjust(rule, state, now, delta, receipt)
  local count, start = window_at(rule, state, now)
  if delta < 0 and (count == 0 or start ~= receipt) then return false end
  return start + rule[2] - now, { max(count + delta, 0), start }
end

return { decide = decide, adjust = adjust, fields = 2 }
