-- The shape `cells`: integers as text, readable in redis-cli. The state is an array of them, with `others` as described
-- in lua/records.lua.
--
-- A shape is the representation of a state in Redis. It opens the state of a key once per call, applies the changes of
-- decisions if they are not the state itself, and saves the state once. Algorithms only see what `open` returns. The
-- other shapes are log.lua, leases.lua and tenants.lua.
local match, gmatch, format, rep, concat = string.match, string.gmatch, string.format, string.rep, table.concat

-- Stored numbers are less than this. A larger one, written by somebody else, would not be an exact integer.
local NUMBER_LIMIT = 2 ^ 53
-- Most numbers of a record (those of lua/sliding_window.lua have three and up to 64 counters), digits of a number, and
-- bytes of a state: ` | `, a time and a space before each record.
local FIELDS_MAX, DIGITS = 3 + 64, 16
local TEXT_MAX = (OTHERS + 1) * (4 + DIGITS + FIELDS_MAX * (DIGITS + 1))

local cells = { TEXT_MAX = TEXT_MAX }

-- Returns the numbers of a text.
local function numbers(text)
  local array, size = {}, 0
  for digits in gmatch(text, '%d+') do
    size = size + 1
    array[size] = digits + 0
  end
  return array
end

-- Reports whether a record has a valid number of fields. Records with more than five have the marks of lua/refill.lua.
local function fits(record, width)
  local size = #record
  for i = 1, size do
    if record[i] >= NUMBER_LIMIT then return false end
  end
  return size > 0 and (not width or size == width or size > 5 and size <= 15 and size % 2 == 1)
end

-- Parses several records, or one with marks. Returns false for any other text.
local function several(text, width)
  if not match(text, '^[%d ]+$') and not match(text, '^[%d ]+ |[%d |]+$') then return false end
  local state
  for part in gmatch(text, '[^|]+') do
    local record = numbers(part)
    if state then record.drop_at = table.remove(record, 1) end
    if not fits(record, width) then return false end
    if state then
      state.others = state.others or {}
      if #state.others == OTHERS then return false end
      state.others[#state.others + 1] = record
    else
      state = record
    end
  end
  return state
end

-- Opens a state. Almost always it is a single record with the basis of the rule; then only its other numbers are
-- parsed. Adding 0 converts digits to a number without the call of a function. A longer text was written by somebody
-- else; reading all of it would take long.
function cells.open(_, rule, text)
  if not text or #text > TEXT_MAX then return false end
  local basis = rule.basis
  if basis then
    local a, b, c = match(text, basis.pattern)
    if a then
      a, b, c = a + 0, b + 0, basis[1] or c + 0
      if a < NUMBER_LIMIT and b < NUMBER_LIMIT and c < NUMBER_LIMIT then return { a, b, c, basis[2], basis[3] } end
    end
  end
  local width = rule.fields
  if not width and match(text, '^[%d ]+$') then
    local record = numbers(text)
    return fits(record) and record
  end
  return several(text, width)
end

local function written(record)
  local parts = {}
  for i = 1, #record do parts[i] = format('%d', record[i]) end
  return concat(parts, ' ')
end

-- Returns a state as text. `%d` is exact for these numbers, whereas `..` and tostring keep only 14 digits.
function cells.text(rule, state)
  local basis, text = rule.basis, nil
  if basis and not state[6] then
    text = format(basis.format, state[1], state[2], state[3])
  else
    text = written(state)
  end
  if state.others then
    for _, record in ipairs(state.others) do
      text = text .. format(' | %d ', record.drop_at) .. written(record)
    end
  end
  return text
end

function cells.save(key, rule, state, ttl)
  -- Redis would format the number with `%.17g`, which takes several times as long.
  call('SET', key, cells.text(rule, state), 'PX', format('%d', ttl))
end

-- Prepares the pattern and the format for records with this basis: the numbers that follow the first two. Without a
-- basis, they are for records of three numbers, none of which is the same in all.
function cells.basis(basis, width)
  if not width then return false end
  basis = basis or {}
  local fixed = #basis
  local text = format(rep(' %d', fixed), basis[1], basis[2], basis[3])
  basis.pattern = '^(%d+)' .. rep(' (%d+)', width - fixed - 1) .. text .. '$'
  basis.format = '%d' .. rep(' %d', width - fixed - 1) .. text
  return basis
end

return cells
