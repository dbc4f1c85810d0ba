-- `free` calls a command that only frees memory, like UNLINK.
--
-- Redis checks its memory only at the first write of a script. If the first write is one that frees memory, Redis
-- allows it even when the server is full, and then checks no later write: the script could create keys. So `free`
-- first calls a command that Redis refuses on a full server and that changes nothing: SETRANGE with an empty value.
-- If it is refused, `gate.lua` runs the decisions again for a full server.
local is_checked = false

local function free(...)
  if not is_checked then call('SETRANGE', KEYS[1] .. ':none', 0, '') end
  is_checked = true
  call(...)
end

