-- Calendar window: arithmetic only. Twin of src/limiting/algorithm/calendar.rs: same names, same order.
-- rule   at most limit units in each window; then the starts of five consecutive windows. The second is the current one
--        by the clock of the gateway. This server's clock decides, so any of the first three may be current.
-- state  count, start and length of the window
local counted = counted()

-- Returns the index of the start of the current window; false if the clocks are too far apart.
local function place_at(rule, now)
  if now < rule[2] or now >= rule[5] then return false end
  return now >= rule[4] and 4 or now >= rule[3] and 3 or 2
end

-- Reports whether the record belongs to the window that starts there.
local function is_at(rule, record, place)
  return record[2] == rule[place] and record[3] == rule[place + 1] - rule[place]
end

local function ends_at(record, ms)
  return record[2] + record[3] == ms
end

-- While the clocks are too far apart, any window continues until it has not been charged for the length of a window.
local function matches(rule, record, now)
  local place = place_at(rule, now)
  -- The next window counts too: a state from it means that this clock is late.
  return not place or is_at(rule, record, place) or is_at(rule, record, place + 1) or ends_at(record, rule[place])
end

-- Returns the current window, and its end.
local function window_at(rule, record, now)
  local place = place_at(rule, now)
  if record and place and ends_at(record, rule[place]) then record = false end
  record = record or { 0, rule[place or 3], rule[(place or 3) + 1] - rule[place or 3] }
  return record, place and record[2] + record[3] or now + rule[4] - rule[3], false
end

local function decide(rule, record, now, cost)
  return counted.decide(rule[1], now, cost, window_at(rule, record, now))
end

local function adjust(rule, record, now, delta, receipt)
  return counted.adjust(now, delta, receipt, window_at(rule, record, now))
end

return recorded(3, matches, decide, adjust, function()
  local rest
  -- Reports whether the charges of `record` belong to the window `found` as well: it starts at the same time or later,
  -- or is at most twice as long. Of a longer window it is unknown which charges were made in `found`.
  local function is_known(record, found)
    return record[2] >= found[2] or record[3] <= 2 * found[3]
  end

  rest = counted.rest(function(rule, record, now)
    local found = window_at(rule, false, now)
    found[1] = is_known(record, found) and rest.charged(record, now, 0)[1] or 0
    return found, found[1]
  end)

  -- The other record may have started after the charge; then nothing of it is certain to be left.
  local left = rest.charge_left
  function rest.charge_left(rule, record, now, cost, receipt)
    return is_known(window_at(rule, false, now), record) and left(rule, record, now, cost, receipt) or 0
  end
  -- Only the calendar of a record knows its next window, so a record is not kept beyond its own.
  rest.kept = 0
  return rest
end)
