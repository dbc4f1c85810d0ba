-- Calendar window: arithmetic only. Twin of src/limiting/algorithm/calendar.rs: same names, same order.
-- rule   at most limit units in each window; then the starts of five consecutive windows. The second is the current one
--        by the clock of the gateway. This server's clock decides, so any of the first three may be current.
-- state  count, start and length of the window
local counted = counted()

-- Returns the index of the start of the current window; false if the clocks are too far apart.
local function index_at(rule, now)
  if now < rule[2] or now >= rule[5] then return false end
  return now >= rule[4] and 4 or now >= rule[3] and 3 or 2
end

-- Reports whether the record belongs to the window that starts there.
local function is_window_at(rule, record, index)
  return record[2] == rule[index] and record[3] == rule[index + 1] - rule[index]
end

local function ends_at(record, ms)
  return record[2] + record[3] == ms
end

-- While the clocks are too far apart, any window continues until it has not been charged for the length of a window.
local function matches(rule, record, now)
  local index = index_at(rule, now)
  -- The next window counts too: a state from it means that this clock is late.
  if not index then return true end
  local is_current_or_next = is_window_at(rule, record, index) or is_window_at(rule, record, index + 1)
  return is_current_or_next or ends_at(record, rule[index])
end

-- Returns the current window, and its end.
local function window_at(rule, record, now)
  local index = index_at(rule, now)
  if record and index and ends_at(record, rule[index]) then record = false end
  record = record or { 0, rule[index or 3], rule[(index or 3) + 1] - rule[index or 3] }
  return record, index and record[2] + record[3] or now + rule[4] - rule[3], false
end

local function decide(rule, record, now, cost)
  return counted.decide(rule[1], now, cost, window_at(rule, record, now))
end

local function adjust(rule, record, now, delta, receipt)
  return counted.adjust(now, delta, receipt, window_at(rule, record, now))
end

return record_algorithm(3, matches, decide, adjust, function()
  local functions
  -- Reports whether the charges of `record` belong to the window `found` as well: it starts at the same time or later,
  -- or is at most twice as long. Of a longer window it is unknown which charges were made in `found`.
  local function applies_to_window(record, found)
    return record[2] >= found[2] or record[3] <= 2 * found[3]
  end

  functions = counted.record_functions(function(rule, record, now)
    local found = window_at(rule, false, now)
    found[1] = applies_to_window(record, found) and functions.charged(record, now, 0)[1] or 0
    return found, found[1]
  end)

  -- The other record may have started after the charge; then nothing of it is certain to be left.
  local left = functions.charge_left
  function functions.charge_left(rule, record, now, cost, receipt)
    return applies_to_window(window_at(rule, false, now), record) and left(rule, record, now, cost, receipt) or 0
  end
  -- Only the calendar of a record knows its next window, so a record is not kept beyond its own.
  functions.kept = 0
  return functions
end)
