-- Counts the gateways that share a store: each reports itself every second, by the server's clock.
-- Called by src/limit/store/redis/gateways.rs.
--
-- KEYS[1]  the sorted set of gateways, scored by their last report
-- ARGV     the name of this gateway, how long a report counts in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life = tonumber(ARGV[2])
-- A server that is full refuses the first write of a script unless it takes no memory, and none behind it:
-- gateways that miss each other would take a whole limit each. A member is 32 bytes, and as many as gateways.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - life)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], life)
return redis.call('ZCARD', KEYS[1])
