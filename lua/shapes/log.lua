-- The shape `log`: the units charged in each millisecond. The first entry is a head, which contains the newest charge.
-- The earlier charges follow, the newest first: `ms`, or `ms:units` if the units are not 1. A new key is a list, or
-- with the third parameter of the rule a sorted set by ms. A key keeps its type until it expires, so a change of the
-- parameter loses no charges.
--
-- head   `longest largest newest units`, then blocks of neighbouring earlier charges: how many charges, with `:units`
--        if that is another number. So the units of a range are known from the blocks in it and a part of one block,
--        however long the log is.
--
-- state  longest, largest, newest, total (all units), and the methods whose name has no leading `_`
local read, clean = native()
local floor, sqrt, max, min, huge = math.floor, math.sqrt, math.max, math.min, math.huge
local tonumber, match, gmatch, format, concat = tonumber, string.match, string.gmatch, string.format, table.concat
-- Most charges of a block. In a block where each charge is one unit, a part is counted without reading it. In a
-- weighted block, the charges of the part have to be read.
local BLOCK, WEIGHTED = 1024, 64
-- Most old charges that one decision removes, so that no decision takes long after many have expired together.
local TRIMMED = 64
-- Most bytes of an entry: two numbers, and `:`. Most bytes of the head of the largest log, of 100,000 charges: four
-- numbers and its blocks. While a log grows to n charges, two neighbours have together more than half of `_weighted`,
-- so it gets at most 8 times the root of n blocks. Longer texts were written by somebody else.
local ENTRY_MAX = 2 * 16 + 1
local HEAD_MAX = 4 * 17 + (8 * floor(sqrt(100000)) + WEIGHTED) * (ENTRY_MAX + 1)
-- Charges that one command reads.
local CHUNK = 64
local ipairs, insert, remove = ipairs, table.insert, table.remove
local log, methods = {}, {}
local meta = { __index = methods }

local function pair(text)
  if #text > ENTRY_MAX then return 0, 0 end
  local number, units = match(text, '^(%d+):?(%d*)$')
  return tonumber(number) or 0, number and (tonumber(units) or 1) or 0
end

local function written(number, units, plain)
  return units == plain and format('%d', number) or format('%d:%d', number, units)
end

local function empty(state)
  state.longest, state.largest, state.newest, state.units = 0, 0, 0, 0
  -- For all charges but the newest: blocks, newest first; number of charges; cache of those that were read.
  state.counts, state.sums, state.size, state.known = {}, {}, 0, {}
  state.total = 0
  -- The head as stored; false if it is not stored.
  state.head = false
end

function log.open(key, rule, text)
  local state = setmetatable({ key = key, sorted = rule[3] == 1, foreign = text and true or false }, meta)
  empty(state)
  if text then return state end
  local found = state:_read(-1, -1)[1]
  if not found then return state end
  local longest, largest, newest, units, blocks = match(#found <= HEAD_MAX and found or '', '^(%d+) (%d+) (%d+) (%d+)([%d: ]*)$')
  if not longest then
    state.foreign = true
    return state
  end
  local longest, largest, newest, units = tonumber(longest), tonumber(largest), tonumber(newest), tonumber(units)
  local counts, sums, b, size, total = state.counts, state.sums, 0, 0, units
  for count, sum in gmatch(blocks, '(%d+):?(%d*)') do
    count = tonumber(count)
    sum = tonumber(sum) or count
    b, size, total = b + 1, size + count, total + sum
    counts[b], sums[b] = count, sum
    if count > BLOCK then total = huge end
  end
  -- This script writes no larger numbers, and a search would not end with them.
  if max(longest, largest, newest, total) > EXACT then
    empty(state)
    state.foreign = true
    return state
  end
  state.head, state.size, state.total = found, size, total
  state.longest, state.largest, state.newest, state.units = longest, largest, newest, units
  return state
end

-- Reads the charges before the newest, from the i-th to the j-th, counted from 0; -1 is the head.
function methods._read(state, i, j)
  if state.foreign then return {} end
  local sorted, skip = state.sorted, (state.head or i < 0) and 1 or 0
  local found = read(state, sorted and 'ZREVRANGE' or 'LRANGE', i + skip, j + skip)
  -- The key turned out to have the other type.
  if state.sorted ~= sorted then return state:_read(i, j) end
  return found or {}
end

-- Returns the ms and the units of the i-th charge before the newest.
function methods._charge(state, i)
  local found = state.known[i]
  if not found then
    found = { pair(state:_read(i, i)[1] or '') }
    state.known[i] = found
  end
  return found[1], found[2]
end

-- Returns how many of the charges before the newest were made at `ms` or later. The search starts at the newest charge
-- if `recent`, otherwise at the oldest: where the boundary usually is.
function methods._count(state, ms, recent)
  local low, high, step = 0, state.size, 1
  while low < high do
    local probe = recent and min(low + step, high) - 1 or max(high - step, low)
    local later = state:_charge(probe) >= ms
    if later then low = probe + 1 else high = probe end
    -- The boundary is within the last step.
    if recent ~= later then break end
    step = step * 2
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if state:_charge(middle) >= ms then low = middle + 1 else high = middle end
  end
  return low
end

-- Reads the charges from the i-th to before the j-th. Returns the sum of their units, and the ms of the charge at which
-- the sum exceeds `most`.
function methods._sum(state, i, j, most)
  local sum = 0
  for from = i, j - 1, CHUNK do
    for _, text in ipairs(state:_read(from, min(from + CHUNK, j) - 1)) do
      local ms, units = pair(text)
      sum = sum + units
      if sum > most then return sum, ms end
    end
  end
  return sum
end

-- Returns the block of the i-th charge, the number of charges in newer blocks, and their units.
function methods._block(state, i)
  local before, sum, b = 0, 0, 1
  while state.counts[b] and before + state.counts[b] <= i do
    before, sum = before + state.counts[b], sum + state.sums[b]
    b = b + 1
  end
  return b, before, sum
end

-- Returns the units charged at `ms` or later.
function methods.since(state, ms)
  if ms > state.newest then return 0 end
  local count = state:_count(ms, false)
  if count == state.size then return state.total end
  local b, before, sum = state:_block(count)
  local behind = before + state.counts[b]
  sum = sum + state.units
  if state.counts[b] == state.sums[b] then return sum + count - before end
  if count - before <= behind - count then return sum + state:_sum(before, count, huge) end
  return sum + state.sums[b] - state:_sum(count, behind, huge)
end

-- Reports whether the log contains any units.
function methods.is_kept(state)
  return state.total > 0
end

-- Returns the ms of the charge that contains the unit number `units`, counted from the newest and from 0; false if
-- there are not as many.
function methods.at(state, units)
  if units >= state.total then return false end
  if units < state.units then return state.newest end
  units = units - state.units
  local before, b = 0, 1
  while units >= state.sums[b] do
    before, units = before + state.counts[b], units - state.sums[b]
    b = b + 1
  end
  if state.counts[b] == state.sums[b] then return (state:_charge(before + units)) end
  -- Most refusals need the oldest charge, which needs no search.
  local last = before + state.counts[b] - 1
  local oldest, own = state:_charge(last)
  if units >= state.sums[b] - own then return oldest end
  local _, found = state:_sum(before, last, units)
  return found or 0
end

-- Returns the newest ms with units.
function methods.latest(state)
  if state.units > 0 then return state.newest end
  return state.size > 0 and (state:_charge(0))
end

-- Returns the units charged at `ms`, and the index of that charge.
function methods.weight_at(state, ms)
  if ms == state.newest then return state.units end
  local index = state:_count(ms, true) - 1
  if index < 0 then return 0 end
  local found, units = state:_charge(index)
  return found == ms and units or 0, index
end

function methods._forget(state)
  if state.head or state.size > 0 then free('UNLINK', state.key) end
  empty(state)
end

-- Returns the most charges of a weighted block. It grows with the log, so that the list of blocks does not become
-- longer than a block.
function methods._weighted(state)
  return max(WEIGHTED, floor(sqrt(state.size)))
end

-- Returns the last block, before its oldest charge gets more units. If all its charges have one unit, that charge is
-- split off first, so that the block does not become a weighted one.
function methods._oldest(state)
  local counts, sums = state.counts, state.sums
  local b = #counts
  local count = counts[b]
  if count ~= sums[b] or count <= state:_weighted() then return b end
  counts[b], sums[b] = count - 1, count - 1
  counts[b + 1], sums[b + 1] = 1, 1
  return b + 1
end

-- Moves the newest charge out of the head, to make way for the next one. `save` writes the new head.
function methods._push(state)
  if state.units == 0 then return end
  local text = written(state.newest, state.units, 1)
  if state.sorted then
    if state.head then free('ZREM', state.key, state.head) end
    call('ZADD', state.key, format('%d', state.newest), text)
  elseif state.head then
    call('LSET', state.key, 0, text)
  else
    call('LPUSH', state.key, text)
  end
  state.head = false
  local count = state.counts[1]
  local plain = state.units == 1 and count == state.sums[1]
  if not count or count >= (plain and BLOCK or state:_weighted()) then
    insert(state.counts, 1, 0)
    insert(state.sums, 1, 0)
  end
  state.counts[1], state.sums[1] = state.counts[1] + 1, state.sums[1] + state.units
  state.size, state.units, state.known = state.size + 1, 0, {}
end

-- Removes `count` charges with `units` in all from a block, and merges small neighbours.
function methods._lessen(state, b, count, units)
  local counts, sums = state.counts, state.sums
  counts[b], sums[b] = counts[b] - count, sums[b] - units
  state.size, state.total = state.size - count, state.total - units
  if counts[b] == 0 then
    remove(counts, b)
    remove(sums, b)
    return
  end
  for one = min(b, #counts - 1), max(b - 1, 1), -1 do
    local both, sum = counts[one] + counts[one + 1], sums[one] + sums[one + 1]
    if both <= (both == sum and BLOCK or state:_weighted()) / 2 then
      counts[one], sums[one] = both, sum
      remove(counts, one + 1)
      remove(sums, one + 1)
    end
  end
end

-- Removes charges that are too old. While the newer charges exceed any limit, it also merges the oldest charge into the
-- next: it does not count now, but does again if newer charges are refunded.
function methods._trim(state)
  local edge, least, gone = state.newest - state.longest, state.largest, 0
  local chunk, moved = 1, 0
  while gone < TRIMMED and state.size > 0 do
    local found = state:_read(max(state.size - chunk, 0), state.size - 1)
    local count = 0
    for i = #found, 1, -1 do
      local ms, units = pair(found[i])
      units = units + moved
      local rest = state.total - units
      if ms >= edge and rest < least or gone + count == TRIMMED then break end
      count = count + 1
      state:_lessen(#state.counts, 1, units)
      moved = ms >= edge and min(units, EXACT - rest) or 0
      state.total = state.total + moved
      if moved > 0 and state.size > 0 then
        local b = state:_oldest()
        state.sums[b] = state.sums[b] + moved
      elseif moved > 0 then
        state.units, moved = state.units + moved, 0
      end
    end
    gone = gone + count
    if count < #found or count == 0 then break end
    chunk = min(chunk * 4, CHUNK)
  end
  if gone == 0 then return end
  state.known = {}
  if state.sorted then
    free('ZREMRANGEBYRANK', state.key, 0, gone - 1)
  else
    free('LTRIM', state.key, 0, -gone - 1)
  end
  if moved > 0 then
    local ms, units = state:_charge(state.size - 1)
    state:_write(state.size - 1, ms, units, units + moved)
  end
end

-- Changes the units of the i-th charge.
function methods._write(state, i, ms, old, new)
  local text = written(ms, new, 1)
  if state.sorted then
    free('ZREM', state.key, written(ms, old, 1))
    call('ZADD', state.key, format('%d', ms), text)
  else
    call('LSET', state.key, i + (state.head and 1 or 0), text)
  end
  state.known = {}
end

function methods._set(state, ms, units)
  local weight, index = state:weight_at(ms)
  if ms == state.newest then
    state.units, state.total = units, state.total - weight + units
    return
  end
  if units > 0 then
    state:_write(index, ms, weight, units)
    state:_lessen(state:_block(index), 0, weight - units)
    return
  end
  local b, old = state:_block(index), written(ms, weight, 1)
  if state.sorted then
    free('ZREM', state.key, old)
  else
    free('LREM', state.key, index < state.size / 2 and 1 or -1, old)
  end
  state.known = {}
  state:_lessen(b, 1, weight)
end

-- Removes the newest `units` units, which are fewer than all.
function methods._cut(state, units)
  local own = min(units, state.units)
  state.units, state.total, units = state.units - own, state.total - own, units - own
  local counts, sums, gone, ms, old = state.counts, state.sums, 0
  while units > 0 and units >= sums[1] do
    gone, units = gone + counts[1], units - sums[1]
    state:_lessen(1, counts[1], sums[1])
  end
  local left = units
  if left > 0 and counts[1] == sums[1] then
    state:_lessen(1, left, left)
    gone, left = gone + left, 0
  elseif left > 0 then
    local count, most = 0, counts[1]
    while left > 0 and not old and count < most do
      local found = state:_read(gone + count, gone + min(count + CHUNK, most) - 1)
      for _, text in ipairs(found) do
        ms, old = pair(text)
        if old > left then break end
        count, left, old = count + 1, left - old
        if left == 0 then break end
      end
      -- Entries that the blocks promise are missing: somebody else changed the key.
      if #found == 0 then break end
    end
    if not old then left = 0 end
    state:_lessen(1, count, units)
    gone = gone + count
  end
  if gone == 0 and left == 0 then return end
  state.known = {}
  local head = state.head and 1 or 0
  if gone > 0 and state.sorted then
    free('ZREMRANGEBYRANK', state.key, -gone - head, -1 - head)
  elseif gone > 0 then
    -- The head goes with them, and `save` writes it again.
    free('LTRIM', state.key, gone + head, -1)
    state.head = false
  end
  if left > 0 then state:_write(0, ms, old, old - left) end
end

-- Applies a change. next: { restart = units that replace all charges, or false; cost = units charged at the ms `clock`;
-- longest, largest }, or { ms, weight = units that are left at that ms }, or { cut = units to remove, the newest first
-- }, or { none = true } to delete the log.
function log.apply(state, next)
  clean(state)
  if next.none then
    state:_forget()
  elseif next.ms then
    state:_set(next.ms, next.weight)
  elseif next.cut then
    state:_cut(next.cut)
  else
    if next.restart then
      state:_forget()
      state.newest, state.units, state.total = next.clock, next.restart, next.restart
    end
    if next.cost > 0 then
      if next.clock > state.newest then
        state:_push()
        state.newest = next.clock
      end
      state.units, state.total = state.units + next.cost, state.total + next.cost
    end
    state.longest, state.largest = next.longest, next.largest
    state:_trim()
  end
  return state
end

function log.save(key, _, state, ttl)
  if state.total == 0 then return end
  local parts = { format('%d %d %d %d', state.longest, state.largest, state.newest, state.units) }
  for b, count in ipairs(state.counts) do parts[b + 1] = written(count, state.sums[b], count) end
  local head = concat(parts, ' ')
  if state.sorted then
    if state.head and state.head ~= head then free('ZREM', key, state.head) end
    call('ZADD', key, format('%d', state.newest), head)
  elseif state.head then
    call('LSET', key, 0, head)
  else
    call('LPUSH', key, head)
  end
  state.head = head
  call('PEXPIRE', key, ttl)
end

return log
