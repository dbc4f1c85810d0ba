-- The forms in which limit state is kept in Redis. A shape opens the state of a key once per
-- call, applies what decisions leave behind, and saves once. Joined in front of the gate by
-- src/limit/algo/mod.rs; the algorithms see only what `open` returns.
--
-- cells  whole numbers as text, readable in redis-cli; state is an array of them
-- log    time stamps, newest first, as a list or as a sorted set (third parameter of the rule); state
--        answers `at(i)` and `above(stamp)`
-- leases members with an expiry each, a sorted set; state answers `at(i)`, `live(now)` and `holds(id)`
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

-- `unpack` holds what it unpacks on a stack of 8000.
local CHUNK = 1000

-- Reads by index, for the shapes below. A key of a form they cannot read counts as absent, and is
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

-- A stored whole number, false for anything else.
local function whole(text)
  return text and match(text, '^%d+$') and tonumber(text) or false
end

-- The log is stored newest first: of the stored stamps the newest `skip` no longer count, those
-- pushed in this call (`fresh`, ascending) come before them, and only the `keep` newest of all
-- count. A key keeps the form it was made in, list or sorted set, until it expires, so that a
-- change of the form forgets nothing.
local log = {}
local log_state = {}

function log.open(key, rule, text)
  local state = { key = key, sorted = rule[3] == 1, foreign = text and true or false }
  state.at, state.above = log_state.at, log_state.above
  log_state.forget(state)
  return state
end

-- What was read holds no more.
function log_state.forget(state)
  state.fresh, state.top, state.skip, state.keep = {}, 0, 0, huge
  state.places, state.edges, state.size = {}, {}, nil
end

-- The i-th newest stamp, from 0; false when there is none.
function log_state.at(state, i)
  local top = state.top
  if i >= state.keep then return false end
  if i < top then return state.fresh[top - i] end
  local place = state.skip + i - top
  local found = state.places[place]
  if found == nil then
    found = log_state.stored(state, place)
    state.places[place] = found
  end
  return found
end

function log_state.stored(state, place)
  if state.foreign then return false end
  local sorted = state.sorted
  local found
  if sorted then found = read(state, 'ZREVRANGE', place, place) else found = read(state, 'LINDEX', place) end
  -- It turned out to be kept in the other form.
  if state.sorted ~= sorted then return log_state.stored(state, place) end
  if sorted and found then found = found[1] end
  return whole(found)
end

-- How many stamps are `stamp` or newer. `recent` ones are looked for from the newest on, old ones
-- from the oldest on: where the border most often is.
function log_state.above(state, stamp, recent)
  -- Tells the form, if nothing has yet.
  if not state:at(0) then return 0 end
  if state.sorted then
    local fresh, top = state.fresh, state.top
    local newer = top > 0 and fresh[1] >= stamp and top or 0
    while newer < top and fresh[top - newer] >= stamp do newer = newer + 1 end
    if newer == top then
      state.edges[stamp] = state.edges[stamp] or call('ZCOUNT', state.key, format('%d', stamp), '+inf')
      newer = newer + max(state.edges[stamp] - state.skip, 0)
    end
    return min(newer, state.keep)
  end
  state.size = state.size or (state.foreign and 0 or call('LLEN', state.key))
  recent = recent or false
  local low, high = 0, min(state.top + max(state.size - state.skip, 0), state.keep)
  local step = 1
  while low < high do
    local probe = recent and min(low + step, high) - 1 or max(high - step, low)
    local found = state:at(probe)
    local newer = found and found >= stamp
    if newer then low = probe + 1 else high = probe end
    -- Past the border: what is left lies within the last step.
    if recent ~= newer then break end
    step = step * 2
  end
  while low < high do
    local middle = floor((low + high) / 2)
    local found = state:at(middle)
    if found and found >= stamp then low = middle + 1 else high = middle end
  end
  return low
end

-- next: { drop = newest to go, first = stamp, count = stamps from it on, keep = newest to stay }
--    or { from = i, to = j }: the i-th newest to before the j-th go
function log.apply(state, next)
  if next.from then
    log_state.remove(state, next.from, next.to)
    return state
  end
  local fresh, top = state.fresh, state.top
  local recent = min(next.drop, top)
  state.skip = state.skip + next.drop - recent
  top = top - recent
  -- Stamps that would not stay are not pushed.
  for stamp = next.first + max(next.count - next.keep, 0), next.first + next.count - 1 do
    top = top + 1
    fresh[top] = stamp
  end
  state.top, state.keep = top, next.keep
  return state
end

local function push(state, command, stamps, first, last)
  for from = first, last, CHUNK do
    local args, size = {}, 0
    for i = from, min(from + CHUNK - 1, last) do
      local text = format('%d', stamps[i])
      if state.sorted then
        size = size + 1
        args[size] = text
      end
      size = size + 1
      args[size] = text
    end
    call(command, state.key, unpack(args))
  end
end

function log_state.flush(state)
  local sorted, skip, keep, top = state.sorted, state.skip, state.keep, state.top
  clean(state)
  if skip > 0 then
    if sorted then call('ZREMRANGEBYRANK', state.key, -skip, -1) else call('LTRIM', state.key, skip, -1) end
  end
  push(state, sorted and 'ZADD' or 'LPUSH', state.fresh, max(top - keep, 0) + 1, top)
  local whole_list = not sorted and state.size and state.size - skip + top <= keep
  if keep < huge and not whole_list then
    if sorted then call('ZREMRANGEBYRANK', state.key, 0, -keep - 1) else call('LTRIM', state.key, 0, keep - 1) end
  end
  log_state.forget(state)
end

-- LREM passes over all newer stamps for each one that goes, so many at once are cut out instead:
-- the newer ones are taken off and pushed again.
function log_state.remove(state, from, to)
  local stamps = {}
  if to - from <= 16 then
    for i = from, to - 1 do stamps[#stamps + 1] = format('%d', state:at(i)) end
  end
  log_state.flush(state)
  if state.sorted then
    call('ZREMRANGEBYRANK', state.key, -to, -from - 1)
  elseif from > 0 and to - from <= 16 then
    for i = 1, #stamps do call('LREM', state.key, 1, stamps[i]) end
  else
    local newer = {}
    if from > 0 then
      for i, stamp in ipairs(call('LRANGE', state.key, 0, from - 1)) do newer[from + 1 - i] = tonumber(stamp) end
    end
    call('LTRIM', state.key, to, -1)
    push(state, 'LPUSH', newer, 1, from)
    log_state.forget(state)
  end
end

function log.save(key, _, state, ttl)
  log_state.flush(state)
  call('PEXPIRE', key, ttl)
end

-- Leases: members scored by their expiry. Those added in this call (`fresh`) expire last of all,
-- at `expiry`.
local leases = {}
local leases_state = {}

function leases.open(key, _, text)
  local state = { key = key, foreign = text and true or false, now = 0 }
  state.at, state.live, state.holds = leases_state.at, leases_state.live, leases_state.holds
  leases_state.forget(state)
  return state
end

function leases_state.forget(state)
  state.fresh, state.top, state.expiry, state.places, state.alive = {}, 0, 0, {}, nil
end

-- The i-th latest expiry, from 0; false when there is none.
function leases_state.at(state, i)
  if i < state.top then return state.expiry end
  local place = i - state.top
  local found = state.places[place]
  if found == nil then
    local pair = not state.foreign and read(state, 'ZREVRANGE', place, place, 'WITHSCORES')
    found = pair and whole(pair[2])
    state.places[place] = found
  end
  return found
end

function leases_state.live(state, now)
  -- Tells the form, if nothing has yet.
  if not state:at(0) then return 0 end
  if not state.alive then
    state.alive = state.foreign and 0 or call('ZCOUNT', state.key, format('(%d', now), '+inf')
  end
  return state.alive + state.top
end

-- Whether a member is held at `now`.
function leases_state.holds(state, id, now)
  for i = 1, state.top do
    if state.fresh[i] == id then return true end
  end
  local expiry = not state.foreign and read(state, 'ZSCORE', format('%d', id))
  return expiry and tonumber(expiry) > now
end

local function each(state, command, ids, score)
  for from = 1, #ids, CHUNK do
    local args, size = {}, 0
    for i = from, min(from + CHUNK - 1, #ids) do
      if score then
        size = size + 1
        args[size] = format('%d', score)
      end
      size = size + 1
      args[size] = ids[i]
    end
    call(command, state.key, unpack(args))
  end
end

function leases_state.flush(state)
  clean(state)
  for i = 1, state.top do state.fresh[i] = format('%d', state.fresh[i]) end
  each(state, 'ZADD', state.fresh, state.expiry)
  leases_state.forget(state)
end

-- next: { now, expiry = the latest that may be, first = id, count = ids from it on, act = 'add', 'renew', 'drop' }
function leases.apply(state, next)
  local expiry = next.expiry
  state.now = next.now
  if (state:at(0) or 0) > expiry then
    leases_state.flush(state)
    each(state, 'ZADD', call('ZRANGEBYSCORE', state.key, format('(%d', expiry), '+inf'), expiry)
    leases_state.forget(state)
  end
  if next.count == 0 then return state end
  if next.act == 'add' and (state.top == 0 or state.expiry == expiry) then
    for id = next.first, next.first + next.count - 1 do
      state.top = state.top + 1
      state.fresh[state.top] = id
    end
    state.expiry = expiry
    return state
  end
  leases_state.flush(state)
  local ids = {}
  for id = next.first, next.first + next.count - 1 do ids[#ids + 1] = format('%d', id) end
  if next.act == 'drop' then each(state, 'ZREM', ids) else each(state, 'ZADD', ids, expiry) end
  leases_state.forget(state)
  return state
end

function leases.save(key, _, state, ttl)
  leases_state.flush(state)
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', state.now))
  call('PEXPIRE', key, ttl)
end

local shapes = { cells = cells, log = log, leases = leases }
