-- The forms in which limit state is kept in Redis. A shape opens the state of a key once per
-- call, applies what decisions leave behind, and saves once. Joined in front of the gate by
-- src/limit/algo/mod.rs; the algorithms see only what `open` returns.
--
-- cells  whole numbers as text, readable in redis-cli; state is an array of them
-- log    lua/shapes/log.lua: charges by time, a list or a sorted set
-- leases lua/shapes/leases.lua: holders with an expiry each, a sorted set
local call, try = redis.call, redis.pcall
local floor, max, min, huge = math.floor, math.max, math.min, math.huge
local tonumber, match, gmatch, format, concat = tonumber, string.match, string.gmatch, string.format, table.concat

-- `%d` is exact for these numbers, where `..` and tostring keep 14 digits.
local FORMAT = { '%d', '%d %d', '%d %d %d', '%d %d %d %d' }
local PATTERN = { '^(%d+)$', '^(%d+) (%d+)$', '^(%d+) (%d+) (%d+)$', '^(%d+) (%d+) (%d+) (%d+)$' }

local cells = {}

function cells.open(key, rule, text)
  if not text then return false end
  local width = rule.fields
  if width then
    local a, b, c, d = match(text, PATTERN[width])
    return a and { tonumber(a), tonumber(b), tonumber(c), tonumber(d) } or false
  end
  if not match(text, '^[%d ]+$') then return false end
  local state, size = {}, 0
  for digits in gmatch(text, '%d+') do
    size = size + 1
    state[size] = tonumber(digits)
  end
  return state
end

function cells.apply(_, next)
  return next
end

function cells.save(key, rule, state, ttl)
  local text
  if rule.fields then
    text = format(FORMAT[rule.fields], state[1], state[2], state[3], state[4])
  else
    local parts = {}
    for i = 1, #state do parts[i] = format('%d', state[i]) end
    text = concat(parts, ' ')
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
