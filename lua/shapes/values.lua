-- The shape `values`: a sorted set. The member with the lowest score is the head, `LONGEST/LARGEST/START`: the longest
-- window and the largest limit that used the state, and the start of the window. Then one member for each value: its
-- hash, 16 digits. Its score is twice the ms of its last request, and 1 more if several requests have used it.
--
-- state  longest, largest and start, and the methods below. They read the set itself, as `apply` changes it at once;
--        `save` only writes the head.
local read, clean = native()
local tonumber, match, format, max, floor = tonumber, string.match, string.format, math.max, math.floor
local HEAD = '-9007199254740992'
-- Most bytes of the head: three numbers.
local HEAD_MAX = 3 * 17

local values, methods = {}, {}
local meta = { __index = methods }

local function whole(number)
  return format('%d', number)
end

function values.open(key, _, text)
  local state = setmetatable({
    key = key, foreign = text and true or false, head = false, longest = 0, largest = 0, start = 0,
  }, meta)
  local head = not text and read(state, 'ZRANGE', 0, 0)
  head = head and head[1]
  local longest, largest, start = match(head and #head <= HEAD_MAX and head or '', '^(%d+)/(%d+)/(%d+)$')
  longest, largest, start = tonumber(longest), tonumber(largest), tonumber(start)
  if longest and longest < EXACT and largest < EXACT and start < EXACT then
    state.head, state.longest, state.largest, state.start = head, longest, largest, start
  elseif head then
    state.foreign = true
  end
  return state
end

-- Reports whether the key exists in Redis.
function methods.is_kept(state)
  return state.head
end

-- Returns how many values had their last request at `edge` or later.
function methods.count_since(state, edge)
  if not state.head then return 0 end
  return call('ZCOUNT', state.key, whole(max(2 * edge, 0)), '+inf')
end

-- Returns the time of the last request of the n-th newest value, counted from 0; false if there are fewer.
function methods.nth_newest(state, n)
  local found = state.head and call('ZREVRANGE', state.key, whole(n), whole(n), 'WITHSCORES')
  local score = found and found[2] and tonumber(found[2])
  return score and score >= 0 and floor(score / 2)
end

-- Returns twice the time of the last request of a value, and 1 more if several have used it; false if there is none.
function methods.score(state, value)
  local score = state.head and call('ZSCORE', state.key, whole(value))
  return score and tonumber(score)
end

-- Writes the head, so that the key exists.
local function write_head(state)
  local head = format('%d/%d/%d', state.longest, state.largest, state.start)
  if head == state.head then return end
  if state.head then free('ZREM', state.key, state.head) end
  call('ZADD', state.key, HEAD, head)
  state.head = head
end

-- Applies a change. next: { moved_to = ms to which later times are moved, or false; value and ms of the request, or
-- false; is_new; kept_since; longest, largest, start }, or { remove = value }
function values.apply(state, next)
  clean(state)
  local key = state.key
  if next.remove then
    free('ZREM', key, whole(next.remove))
    if call('ZCARD', key) <= 1 then
      free('UNLINK', key)
      state.head, state.longest, state.largest, state.start = false, 0, 0, 0
    end
    return state
  end
  state.longest, state.largest, state.start = next.longest, next.largest, next.start
  write_head(state)
  if next.moved_to then
    local latest = whole(2 * next.moved_to + 1)
    local late = call('ZRANGEBYSCORE', key, '(' .. latest, '+inf', 'WITHSCORES')
    for i = 1, #late, 2 do call('ZADD', key, latest, late[i]) end
  end
  if next.value then
    call('ZADD', key, whole(2 * next.ms + (next.is_new and 0 or 1)), whole(next.value))
    if next.is_new then
      free('ZREMRANGEBYSCORE', key, '0', '(' .. whole(max(2 * next.kept_since, 0)))
      local surplus = call('ZCARD', key) - 1 - state.largest
      if surplus > 0 then free('ZREMRANGEBYRANK', key, 1, surplus) end
    end
  end
  return state
end

function values.save(key, _, state, ttl)
  if state.head then call('PEXPIRE', key, ttl) end
end

return values
