-- Counts the gateways that share a store: each reports every second, by the server's clock.
-- Called by src/limit/store/redis/gateways.rs.
--
-- KEYS[1]  a sorted set of two kinds of members: the name of a gateway, scored by its last report in ms, and
--          `=N`, scored by minus the time at which N gateways were last counted
-- ARGV     the name of this gateway, how long a report counts in ms, how long a count is remembered in ms,
--          `report` or `leave`
--
-- Returns how many gateways report now, and the most that reported at the same time within the time remembered.
local key, name = KEYS[1], ARGV[1]
local life, memory = tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end

-- A server that is full refuses the first write of a script unless it takes no memory, and none behind it:
-- gateways that miss each other would take a whole limit each. A member is 32 bytes, and as many as gateways.
-- The range holds the counts that are too old and then the gateways that no longer report.
redis.call('ZREMRANGEBYSCORE', key, '(' .. text(memory - now), text(now - life))
-- The clock may have been set back: what is from the future would stay until it has come.
redis.call('ZREMRANGEBYSCORE', key, '(' .. text(now + life), '+inf')
for _, count in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. text(-now))) do
  redis.call('ZADD', key, text(-now), count)
end

if ARGV[4] == 'leave' then
  redis.call('ZREM', key, name)
else
  redis.call('ZADD', key, text(now), name)
end
local alive = redis.call('ZCOUNT', key, 0, '+inf')
redis.call('ZADD', key, text(-now), '=' .. alive)
redis.call('PEXPIRE', key, memory)

local most = alive
for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', '(0')) do
  local count = tonumber(string.sub(member, 2)) or 0
  if count < alive then
    -- At least as many were counted just now, which is remembered for longer.
    redis.call('ZREM', key, member)
  elseif count > most then
    most = count
  end
end
return {alive, math.min(most, 1000000)}
