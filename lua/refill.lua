-- Records that refill: arithmetic only, twin of src/limit/algo/refill.rs, same names, same order.
-- Joined before the algorithm files as `refill()`, which only what is rare calls.
-- record  used, at, rate, per, lump: tokens taken that have not come back, times per, as of time at;
--         rate come back every per ms, all together if lump is per, evenly if it is 1 or absent
local refill = {}

-- No record has more used, and no rule takes more at once: their sum is exact.
refill.MOST = 2251799813685248

function refill.sound(record)
  return record[3] >= 1 and record[4] >= 1 and (record[5] or 1) >= 1
end

-- As of now, or of the last lump.
function refill.advanced(record, now)
  local used, at, rate, per, lump = record[1], record[2], record[3], record[4], record[5] or 1
  local gain = rate * lump
  local steps = math.floor(math.max(now - at, 0) / lump)
  if steps >= math.ceil(used / gain) then return { 0, math.max(now, at), rate, per, record[5] } end
  return { used - steps * gain, at + steps * lump, rate, per, record[5] }
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

return refill
