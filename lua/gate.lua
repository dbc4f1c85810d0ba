-- The gate: one call carries many decisions; each asks up to 16 limits and charges all of them or
-- none. The state of a key is opened once and saved once. Joined behind the algorithm files
-- (`modules`, one constructor each) and lua/shapes.lua by src/limit/algo/mod.rs.
--
-- KEYS     the state keys, each once
-- ARGV[1]  one MessagePack array of integers (a third cheaper than as many arguments):
--          now (0 = this server's clock), number of rules,
--          per rule: algorithm, number of parameters, parameters ...
--          per decision: operation, number of checks, per check: key, rule, cost, role, tag
--   operation  1 take; 2 peek: answer only; 3 adjust: add cost (negative: give back) by the receipt
--              in tag; 4 reset: forget the key
--   role       1 shadow: never refuses; + 2 base: its refusal hands over to a later check;
--              + 4 x n: asked only if the n-th check of the decision is exhausted
--   tag        a number no other decision has, for algorithms that name what they store
-- Reply integers: now, per decision: admitted, per check: admitted, remaining, retry, reset, receipt
--   a decision that a full server has no room for is 2 alone: nothing of it is stored
local floor = math.floor

local args, cursor = cmsgpack.unpack(ARGV[1]), 0
local function int()
  cursor = cursor + 1
  return args[cursor]
end

local now = int()
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

local loaded, rules = {}, {}
for i = 1, int() do
  local algorithm = int()
  loaded[algorithm] = loaded[algorithm] or modules[algorithm]()
  local module = loaded[algorithm]
  local rule = {
    decide = module.decide,
    adjust = module.adjust,
    fields = module.fields,
    shape = shapes[module.shape or 'cells'],
  }
  for p = 1, int() do rule[p] = int() end
  rules[i] = rule
end

-- Text of every key; of one kept in another shape, false.
local texts = call('MGET', unpack(KEYS))
-- Of each key once opened: its state and rule; of each to be saved: for how long (0: not at all).
local states, owners, ttls = {}, {}, {}

local function open(key, rule)
  local state = states[key]
  if state == nil then
    state = rule.shape.open(KEYS[key], rule, texts[key])
    states[key], owners[key] = state, rule
  end
  return state
end

local function apply(key, rule, ttl, next)
  states[key] = rule.shape.apply(states[key], next, KEYS[key])
  ttls[key], owners[key] = ttl, rule
end

local reply, size = { now }, 1
local function answer(admitted, remaining, retry, reset, receipt)
  reply[size + 1], reply[size + 2], reply[size + 3] = admitted and 1 or 0, remaining, retry
  reply[size + 4], reply[size + 5] = reset, receipt
  size = size + 5
end

-- The server refuses whatever may take memory (`maxmemory`, `noeviction`). Keys that exist go on.
local full = false

-- Whether the key of that state exists.
local function exists(state)
  return state and (not state.at or state:at(0)) and true or false
end

-- Of each check of the decision at hand: what is stored if the decision allows it.
local keys, used, nexts, lives, tags, passed, own, shadows = {}, {}, {}, {}, {}, {}, {}, {}

-- Whether the server has room for what the decision stores. A shadow limit is not worth a fallback:
-- it forgets.
local function has_room(checks, refused)
  for i = 1, checks do
    if lives[i] and (own[i] or not refused) and not exists(states[keys[i]]) then
      if not shadows[i] then return false end
      lives[i] = false
    end
  end
  return true
end

local function take(checks, keep)
  local refused, head = false, size + 1
  size = head
  for i = 1, checks do
    local key, rule, cost, role, tag = int(), rules[int()], int(), int(), int()
    local admitted, remaining, retry, reset, receipt, ttl, next =
      rule.decide(rule, open(key, rule), now, cost, tag)
    local after = floor(role / 4)
    local shadow, base = role % 2 == 1, role % 4 >= 2
    if after > 0 and passed[after] then
      -- Not its turn: the limit before it still has room.
      admitted, retry, ttl = true, 0, false
    end
    if not admitted and not shadow and not base then refused = true end
    answer(admitted, remaining, retry, reset, receipt)
    -- A refusal may have a state of its own to store; a charge is stored only if all admit, that
    -- of a shadow limit by its own verdict.
    passed[i], own[i], shadows[i] = admitted, shadow or not admitted, shadow
    keys[i], used[i], nexts[i], lives[i], tags[i] = key, rule, next, ttl, tag
  end
  if full and keep and not has_room(checks, refused) then
    for i = head + 1, size do reply[i] = nil end
    size, reply[head] = head, 2
    return
  end
  reply[head] = refused and 0 or 1
  for i = 1, checks do
    if refused and not own[i] then
      -- What the limit would have left is not what it has: nothing is charged.
      local _, remaining, retry, reset, receipt = used[i].decide(used[i], states[keys[i]], now, 0, tags[i])
      local at = head + 5 * i - 4
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = remaining, retry, reset, receipt
    end
    if keep and lives[i] and (own[i] or not refused) then apply(keys[i], used[i], lives[i], nexts[i]) end
  end
end

local function adjust(checks)
  local head = size + 1
  size, reply[head] = head, 1
  for _ = 1, checks do
    local key, rule, cost, _, receipt = int(), rules[int()], int(), int(), int()
    local ttl, next = rule.adjust(rule, open(key, rule), now, cost, receipt)
    if full and not exists(states[key]) then ttl = false end
    if ttl then apply(key, rule, ttl, next) end
    answer(ttl, 0, 0, 0, receipt)
  end
end

local function reset(checks)
  local head = size + 1
  size, reply[head] = head, 1
  for _ = 1, checks do
    local key = int()
    cursor = cursor + 4
    call('DEL', KEYS[key])
    states[key], ttls[key], texts[key] = nil, nil, false
    answer(true, 0, 0, 0, 0)
  end
end

local total, decisions = #args, cursor
local function run()
  while cursor < total do
    local operation, checks = int(), int()
    if operation <= 2 then
      take(checks, operation == 1)
    elseif operation == 3 then
      adjust(checks)
    else
      reset(checks)
    end
  end
  for key, ttl in pairs(ttls) do
    local rule = owners[key]
    rule.shape.save(KEYS[key], rule, states[key], ttl)
  end
end

local done, why = pcall(run)
if not done then
  local said = type(why) == 'table' and why.err or tostring(why)
  if not string.find(said, 'OOM', 1, true) then
    -- Returned, the error of a command keeps its code; raised again it would lose it.
    return { err = string.match(said, '^%u+ ') and said or 'ERR ' .. said }
  end
  -- Only the first write of a script is refused for want of memory, so nothing has been written. One
  -- that takes no memory opens the way for those that only replace what is there.
  full, cursor, size, reply = true, decisions, 1, { now }
  states, owners, ttls = {}, {}, {}
  call('DEL', KEYS[1] .. ':none')
  run()
end
return reply
