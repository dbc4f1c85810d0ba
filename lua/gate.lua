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

-- Of each check of the decision at hand: what is stored if the decision allows it.
local keys, used, nexts, lives, tags, passed, own = {}, {}, {}, {}, {}, {}, {}

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
    passed[i], own[i] = admitted, shadow or not admitted
    keys[i], used[i], nexts[i], lives[i], tags[i] = key, rule, next, ttl, tag
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

local total = #args
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
return reply
