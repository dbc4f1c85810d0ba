-- Fixed window: arithmetic only. Twin of src/limiting/algorithm/fixed_window.rs: same names, same order.
-- rule   at most limit units in each window of so many ms; clock 1: windows start at multiples of their length since
--        the epoch; clock 0: a window starts with its first request
-- state  count, start, window, clock: see lua/counted.lua
local max = math.max
local counted = counted()

local function matches(rule, record)
  return record[3] == rule[2] and record[4] == rule[3]
end

-- Returns the current window, its end, and whether it has to be stored even after a refusal.
local function window_at(rule, record, now)
  local window, clock = rule[2], rule[3]

  local count, start, is_repaired = 0, clock == 1 and 0 or now, false
  if record then
    count, start = record[1], record[2]
    -- A start further ahead than a whole window comes from a clock that was wrong. It has to be corrected and stored,
    -- or the window would start again with each refusal.
    if start > now + window then start, is_repaired = now, true end
  end
  local at = max(now, start)
  local first = clock == 1 and at - at % window or start
  if start < first then
    count, start = 0, first
  elseif at >= first + window then
    count, start, first = 0, at, at
  end
  return { count, start, window, clock }, first + window, is_repaired
end

local function decide(rule, record, now, cost)
  return counted.decide(rule[1], now, cost, window_at(rule, record, now))
end

local function adjust(rule, record, now, delta, receipt)
  return counted.adjust(now, delta, receipt, window_at(rule, record, now))
end

return record_algorithm(4, matches, decide, adjust, function()
  local functions
  -- Converts a window of another length. Its start remains, and it ends by this rule's length. On the clock, the start
  -- is given by the clock; the count of a window more than twice as long does not apply to it. Then charges from before
  -- the conversion, even of the same ms, are never refunded from the new window.
  functions = counted.record_functions(function(rule, record, now)
    local other = functions.charged(record, now, 0)
    local found, _, is_repaired = window_at(rule, other, now)
    if rule[3] == 1 and other[3] <= 2 * rule[2] then
      found[1] = other[1]
    elseif found[2] ~= other[2] and not is_repaired then
      found[2] = now + 1
    end
    return found, found[1]
  end)
  return functions
end, function(rule) return { rule[2], rule[3] } end)
