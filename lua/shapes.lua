-- The forms in which limit state is kept in Redis. A shape opens the state of a key once per
-- call, applies what decisions leave behind, and saves once. Joined in front of the gate by
-- src/limit/algo/mod.rs; the algorithms see only what `open` returns.
--
-- cells  whole numbers as text, readable in redis-cli; state is an array of them, and `others` as
--        lua/records.lua says
-- log    lua/shapes/log.lua: charges by time, a list or a sorted set
-- leases lua/shapes/leases.lua: holders with an expiry each, a sorted set
local call, try = redis.call, redis.pcall
local floor, max, min, huge = math.floor, math.max, math.min, math.huge
local tonumber, match, gmatch, format, concat = tonumber, string.match, string.gmatch, string.format, table.concat

-- `%d` is exact for these numbers, where `..` and tostring keep 14 digits.
local FORMAT = { '%d', '%d %d', '%d %d %d', '%d %d %d %d', '%d %d %d %d %d' }
local PATTERN = {
  '^(%d+)$', '^(%d+) (%d+)$', '^(%d+) (%d+) (%d+)$', '^(%d+) (%d+) (%d+) (%d+)$',
  '^(%d+) (%d+) (%d+) (%d+) (%d+)$',
}

local cells = {}

-- The numbers of a text that has nothing but numbers.
local function numbers(text)
  local array, size = {}, 0
  for digits in gmatch(text, '%d+') do
    size = size + 1
    array[size] = tonumber(digits)
  end
  return array
end

-- More than five are those of lua/refill.lua with marks, of which there are a few.
local function fits(record, width)
  local size = #record
  return size > 0 and (not width or size == width or size > 5 and size <= 15 and size % 2 == 1)
end

-- Several records, or one with marks; false if they are no such thing.
local function several(text, width)
  if not match(text, '^[%d ]+$') and not match(text, '^[%d ]+ |[%d |]+$') then return false end
  local state
  for part in gmatch(text, '[^|]+') do
    local record = numbers(part)
    if state then record.till = table.remove(record, 1) end
    if not fits(record, width) then return false end
    if state then
      state.others = state.others or {}
      state.others[#state.others + 1] = record
    else
      state = record
    end
  end
  return state
end

function cells.open(_, rule, text)
  if not text then return false end
  local width = rule.fields
  if width then
    local a, b, c, d, e = match(text, PATTERN[width])
    if a then return { tonumber(a), tonumber(b), tonumber(c), tonumber(d), tonumber(e) } end
  elseif match(text, '^[%d ]+$') then
    local state = numbers(text)
    return #state > 0 and state
  end
  return several(text, width)
end

function cells.apply(_, next)
  return next
end

local function written(record, width)
  if width and #record <= 5 then return format(FORMAT[width], record[1], record[2], record[3], record[4], record[5]) end
  local parts = {}
  for i = 1, #record do parts[i] = format('%d', record[i]) end
  return concat(parts, ' ')
end

function cells.save(key, rule, state, ttl)
  local text = written(state, rule.fields)
  if state.others then
    for _, record in ipairs(state.others) do
      text = text .. format(' | %d ', record.till) .. written(record, rule.fields)
    end
  end
  call('SET', key, text, 'PX', ttl)
end

-- Reads for the shapes in lua/shapes. A key of a form they cannot read counts as absent, and is
-- deleted once there is something to write.
local function read(state, command, ...)
  local found = try(command, state.key, ...)
  if type(found) ~= 'table' or not found.err then return found end
  local kind = call('TYPE', state.key).ok
  if kind == 'list' and state.sorted or kind == 'zset' and state.sorted == false then
    state.sorted = not state.sorted
    return nil
  end
  if kind == 'zset' or kind == 'list' and state.sorted ~= nil then error(found.err) end
  state.foreign = true
  return nil
end

local function clean(state)
  if state.foreign then call('DEL', state.key) end
  state.foreign = false
end

local shapes = { cells = cells }
