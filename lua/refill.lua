-- Records that refill: arithmetic only, twin of src/limit/algo/refill.rs, same names, same order.
-- Joined before the algorithm files as `refill(fields)`, which only what is rare calls; fields: as many of a
-- record are always stored.
-- record  used, at, rate, per, lump: tokens taken that have not come back, times per, as of time at;
--         rate come back every per ms, all together if lump is per, evenly if it is 1 or absent;
--         then marks, two numbers each, as src/limit/algo/ledger.rs says: at and low. With marks lump
--         is never absent
local refill = {}

-- No record has more used, and no rule takes more at once: their sum is exact.
refill.MOST = EXACT / 2

function refill.sound(record)
  return record[3] >= 1 and record[4] >= 1 and (record[5] or 1) >= 1
end

-- As of now, or of the last lump.
function refill.advanced(record, now)
  local used, at, rate, per, lump = record[1], record[2], record[3], record[4], record[5] or 1
  local gain = rate * lump
  local steps = math.floor(math.max(now - at, 0) / lump)
  if steps >= math.ceil(used / gain) then return { 0, math.max(now, at), rate, per, fields == 5 and lump or nil } end
  return { used - steps * gain, at + steps * lump, rate, per, fields == 5 and lump or nil }
end

function refill.life(record, now)
  local lump = record[5] or 1
  return record[2] + math.ceil(record[1] / (record[3] * lump)) * lump - now
end

local function need_of(record, cost)
  return math.min(cost, math.floor(refill.MOST / record[4]) + 1) * record[4]
end

function refill.charged(record, now, cost)
  local next = refill.advanced(record, now)
  next[1] = math.min(next[1] + need_of(record, cost), refill.MOST)
  return next
end

-- What was used by other numbers, by these. Doubles round it as the twin does.
function refill.adopted(record, now, rate, per, lump)
  local found = refill.advanced(record, now)
  local used, at = math.ceil(found[1] / found[4] * per), found[2]
  if (found[5] or 1) ~= (lump or 1) and at <= now then at = now end
  return { math.min(used, refill.MOST), at, rate, per, lump }
end

-- How much of a charge of `need`, made at `charged`, is still there at least: what came back since may
-- have been all its own. Of an advanced record.
function refill.remains(used, at, gain, lump, need, charged)
  local lumps = math.ceil(math.max(at - charged, 0) / lump)
  if lumps >= math.ceil(need / gain) then return 0 end
  return math.min(need - lumps * gain, used)
end

-- The same of another basis's record, in units.
function refill.left_units(record, now, cost, charged)
  local next, lump = refill.advanced(record, now), record[5] or 1
  return refill.remains(next[1], next[2], next[3] * lump, lump, need_of(record, cost), charged) / next[4]
end

function refill.back(record, now, units)
  local next = refill.advanced(record, now)
  next[1] = next[1] - math.min(math.floor(units * next[4]), next[1])
  return next
end

-- Of one record.
local MOST_MARKS = 5

-- Those that say more than that `used` is in use now: at, low, at, low ...
local function standing(record, used)
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

local function with(next, marks)
  if #marks == 0 then return end
  next[5] = next[5] or 1
  for i = 1, #marks do next[5 + i] = marks[i] end
end

-- Makes one mark of those two that differ least.
local function join(marks)
  local place, least
  for i = 1, #marks - 3, 2 do
    local loss = marks[i + 3] - marks[i + 1]
    if not least or loss < least then place, least = i, loss end
  end
  marks[place] = marks[place + 2]
  table.remove(marks, place + 3)
  table.remove(marks, place + 2)
end

-- Gives `next` the marks that follow a charge to the record, of which `used` was in use then. Without any,
-- it gets the first if `wanted`: of what was before nothing is known.
function refill.marked(next, record, used, wanted)
  local marks = standing(record, used)
  local size = #marks
  if size == 0 and not wanted then return end
  if size == 0 or marks[size - 1] < next[2] then
    marks[size + 1], marks[size + 2] = next[2], size == 0 and 0 or used
  end
  if #marks > 2 * MOST_MARKS then join(marks) end
  with(next, marks)
end

-- How much of a charge of `need`, made at `charged`, the record still holds at least, of which `used` is
-- in use as of `at`.
function refill.holds(record, used, at, gain, lump, need, charged)
  local most = refill.remains(used, at, gain, lump, need, charged)
  if #record <= 5 then return most end
  local marks, since = standing(record, used), charged
  for i = 1, #marks, 2 do
    if marks[i] > charged then
      most = math.max(most, refill.remains(marks[i + 1], since, gain, lump, need, charged))
      since = marks[i]
    end
  end
  return math.max(most, refill.remains(used, since, gain, lump, need, charged))
end

-- Gives `next` the marks that follow when so much of a charge made at `charged` is given back of the record.
function refill.given(next, record, charged, given)
  local marks = { unpack(record, 1, #record) }
  for i = 6, #marks, 2 do
    if marks[i] > charged then marks[i + 1] = math.max(marks[i + 1] - given, 0) end
  end
  with(next, standing(marks, next[1]))
end

return refill
