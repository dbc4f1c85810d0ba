-- Counts the gateways that share a store. Each gateway reports every second; the clock of the server applies.
-- src/limiting/store/redis/heartbeat.rs calls this script.
--
-- KEYS[1]  a sorted set with two kinds of members: the name of a gateway, with the time of its last report in ms as the
--          score; and `=N`, with minus the time at which N gateways were last counted
-- ARGV     the name of this gateway, how long a report counts in ms, how long a count is kept in ms, and `report` or
--          `leave`
--
-- Returns how many gateways report now, and the most that reported at the same time while counts are kept.
local key, name = KEYS[1], ARGV[1]
local life, memory = tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end

-- The first write removes members, so Redis allows it even when its memory is full, and then checks no later write of
-- this script. Reports must succeed on a full server: gateways that do not know of each other would each admit a whole
-- limit. They take little memory, 32 bytes per gateway. The range contains the counts that are too old, and then the
-- gateways that no longer report.
redis.call('ZREMRANGEBYSCORE', key, '(' .. text(memory - now), text(now - life))
-- The clock may have been set back. Members from the future would otherwise remain until that time comes.
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
    -- More gateways were counted just now, and that count is kept for longer.
    redis.call('ZREM', key, member)
  elseif count > most then
    most = count
  end
end
return {alive, math.min(most, 1000000)}
