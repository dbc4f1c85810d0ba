-- The forms in which limit state is kept in Redis. A shape opens the state of a key once per
-- call, applies what decisions leave behind, and saves once. Joined in front of the gate by
-- src/limit/algo/mod.rs; the algorithms see only what `open` returns.
--
-- cells  whole numbers as text, readable in redis-cli; state is an array of them
-- log    time stamps, newest first, as a list or as a sorted set; state answers `at(i)`
-- leases members with an expiry each, a sorted set; state answers `live(now)` and `holds(id)`
local call = redis.call
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

-- next: { first = stamp, count = n, keep = newest kept, clear = true } or { first, count, remove = true }
local log = {}

function log.open(key, rule)
  local sorted = rule[3] == 1
  local kind = call('TYPE', key).ok
  local state = { fresh = {}, read = {}, sorted = sorted, gone = kind ~= (sorted and 'zset' or 'list') }
  state.dirty = state.gone and kind ~= 'none'
  function state.at(i)
    local fresh = #state.fresh
    if i < fresh then return state.fresh[fresh - i] end
    if state.gone then return nil end
    local place = i - fresh
    if state.read[place] == nil then
      local found
      if sorted then found = call('ZREVRANGE', key, place, place)[1] else found = call('LINDEX', key, place) end
      state.read[place] = tonumber(found or nil) or false
    end
    return state.read[place] or nil
  end
  return state
end

local function flush(key, state)
  if state.dirty then
    call('DEL', key)
    state.dirty = false
  end
  local args = {}
  for _, stamp in ipairs(state.fresh) do
    local text = format('%d', stamp)
    if state.sorted then args[#args + 1] = text end
    args[#args + 1] = text
    if #args >= 1000 then
      call(state.sorted and 'ZADD' or 'LPUSH', key, unpack(args))
      args = {}
    end
  end
  if #args > 0 then call(state.sorted and 'ZADD' or 'LPUSH', key, unpack(args)) end
  if #state.fresh > 0 then state.gone = false end
  state.fresh, state.read = {}, {}
end

function log.apply(state, next, key)
  if next.remove then
    flush(key, state)
    for stamp = next.first, next.first + next.count - 1 do
      if state.sorted then call('ZREM', key, format('%d', stamp)) else call('LREM', key, 1, format('%d', stamp)) end
    end
    return state
  end
  if next.clear then
    state.fresh, state.read, state.dirty, state.gone = {}, {}, true, true
  end
  for stamp = next.first, next.first + next.count - 1 do state.fresh[#state.fresh + 1] = stamp end
  state.keep = next.keep
  return state
end

function log.save(key, rule, state, ttl)
  flush(key, state)
  if state.keep then
    if state.sorted then
      call('ZREMRANGEBYRANK', key, 0, -state.keep - 1)
    else
      call('LTRIM', key, 0, state.keep - 1)
    end
  end
  call('PEXPIRE', key, ttl)
end

-- next: { add = id, count = n, expiry = ms } or { drop = id, count = n } or { renew = id, count = n, expiry = ms }
local leases = {}

function leases.open(key)
  if call('TYPE', key).ok ~= 'zset' then call('DEL', key) end
  local state, purged = {}, nil
  function state.live(now)
    if purged ~= now then
      call('ZREMRANGEBYSCORE', key, '-inf', now)
      purged = now
    end
    return call('ZCARD', key)
  end
  function state.holds(id)
    return call('ZSCORE', key, format('%d', id)) and true or false
  end
  function state.first()
    local found = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    return tonumber(found[2])
  end
  return state
end

function leases.apply(state, next, key)
  for id = next.id, next.id + next.count - 1 do
    local member = format('%d', id)
    if next.drop then call('ZREM', key, member) else call('ZADD', key, next.expiry, member) end
  end
  return state
end

function leases.save(key, rule, state, ttl)
  call('PEXPIRE', key, ttl)
end

local shapes = { cells = cells, log = log, leases = leases }
