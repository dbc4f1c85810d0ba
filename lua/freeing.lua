-- `free` calls a command that only frees memory of a key, like UNLINK.
--
-- Redis checks its memory only at the first write of a script. If the first write is one that frees memory, Redis
-- allows it even when the server is full, and then checks no later write: the script could create keys. So `free`
-- first calls a command that Redis refuses on a full server, and that changes nothing. If it is refused, `gate.lua` runs
-- the decisions again for a full server. The command is for the key itself: a script may only use keys that were
-- declared, and in a cluster a further key, which does not exist, would stop decisions while its slot moves.
local is_checked = false

local function check_memory(key)
  local kind = call('TYPE', key).ok
  if kind == 'zset' then
    call('ZADD', key, 'XX', 0, '')
  elseif kind == 'list' then
    call('LSET', key, 0, call('LRANGE', key, 0, 0)[1])
  elseif kind == 'string' or kind == 'none' then
    call('SETRANGE', key, 0, '')
  else
    -- Somebody else wrote a key of another type: the command fails, too, if the server is not full.
    local reply = redis.pcall('SETRANGE', key, 0, '')
    if string.find(reply.err, 'OOM', 1, true) then error(reply) end
  end
end

local function free(command, key, ...)
  if not is_checked then check_memory(key) end
  is_checked = true
  call(command, key, ...)
end
