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

-- Returns whether both lengths are of one unit: months have 28 to 31 days, and an hour in which clocks are changed may
-- have 30 minutes.
local function is_as_long(length, other)
  return length <= 2 * other and other <= 2 * length
end

-- Returns the record with the end of the window to which it belongs: the current or the next one. A state from the next
-- one means that this clock is late. False if it belongs to neither.
local function find_own(rule, record, first)
  for index = first, first + 1 do
    local late, length = record[2] - rule[index], rule[index + 1] - rule[index]
    if (late == 0 or late == 1) and is_as_long(record[3], length) then
      return { record[1], record[2], length - late }
    end
  end
  return false
end

-- Returns whether the record is of the window before the current one.
local function precedes(rule, record, index)
  return record[2] + record[3] == rule[index] and is_as_long(record[3], rule[index + 1] - rule[index])
end

-- While the clocks are too far apart, any window continues until it has not been charged for the length of a window.
local function matches(rule, record, now)
  local index = index_at(rule, now)
  if not index then return true end
  return find_own(rule, record, index) or precedes(rule, record, index)
end

-- Returns the current window, and its end.
local function window_at(rule, record, now)
  local index = index_at(rule, now)
  if record and index then record = find_own(rule, record, index) end
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
  local max, min = math.max, math.min
  local functions

  -- Returns whether charges of `record` may belong to the window `found` as well: it starts at the same time or later,
  -- or is at most twice as long. Of a longer window, most charges were made before `found`.
  local function may_apply(record, found)
    return record[2] >= found[2] or record[3] <= 2 * found[3]
  end

  -- Returns a record that does not know which charges its window had before. It starts 1 ms late; windows start at full
  -- seconds.
  local function partial(found)
    return { found[1], found[2] + 1, found[3] - 1 }
  end

  local function is_partial(record)
    return record[2] % 1000 == 1
  end

  -- Charges of a window that starts in the current one belong to it. Of one that started before, it is unknown which
  -- do: the new record is then partial.
  functions = counted.record_functions(function(rule, record, now)
    local current, other = window_at(rule, false, now), functions.advanced(record, now)
    if other[2] >= current[2] then
      current[1] = other[1]
      return current, other[1]
    end
    local is_unknown = other[1] > 0 and may_apply(other, current)
    return is_unknown and partial(current) or current, 0
  end)

  -- A record that is partial decides with those of other boundaries: what it does not know, they may have counted.
  function functions.decide_among(rule, own, others, now, cost)
    local record, stop, is_repaired = window_at(rule, own, now)
    local limit = rule[1]
    if not is_partial(record) then return counted.decide(limit, now, cost, record, stop, is_repaired) end
    local most, free_at = record[1], now
    for _, other in ipairs(others) do
      other = functions.advanced(other, now)
      if may_apply(other, record) then
        most = max(most, other[1])
        if other[1] + cost > limit then free_at = max(free_at, other[2] + other[3]) end
      end
    end
    -- When its own window ends, it knows all charges of the next one.
    if record[1] + cost > limit or free_at > stop then free_at = stop end
    local together = { most, record[2], record[3] }
    local admitted, remaining, retry, reset, receipt, ttl, next =
      counted.decide(limit, now, cost, together, stop, is_repaired)
    if retry > 0 then retry = free_at - now end
    next[1] = next[1] - (most - record[1])
    return admitted, remaining, retry, reset, receipt, ttl, next
  end

  -- Other rules do not know where its window ends.
  function functions.corrected(rule, record, now)
    return (window_at(rule, record, now))
  end

  -- Both are records of one window.
  function functions.join_converted(one, used, other, other_used)
    return { max(one[1], other[1]), max(one[2], other[2]), min(one[3], other[3]) }, max(used, other_used)
  end

  -- A record of another boundary may have begun to count after the charge; then nothing of it is certain to be left.
  local left = functions.charge_left
  function functions.charge_left(rule, record, now, cost, receipt)
    record = functions.advanced(record, now)
    local is_known = not is_partial(record) or matches(rule, record, now)
    local applies = is_known and may_apply(window_at(rule, false, now), record)
    return applies and left(rule, record, now, cost, receipt) or 0
  end

  -- A record counts the charges of its next window as well, so that its boundary knows them if it returns.
  functions.drop_at = functions.next_end
  return functions
end)
