-- Functions that the shapes `log` and `leases` share. `read` calls a command for a key; a key of another Redis type
-- counts as absent. `clean` deletes such a key before something is written.
local try, type = redis.pcall, type

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
  if state.foreign then free('UNLINK', state.key) end
  state.foreign = false
end

return read, clean
