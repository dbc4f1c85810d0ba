-- Sliding window of counters: arithmetic only. Twin of src/limiting/algorithm/sliding_window.rs: same names, same
-- order.
-- rule   limit; window in ms; unit: ms of one counter. If unit equals window, there are two counters, and the older one
--        is weighted by the share of it that the window still covers. If it is smaller, every counter that the window
--        touches counts in full.
-- state  unit, window, number of the newest counter (its time / unit), counters from the newest backwards
local floor, max, min = math.floor, math.max, math.min

-- Up to this number, a sum of counters, or a counter times the window, is exact.
local COUNT_MAX = EXACT - 1
-- An upper bound of the counters that a window touches.
local COUNTERS = 64

local function most(rule)
  return floor(COUNT_MAX / (rule[3] == rule[2] and rule[2] or COUNTERS))
end

local function matches(rule, record)
  return record[1] == rule[3] and record[2] == rule[2]
end

-- Returns when the counter with that number no longer counts. A charge at the very end of a strict counter leaves the
-- window a whole window later; a weighted counter has no weight when the window after it ends.
local function expiry(rule, id)
  return (id + 1) * rule[3] + rule[2]
end

-- Returns the number of the current counter, the counts from it backwards, the time to which they apply, and whether
-- the state has to be stored even after a refusal.
local function counts_at(rule, record, now)
  local window, unit = rule[2], rule[3]
  local id, counts, at, is_repaired = floor(now / unit), {}, now, false
  if not record or not record[4] then return id, counts, at, is_repaired end

  local newest = record[3]
  -- A counter further ahead than a whole window comes from a clock that was wrong. It has to be corrected and stored,
  -- or the window would never end.
  if newest * unit > now + window then newest, is_repaired = id + 1, true end
  if newest > id then id, at = newest, newest * unit end
  if expiry(rule, newest) <= at then return id, counts, at, is_repaired end
  local shift = id - newest
  for i = 1, shift do counts[i] = 0 end
  for i = 4, #record do
    if expiry(rule, newest - i + 4) <= at then break end
    counts[shift + i - 3] = min(record[i], most(rule))
  end
  return id, counts, at, is_repaired
end

-- Returns the index of the counter that contains a charge of that time, if it still counts.
local function index_of(rule, id, counts, charged)
  local index = id - floor(charged / rule[3]) + 1
  return (counts[index] or 0) > 0 and index
end

-- Returns how many units can be charged now; negative if more than limit are in the window.
local function free_units(rule, id, counts, at)
  local limit, window, unit = rule[1], rule[2], rule[3]
  if unit == window then
    local count, before = counts[1] or 0, counts[2] or 0
    return floor(((limit - count) * window - before * (window - (at - id * window))) / window)
  end
  local sum = 0
  for i = 1, #counts do sum = sum + counts[i] end
  return limit - sum
end

-- Returns when a cost that is refused now will fit, if no other request arrives.
local function fits_at(rule, id, counts, cost, free)
  local limit, window, unit = rule[1], rule[2], rule[3]
  if unit == window then
    local count, before = counts[1] or 0, counts[2] or 0
    if count + cost <= limit then
      return (id + 1) * window - floor((limit - count - cost) * window / before)
    end
    return (id + 2) * window - floor((limit - cost) * window / count)
  end
  local excess, index = cost - free, #counts + 1
  while excess > 0 and index > 1 do
    index = index - 1
    excess = excess - counts[index]
  end
  return expiry(rule, id - index + 1)
end

-- Returns when the newest counter with a charge no longer counts; now if there is none.
local function reset_at(rule, id, counts, now)
  for i = 1, #counts do
    if counts[i] > 0 then return expiry(rule, id - i + 1) end
  end
  return now
end

local function to_record(rule, id, counts)
  local next, size = { rule[3], rule[2], id, counts[1] or 0 }, #counts
  while size > 1 and counts[size] == 0 do size = size - 1 end
  for i = 2, size do next[i + 3] = counts[i] end
  return next
end

local function decide(rule, record, now, cost)
  local limit = rule[1]
  local id, counts, at, is_repaired = counts_at(rule, record, now)

  local free = free_units(rule, id, counts, at)
  local admitted, retry = cost == 0 or cost <= free, 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = fits_at(rule, id, counts, cost, free) - now
  end
  if admitted and cost > 0 then
    counts[1] = (counts[1] or 0) + cost
    free = free - cost
  end

  local reset = reset_at(rule, id, counts, now) - now
  local store = cost > 0 and (admitted or is_repaired)
  return admitted, max(free, 0), retry, reset, at, store and max(reset, 1), to_record(rule, id, counts)
end

-- Corrects a charge; the receipt is its time. Nothing is refunded once its counter has left the window.
local function adjust(rule, record, now, delta, receipt)
  local id, counts = counts_at(rule, record, now)
  local index = 1
  if delta < 0 then
    index = index_of(rule, id, counts, receipt)
    if not index then return false end
  end
  local before = counts[index] or 0
  counts[index] = max(min(before + delta, most(rule)), 0)
  return max(reset_at(rule, id, counts, now) - now, 1), to_record(rule, id, counts), math.abs(counts[index] - before)
end

return record_algorithm(nil, matches, decide, adjust, function()
  local functions = {}

  -- Returns a rule with the basis of the record.
  local function rule_of(record)
    return { 0, record[2], record[1] }
  end

  function functions.sound(record)
    return record[4] and record[1] >= 1 and record[2] >= record[1] and record[2] <= COUNTERS * record[1]
  end

  -- Converts counters of another length. The charges of each count at the latest time that they can have.
  function functions.convert(rule, record, now)
    local unit, id = rule[3], floor(now / rule[3])
    local from, live = counts_at(rule_of(record), record, now)
    local counts, used = {}, 0
    for i = 1, #live do
      local latest = min((from - i + 2) * record[1] - 1, now)
      local last_unit = floor(latest / unit)
      if live[i] > 0 and expiry(rule, last_unit) > now then
        local index = id - last_unit + 1
        for gap = #counts + 1, index do counts[gap] = 0 end
        counts[index] = min(counts[index] + live[i], most(rule))
      end
    end
    for i = 1, #counts do used = used + counts[i] end
    return to_record(rule, id, counts), used
  end

  function functions.lifetime(record, now)
    local rule = rule_of(record)
    local id, counts = counts_at(rule, record, now)
    return reset_at(rule, id, counts, now) - now
  end

  function functions.ttl(_, record, now)
    return max(functions.lifetime(record, now), 1)
  end

  function functions.charged(record, now, cost)
    local rule = rule_of(record)
    local id, counts = counts_at(rule, record, now)
    counts[1] = min((counts[1] or 0) + cost, most(rule))
    return to_record(rule, id, counts)
  end

  function functions.charge_left(_, record, now, cost, receipt)
    local rule = rule_of(record)
    local id, counts = counts_at(rule, record, now)
    local index = index_of(rule, id, counts, receipt)
    return index and min(counts[index], cost) or 0
  end

  function functions.refunded(record, now, units, receipt)
    local rule = rule_of(record)
    local id, counts = counts_at(rule, record, now)
    local index = index_of(rule, id, counts, receipt)
    if index then counts[index] = max(counts[index] - units, 0) end
    return to_record(rule, id, counts)
  end

  return functions
end)
