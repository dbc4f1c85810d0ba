-- The shape `tenants`: a sorted set. The member with the lowest score is the head, `COUNT WEIGHT|RECORDS`: the number
-- of tenants and the sum of their weights, and the records of the pool as the shape `cells` writes them. Then one
-- member for each tenant: its number, with its TAT in us as the score; and if its weight is not 1, `w` and its number,
-- with the negative weight.
--
-- state  a record of the pool, with `others`; none if the key does not exist. `tenants` has the methods below. What they
--        change is written by `save`; until then it is in `tats`, `weights` and `removed`.
local read, clean = native()
local cells = shape('cells')
local tonumber, pairs, ipairs, match, format = tonumber, pairs, ipairs, string.match, string.format
local insert, floor, min, max, huge = table.insert, math.floor, math.min, math.max, math.huge
local HEAD = '-9007199254740992'
local WEIGHT_MAX = 1000
-- Most bytes of the head: two numbers, and the text of the records.
local HEAD_MAX = 2 * 17 + cells.TEXT_MAX
-- Most members that one command removes.
local BATCH_MAX = 1000

local tenants, methods = { basis = cells.basis }, {}
local meta = { __index = methods }

local function whole(number)
  return format('%d', number)
end

-- Opens a state. `tats` has what is known of the TAT of a tenant: false if it has none. `written` has the tenants to be
-- written, and `removed` those to be removed.
function tenants.open(key, rule, text)
  local set = setmetatable({
    key = key, foreign = text and true or false, count = 0, weight = 0, tats = {}, weights = {}, written = {}, removed = {},
    swept = 0, idle = {},
  }, meta)
  local state = {}
  local head = not text and read(set, 'ZRANGE', 0, 0)
  head = head and head[1]
  local count, weight, records = match(head and #head <= HEAD_MAX and head or '', '^(%d+) (%d+)|(.+)$')
  local record = records and cells.open(key, rule, records)
  count, weight = tonumber(count), tonumber(weight)
  if record and count < EXACT and weight < EXACT then
    state, set.head, set.count, set.weight = record, head, count, weight
  elseif head then
    set.foreign = true
  end
  state.tenants, state.is_kept = set, tenants.is_kept
  return state
end

-- Reports whether the key exists in Redis.
function tenants.is_kept(state)
  return state.tenants.head
end

-- Returns the tenants with a TAT above `from` up to `to`: arrays of TAT, weight and number, by TAT.
function methods.between(set, from, to, except)
  local found = {}
  if set.head and to > 0 then
    local last = to == huge and '+inf' or whole(to)
    local members = call('ZRANGEBYSCORE', set.key, '(' .. whole(max(from, 0)), last, 'WITHSCORES')
    for i = 1, #members, 2 do
      local id = tonumber(match(members[i], '^%d+$'))
      if id and not set.written[id] and not set.removed[id] and id ~= except then
        insert(found, { floor(tonumber(members[i + 1])), set:weight_of(id), id })
      end
    end
  end
  for id in pairs(set.written) do
    local tat = set.tats[id]
    if tat > from and tat <= to and id ~= except then insert(found, { tat, set:weight_of(id), id }) end
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end

-- Returns the number and the weights of the tenants with a TAT above `edge`.
function methods.active(set, edge)
  if edge ~= set.edge then
    set.idle = edge > set.swept and set:between(set.swept, edge) or {}
    set.edge = edge
  end
  local count, weight = set.count, set.weight
  for _, idle in ipairs(set.idle) do count, weight = count - 1, weight - idle[2] end
  return count, weight
end

-- Returns the TAT of a tenant; false if it has none.
function methods.tat(set, id)
  local tat = set.tats[id]
  if tat == nil then
    local score = set.head and call('ZSCORE', set.key, whole(id))
    tat = score and floor(tonumber(score)) or false
    set.tats[id] = tat
  end
  return tat
end

function methods.weight_of(set, id)
  local weight = set.weights[id]
  if not weight then
    -- All weights are 1, or this one is written beside the TAT.
    local text = set.head and set.weight ~= set.count and call('ZSCORE', set.key, 'w' .. whole(id))
    weight = text and min(max(floor(-tonumber(text)), 1), WEIGHT_MAX) or 1
    set.weights[id] = weight
  end
  return weight
end

function methods._remove(set, id, weight)
  set.count, set.weight = set.count - 1, set.weight - weight
  set.tats[id], set.written[id], set.removed[id] = false, nil, true
end

-- Applies a change: tenants with a TAT up to `edge` are removed, and the tenant `id` gets a TAT, or is removed.
function methods._apply(set, change)
  set:active(change.edge)
  for _, idle in ipairs(set.idle) do set:_remove(idle[3], idle[2]) end
  set.swept, set.idle = change.edge == huge and 0 or max(set.swept, change.edge), {}
  local id = change.id
  if set:tat(id) then set:_remove(id, set:weight_of(id)) end
  if change.tat then
    set.count, set.weight = set.count + 1, set.weight + change.weight
    set.tats[id], set.weights[id], set.written[id], set.removed[id] = change.tat, change.weight, true, nil
  end
  set.edge = nil
end

function tenants.apply(state, next)
  local set = state.tenants
  clean(set)
  if next.change then set:_apply(next.change) end
  next.tenants, next.is_kept, next.change = set, tenants.is_kept, nil
  return next
end

local function remove(set, ids)
  for i = 1, #ids, BATCH_MAX do free('ZREM', set.key, unpack(ids, i, min(i + BATCH_MAX - 1, #ids))) end
end

function tenants.save(key, rule, state, ttl)
  local set = state.tenants
  local head = format('%d %d|', set.count, set.weight) .. cells.text(rule, state)
  local added, removed = {}, {}
  for id in pairs(set.removed) do
    insert(removed, whole(id))
    insert(removed, 'w' .. whole(id))
  end
  if head ~= set.head then
    if set.head then insert(removed, set.head) end
    added[1], added[2] = HEAD, head
  end
  for id in pairs(set.written) do
    local text = whole(id)
    insert(added, whole(set.tats[id]))
    insert(added, text)
    if set.weights[id] == 1 then
      insert(removed, 'w' .. text)
    else
      insert(added, whole(-set.weights[id]))
      insert(added, 'w' .. text)
    end
  end
  remove(set, removed)
  for i = 1, #added, BATCH_MAX do call('ZADD', key, unpack(added, i, min(i + BATCH_MAX - 1, #added))) end
  call('PEXPIRE', key, ttl)
end

return tenants
