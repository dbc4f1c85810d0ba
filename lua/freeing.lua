-- `free` calls a command that takes no memory. A server that is full refuses the first write of a script,
-- and none behind it: before such a command goes one that changes nothing and is refused, or a key that
-- lets go of something would open the way to new keys.
local asked = false

local function free(...)
  if not asked then call('SETRANGE', KEYS[1] .. ':none', 0, '') end
  asked = true
  call(...)
end

