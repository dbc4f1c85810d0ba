-- The gate: every read and write of limit state in Redis. One call carries many decisions; each
-- asks up to 16 limits and charges all of them or none. A key is read once and written once.
-- Joined behind the algorithm files (`modules`, one constructor each) by src/limit/algo/mod.rs.
--
-- KEYS     the state keys, each once
-- ARGV[1]  one MessagePack array of integers (a third cheaper than as many arguments):
--          now (0 = this server's clock), number of rules,
--          per rule: algorithm, shadow, number of parameters, parameters ...
--          per decision: number of checks, per check: key, rule, cost
-- Reply integers: now, per decision: admitted, per check: admitted, remaining, retry, reset
local floor, tonumber, match, format = math.floor, tonumber, string.match, string.format

local args, cursor = cmsgpack.unpack(ARGV[1]), 0
local function int()
  cursor = cursor + 1
  return args[cursor]
end

local now = int()
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

local loaded, rules = {}, {}
for i = 1, int() do
  local algorithm, shadow = int(), int() == 1
  loaded[algorithm] = loaded[algorithm] or modules[algorithm]()
  local module = loaded[algorithm]
  local rule = { decide = module.decide, fields = module.fields, shadow = shadow }
  for p = 1, int() do rule[p] = int() end
  rules[i] = rule
end

-- State is text, readable in redis-cli: whole numbers, a space between. `%d` is exact for these,
-- where `..` and tostring keep 14 digits.
local FORMAT = { '%d', '%d %d', '%d %d %d' }
local PATTERN = { '^(%d+)$', '^(%d+) (%d+)$', '^(%d+) (%d+) (%d+)$' }

-- Of each key: its text, then its state once asked for; false if absent or of another form.
local states = redis.call('MGET', unpack(KEYS))

local function parsed(text, fields)
  local a, b, c = match(text, PATTERN[fields])
  return a and { tonumber(a), tonumber(b), tonumber(c) } or false
end

-- Of each key to be written: for how long, and how many fields.
local ttls, widths = {}, {}
local reply, size = { now }, 1
-- Of each check of the decision at hand: what is stored if the decision allows it.
local keys, nexts, lives, sizes, own = {}, {}, {}, {}, {}

local total = #args
while cursor < total do
  local checks, refused, head = int(), false, size + 1
  size = head
  for i = 1, checks do
    local key, rule, cost = int(), rules[int()], int()
    local state = states[key]
    if type(state) == 'string' then
      state = parsed(state, rule.fields)
      states[key] = state
    end
    local admitted, remaining, retry, reset, ttl, a, b, c = rule.decide(rule, state, now, cost)
    if not admitted and not rule.shadow then refused = true end
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = admitted and 1 or 0, remaining, retry, reset
    size = size + 4
    -- A refusal may have a state of its own to store; a charge is stored only if all admit, that
    -- of a shadow limit by its own verdict.
    own[i] = rule.shadow or not admitted
    keys[i], lives[i], sizes[i] = key, ttl, rule.fields
    nexts[i] = ttl and { a, b, c }
  end
  reply[head] = refused and 0 or 1
  for i = 1, checks do
    if lives[i] and (own[i] or not refused) then
      local key = keys[i]
      states[key], ttls[key], widths[key] = nexts[i], lives[i], sizes[i]
    end
  end
end

for key, ttl in pairs(ttls) do
  local state = states[key]
  redis.call('SET', KEYS[key], format(FORMAT[widths[key]], state[1], state[2], state[3]), 'PX', ttl)
end
return reply
