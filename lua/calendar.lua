-- Calendar window: arithmetic only, twin of src/limit/algo/calendar.rs, same names, same order.
-- rule   at most limit in each window; then the start of five windows in a row, the second of which
--        the caller took for the current one. What the calendar says is the caller's knowledge, what
--        time it is is ours: any of the first three may turn out to be current
-- state  count, start of the window it belongs to, its length
local counted = counted()

-- The place of the start of the window that holds now; false if the clocks are too far apart to tell.
local function place_at(rule, now)
  if now < rule[2] or now >= rule[5] then return false end
  return now >= rule[4] and 4 or now >= rule[3] and 3 or 2
end

-- Whether the record is of the window that starts there.
local function is_at(rule, record, place)
  return record[2] == rule[place] and record[3] == rule[place + 1] - rule[place]
end

local function ends_at(record, ms)
  return record[2] + record[3] == ms
end

-- Whatever window is counted while the clocks are too far apart goes on until nothing was charged to it
-- for as long as a window lasts.
local function owns(rule, record, now)
  local place = place_at(rule, now)
  -- Time does not run backwards.
  return not place or is_at(rule, record, place) or is_at(rule, record, place + 1) or ends_at(record, rule[place])
end

-- The window that holds now, and its end.
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

return recorded(3, owns, decide, adjust, function()
  local rest
  -- Whether all that a window counts was counted in `found` as well: on the same date or later, or in a
  -- window of about the same length. Of a longer one it is not known what was taken in this.
  local function is_known(record, found)
    return record[2] >= found[2] or record[3] <= 2 * found[3]
  end

  rest = counted.rest(function(rule, record, now)
    local found = window_at(rule, false, now)
    found[1] = is_known(record, found) and rest.charged(record, now, 0)[1] or 0
    return found, found[1]
  end)

  -- The other one may have begun to count after the charge.
  local left = rest.left
  function rest.left(rule, record, now, cost, receipt)
    return is_known(window_at(rule, false, now), record) and left(rule, record, now, cost, receipt) or 0
  end
  -- What window comes next only its own calendar knows.
  rest.kept = 0
  return rest
end)
