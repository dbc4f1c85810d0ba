-- Records that refill: arithmetic only. Twin of src/limiting/algorithm/refill, which explains it: same
-- names, same order. Joined before the algorithms as `refill(fields)`, which only rare cases call. `fields` is how
-- many numbers of a record are always stored.
-- record  used, at, rate, per, lump: tokens in use at the time `at`, times per; rate tokens refill every per ms, all at
--         once if lump is per, evenly if it is 1 or absent. Then marks, two numbers each: at and low. With marks, lump
--         is never absent.
local refill = {}

-- Most usage of a record, and most that one charge adds; their sum is still exact.
refill.USED_MAX = EXACT / 2

function refill.sound(record)
  return record[3] >= 1 and record[4] >= 1 and (record[5] or 1) >= 1
end

-- Returns the record at `now`, or at its last lump before that.
function refill.advanced(record, now)
  local used, at, rate, per, lump = record[1], record[2], record[3], record[4], record[5] or 1
  local gain = rate * lump
  local steps = math.floor(math.max(now - at, 0) / lump)
  if steps >= math.ceil(used / gain) then return { 0, math.max(now, at), rate, per, fields == 5 and lump or nil } end
  return { used - steps * gain, at + steps * lump, rate, per, fields == 5 and lump or nil }
end

function refill.lifetime(record, now)
  local lump = record[5] or 1
  return record[2] + math.ceil(record[1] / (record[3] * lump)) * lump - now
end

local function need_of(record, cost)
  return math.min(cost, math.floor(refill.USED_MAX / record[4]) + 1) * record[4]
end

function refill.charged(record, now, cost)
  local next = refill.advanced(record, now)
  next[1] = math.min(next[1] + need_of(record, cost), refill.USED_MAX)
  return next
end

-- Converts the record to another basis. The twin rounds alike, as it uses doubles too.
function refill.converted(record, now, rate, per, lump)
  local found = refill.advanced(record, now)
  local used, at = math.ceil(found[1] / found[4] * per), found[2]
  if (found[5] or 1) ~= (lump or 1) and at <= now then at = now end
  return { math.min(used, refill.USED_MAX), at, rate, per, lump }
end

-- Returns a lower bound of what is left of a charge of `need` made at `charged`: everything that was refilled since
-- then may have belonged to this charge. The record must be advanced.
function refill.min_left(used, at, gain, lump, need, charged)
  local lumps = math.ceil(math.max(at - charged, 0) / lump)
  if lumps >= math.ceil(need / gain) then return 0 end
  return math.min(need - lumps * gain, used)
end

-- Returns the same bound for a record of another basis, in units.
function refill.left_units(record, now, cost, charged)
  local next, lump = refill.advanced(record, now), record[5] or 1
  return refill.min_left(next[1], next[2], next[3] * lump, lump, need_of(record, cost), charged) / next[4]
end

function refill.refunded(record, now, units)
  local next = refill.advanced(record, now)
  next[1] = next[1] - math.min(math.floor(units * next[4]), next[1])
  return next
end

-- Most marks of one record.
local MARKS_MAX = 5

-- Returns the marks that are still lower bounds, below the current usage `used`: at, low, at, low ...
local function valid_marks(record, used)
  local picked, least = {}, used
  for i = #record - 1, 6, -2 do
    if record[i + 1] < least then
      least = record[i + 1]
      picked[#picked + 1] = i
    end
  end
  local marks = {}
  for i = #picked, 1, -1 do
    marks[#marks + 1], marks[#marks + 2] = record[picked[i]], record[picked[i] + 1]
  end
  return marks
end

local function set_marks(next, marks)
  if #marks == 0 then return end
  next[5] = next[5] or 1
  for i = 1, #marks do next[5 + i] = marks[i] end
end

-- Merges the two marks that differ least.
local function merge_closest(marks)
  local index, least
  for i = 1, #marks - 3, 2 do
    local loss = marks[i + 3] - marks[i + 1]
    if not least or loss < least then index, least = i, loss end
  end
  marks[index] = marks[index + 2]
  table.remove(marks, index + 3)
  table.remove(marks, index + 2)
end

-- Gives `next` the marks after a charge to the record, in which `used` was in use before. A record without marks gets
-- its first one only if `wanted`; its bound is 0, as earlier usage is unknown.
function refill.mark_charge(next, record, used, wanted)
  local marks = valid_marks(record, used)
  local size = #marks
  if size == 0 and not wanted then return end
  if size == 0 or marks[size - 1] < next[2] then
    marks[size + 1], marks[size + 2] = next[2], size == 0 and 0 or used
  end
  if #marks > 2 * MARKS_MAX then merge_closest(marks) end
  set_marks(next, marks)
end

-- Returns how much of a charge of `need` made at `charged` may be refunded to the record, in which `used` is in use at
-- `at`.
function refill.max_refund(record, used, at, gain, lump, need, charged)
  local most = refill.min_left(used, at, gain, lump, need, charged)
  if #record <= 5 then return most end
  local marks, since = valid_marks(record, used), charged
  for i = 1, #marks, 2 do
    if marks[i] > charged then
      most = math.max(most, refill.min_left(marks[i + 1], since, gain, lump, need, charged))
      since = marks[i]
    end
  end
  return math.max(most, refill.min_left(used, since, gain, lump, need, charged))
end

-- Gives `next` the marks after `refund` of a charge made at `charged` was refunded.
function refill.mark_refund(next, record, charged, refund)
  local marks = { unpack(record, 1, #record) }
  for i = 6, #marks, 2 do
    if marks[i] > charged then marks[i + 1] = math.max(marks[i + 1] - refund, 0) end
  end
  set_marks(next, valid_marks(marks, next[1]))
end

return refill
