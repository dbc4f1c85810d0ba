-- The shape `leases`: a sorted set. A lease of several units has a member for each bit of its number: one of five units
-- has members of weight 1 and 4. The member is the tag plus the number of the bit; the score is the expiry plus the bit
-- times RADIX. So ZCOUNT counts the units held at any time. One more member, `lease`, has the longest lease time as
-- a negative score.
--
-- state  longest, and the methods whose name has no leading `_`
local read = native()
local floor, max, tonumber, match, format = math.floor, math.max, tonumber, string.match, string.format
-- Larger than any expiry until the year 4199, so that the scores of one bit are above those of the bit before. The
-- scores of the highest bit are still exact.
local RADIX = 2 ^ 46
-- No number of units has more bits.
local BITS = 53
-- Most members of each bit that one decision removes, and that it corrects, so that no decision takes long after many
-- have expired together.
local CLEANUP_MAX = 256
local ipairs = ipairs
local leases, methods = {}, {}
local meta = { __index = methods }

local function whole(number)
  return format('%d', number)
end

local function empty(state)
  state.longest, state.bits, state.stored = 0, 0, false
  methods._forget(state)
end

-- Clears the cache of what was read, after a change.
function methods._forget(state)
  state.alive, state.free, state.last = {}, {}, nil
end

function leases.open(key, _, text)
  local state = setmetatable({ key = key, foreign = text and true or false }, meta)
  empty(state)
  if text then return state end
  local longest = read(state, 'ZSCORE', 'lease')
  longest = longest and match(longest, '^-(%d+)$')
  if longest then
    state.longest, state.stored = tonumber(longest), true
    state:_read_bits()
  end
  -- The key does not exist, or contains something else.
  if not longest or state.longest >= RADIX or state.bits > BITS then
    empty(state)
    state.foreign = true
  end
  return state
end

-- Finds the number of bits: the last member has the highest one.
function methods._read_bits(state)
  local top = call('ZREVRANGE', state.key, 0, 0, 'WITHSCORES')
  local score = tonumber(top[2]) or -1
  state.bits = score < 0 and 0 or floor(score / RADIX) + 1
  if state.bits == 1 then state.last = score end
end

-- Reports whether the key exists in Redis.
function methods.is_kept(state)
  return state.stored
end

-- Returns the number of units held at `now`.
function methods.live(state, now)
  local live = state.alive[now]
  if live then return live end
  live = 0
  for bit = 0, state.bits - 1 do
    local base = bit * RADIX
    live = live + 2 ^ bit * call('ZCOUNT', state.key, '(' .. whole(base + now), '(' .. whole(base + RADIX))
  end
  state.alive[now] = live
  return live
end

-- Returns the latest expiry; 0 if there is none.
function methods.latest(state)
  if state.last then return state.last end
  local latest = 0
  for bit = 0, state.bits - 1 do
    local base = bit * RADIX
    local last = call('ZREVRANGEBYSCORE', state.key, '(' .. whole(base + RADIX), whole(base), 'WITHSCORES', 'LIMIT', 0, 1)
    latest = max(latest, (tonumber(last[2]) or base) - base)
  end
  state.last = latest
  return latest
end

-- Returns when no more than `units` will be held, if no request arrives or ends.
function methods.free_at(state, units, now)
  local free = state.free[units]
  if free then return free end
  if state.bits == 1 then
    free = tonumber(call('ZREVRANGE', state.key, units, units, 'WITHSCORES')[2]) or now
    state.free[units] = free
    return free
  end
  -- Each bit alone gives a lower bound of that time. If all leases have the same size, the bound is exact; otherwise
  -- bisection follows.
  local low, high, above = now, state:latest(), 0
  for bit = state.bits - 1, 0, -1 do
    local base, index = bit * RADIX, above + floor(units / 2 ^ bit)
    local score = tonumber(call('ZREVRANGE', state.key, index, index, 'WITHSCORES')[2])
    if score and score > base + low then low = score - base end
    above = above + call('ZCOUNT', state.key, whole(base), '(' .. whole(base + RADIX))
  end
  if low > now and state:live(low) <= units then high = low end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if state:live(middle) <= units then high = middle else low = middle end
  end
  state.free[units] = high
  return high
end

-- Returns the units of the lease with this tag at `now`, and its expiry.
function methods.find_lease(state, tag, now)
  local held, till = 0, now
  for bit = 0, state.bits - 1 do
    local score = call('ZSCORE', state.key, whole(tag + bit))
    local expiry = score and tonumber(score) - bit * RADIX or 0
    if expiry > now then held, till = held + 2 ^ bit, expiry end
  end
  return held, till
end

function methods._shorten_expiries(state, base, latest_allowed)
  local from, to = '(' .. whole(base + latest_allowed), '(' .. whole(base + RADIX)
  local ids = call('ZRANGEBYSCORE', state.key, from, to, 'LIMIT', 0, CLEANUP_MAX)
  if #ids == 0 then return end
  local pairs, score = {}, whole(base + latest_allowed)
  for i, id in ipairs(ids) do pairs[2 * i - 1], pairs[2 * i] = score, id end
  call('ZADD', state.key, unpack(pairs))
end

function methods._remove_expired(state, base, now)
  local ids = call('ZRANGEBYSCORE', state.key, whole(base), whole(base + now), 'LIMIT', 0, CLEANUP_MAX)
  if #ids > 0 then free('ZREM', state.key, unpack(ids)) end
end

-- Applies a change. next: { now, longest, drop_others = there are no other leases, tag, units, expiry }, after which
-- `tag` holds `units` until `expiry`; or { none = true }, after which no lease is held.
function leases.apply(state, next)
  if next.none or next.drop_others or state.foreign then
    -- The set of expired leases may be large; UNLINK frees it in the background.
    if state.stored or state.foreign then free('UNLINK', state.key) end
    state.foreign = false
    empty(state)
    if next.none then return state end
  end
  local now, longest, latest_allowed = next.now, next.longest, next.now + next.longest
  local late = state:latest() > latest_allowed
  for bit = 0, state.bits - 1 do
    if late then state:_shorten_expiries(bit * RADIX, latest_allowed) end
    state:_remove_expired(bit * RADIX, now)
  end
  local added, removed, rest, bit = {}, {}, next.units, 0
  if not state.stored or longest > state.longest then added = { whole(-longest), 'lease' } end
  while rest > 0 or bit < state.bits do
    local id = whole(next.tag + bit)
    if rest % 2 == 1 then
      added[#added + 1] = whole(bit * RADIX + next.expiry)
      added[#added + 1] = id
    else
      removed[#removed + 1] = id
    end
    rest, bit = floor(rest / 2), bit + 1
  end
  if #removed > 0 then free('ZREM', state.key, unpack(removed)) end
  if #added > 0 then call('ZADD', state.key, unpack(added)) end
  state.longest, state.stored = longest, true
  state:_forget()
  state:_read_bits()
  return state
end

function leases.save(key, _, state, ttl)
  if state.stored then call('PEXPIRE', key, ttl) end
end

return leases
