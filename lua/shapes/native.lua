-- What shapes that are no text share: `read` and `clean`. A key of a form they cannot read counts as absent,
-- and is deleted once there is something to write.
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
