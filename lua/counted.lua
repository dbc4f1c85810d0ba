-- Windows with a counter: arithmetic only. Twin of src/limiting/algorithm/window.rs. Joined before the algorithms as
-- `counted()`.
-- record  count, start, length; and for fixed windows only, whether the next one starts on the clock (1) or with its
--         first request (0). On the clock, the window starts at a multiple of its length; `start` is the time of the
--         first charge that the record contains.
-- window  a record, its end by the rule, and whether it has to be stored even after a refusal
local counted = {}

-- Largest count of a record.
local COUNT_MAX = EXACT

function counted.decide(limit, now, cost, record, stop, is_repaired)
  local count = record[1]
  local admitted = cost == 0 or count + cost <= limit
  if admitted then count = count + cost end

  local left = stop - now
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = left
  end
  local store = cost > 0 and (admitted or is_repaired)
  local receipt = record[2] > now and -record[2] or now
  return admitted, math.max(limit - count, 0), retry, left, receipt, store and left,
    { count, record[2], record[3], record[4] }
end

local function end_of(record)
  local start, length = record[2], record[3]
  return start + length - (record[4] == 1 and start % length or 0)
end

-- Returns how long the next window of a calendar is at most. Only its rule knows the end: months have 28 to 31 days.
local function next_length(record)
  return record[3] + math.floor(record[3] / 8)
end

-- Returns how much of a charge of `cost` this window contains.
local function left_of_charge(record, cost, receipt)
  local charged = math.abs(receipt)
  local within = record[2] <= charged and charged < end_of(record)
  return within and math.min(cost, record[1]) or 0
end

-- Corrects a charge. The receipt is its time, or the negative start of its window if that was still ahead. Nothing is
-- refunded once its window has ended.
function counted.adjust(now, delta, receipt, record, stop)
  local units = delta < 0 and left_of_charge(record, -delta, receipt) or delta
  if delta < 0 and units == 0 then return false end
  local count = math.min(math.max(record[1] + delta, 0), COUNT_MAX)
  return stop - now, { count, record[2], record[3], record[4] }, units
end

-- Returns the functions for records of another basis.
function counted.record_functions(convert)
  local functions = { convert = convert }

  -- Returns the current window by the numbers of the record.
  local function advanced(record, now)
    if now < end_of(record) then return { record[1], record[2], record[3], record[4] } end
    if not record[4] then return { 0, end_of(record), next_length(record) } end
    local whole = now - (now - end_of(record)) % record[3]
    return { 0, record[4] == 0 and now or whole, record[3], record[4] }
  end
  functions.advanced = advanced

  -- Returns when the next window has ended as well.
  function functions.next_end(record)
    return end_of(record) + next_length(record)
  end

  function functions.sound(record)
    return record[3] >= 1
  end

  function functions.charged(record, now, cost)
    local next = advanced(record, now)
    next[1] = math.min(next[1] + cost, COUNT_MAX)
    return next
  end

  function functions.lifetime(record, now)
    return record[1] == 0 and 0 or end_of(record) - now
  end

  function functions.ttl(_, record, now)
    return math.max(functions.lifetime(record, now), 1)
  end

  function functions.charge_left(_, record, now, cost, receipt)
    return left_of_charge(advanced(record, now), cost, receipt)
  end

  -- A charge whose window was still ahead was made at least 1 ms before that window.
  function functions.receipt_elsewhere(receipt)
    return receipt < 0 and -receipt - 1 or receipt
  end

  function functions.refunded(record, now, units)
    local next = advanced(record, now)
    next[1] = math.max(next[1] - units, 0)
    return next
  end

  return functions
end

return counted
