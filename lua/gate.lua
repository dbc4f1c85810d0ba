-- The gate: every read and write of limit state in Redis. One call carries many decisions; each
-- asks up to 16 limits and charges all of them or none. A key is read once and written once.
-- Joined behind the algorithm files (`modules`, one constructor each) by src/limit/algo/mod.rs.
--
-- KEYS  the state keys, each once
-- ARGV  integers: now (0 = this server's clock), number of rules,
--       per rule: algorithm, shadow, number of parameters, parameters ...
--       per decision: number of checks, per check: key, rule, cost
-- Reply integers: now, per decision: admitted, per check: admitted, remaining, retry, reset
local floor, tonumber = math.floor, tonumber

local cursor = 0
local function int()
  cursor = cursor + 1
  return tonumber(ARGV[cursor])
end

local now = int()
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

local FORMAT = { '%.0f', '%.0f %.0f', '%.0f %.0f %.0f' }
local PATTERN = { '^(%-?%d+)$', '^(%-?%d+) (%-?%d+)$', '^(%-?%d+) (%-?%d+) (%-?%d+)$' }

local loaded, rules = {}, {}
for i = 1, int() do
  local algorithm, shadow = int(), int() == 1
  loaded[algorithm] = loaded[algorithm] or modules[algorithm]()
  local rule = { module = loaded[algorithm], shadow = shadow }
  for p = 1, int() do rule[p] = int() end
  rules[i] = rule
end

local texts = redis.call('MGET', unpack(KEYS))
local states, dirty = {}, {}

local function state_of(key, fields)
  local state = states[key]
  if state == nil then
    local a, b, c = string.match(texts[key] or '', PATTERN[fields])
    state = a and { tonumber(a), tonumber(b), tonumber(c) } or false
    states[key] = state
  end
  return state
end

local function store(key, fields, ttl, a, b, c)
  states[key] = { a, b, c }
  dirty[key] = { ttl, fields }
end

local reply, size = { now }, 1
local held = {}
while cursor < #ARGV do
  local checks, refused, head = int(), false, size + 1
  size = head
  for i = 1, checks do
    local key, rule, cost = int(), rules[int()], int()
    local module = rule.module
    local admitted, remaining, retry, reset, ttl, a, b, c = module.decide(rule, state_of(key, module.fields), now, cost)
    if not admitted and not rule.shadow then refused = true end
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = admitted and 1 or 0, remaining, retry, reset
    size = size + 4
    held[i] = { key, module.fields, ttl, a, b, c, admitted, rule.shadow }
  end
  reply[head] = refused and 0 or 1
  for i = 1, checks do
    local h = held[i]
    -- A refusal may have a state of its own to store; a charge is stored only if all admit,
    -- that of a shadow limit by its own verdict.
    if h[3] and (not refused or h[8] or not h[7]) then store(h[1], h[2], h[3], h[4], h[5], h[6]) end
  end
end

for key, mark in pairs(dirty) do
  local state = states[key]
  redis.call('SET', KEYS[key], string.format(FORMAT[mark[2]], state[1], state[2], state[3]), 'PX', string.format('%.0f', mark[1]))
end
return reply
