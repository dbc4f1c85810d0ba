-- The gate: the main part of the script. One call carries many decisions. Each decision has up to 64 checks (16 limits
-- with four tiers each), and charges all of them or none. The state of each key is opened once and saved once.
-- src/limiting/algorithm/mod.rs joins the script: the gate follows the algorithms (`module` creates one by its number)
-- and the shapes of states (`shape` creates one by its name).
--
-- KEYS       the state keys, each once
-- ARGV[1]    one MessagePack array of integers, a third cheaper than the same number of arguments:
--              now (0 = the clock of this server), number of rules,
--              per rule: algorithm, number of parameters, parameters ...
--              per decision: operation, number of checks, per check: key, rule, cost, role, tag;
--              with an operation above 4, per check: link
-- cost       units; -1 with take and peek: nothing, but the check admits only while a unit is left; -1 - n: the check is
--            of the ban of the n-th check, and costs 1 if that refuses. If the key is banned, the n-th check refuses, too
-- operation  1 take; 2 peek: decide without a charge; 3 adjust: add the cost to the charge with the receipt in tag, or
--            refund it if negative; 4 reset: delete the state; 5 take and 6 peek with links
-- role       1 shadow: never refuses; + 2 base: if it refuses, a later check decides instead; + 4 forwards: never
--            refuses, and is charged with the others; + 8 x n: applies only if the n-th check of the decision is
--            exhausted
-- tag        a random number that identifies the decision, for algorithms that store single charges
-- link       number of the limit from 1; + 256 x n: a candidate for the limit with the number n
-- Reply      such an array, which is cheaper for the client to parse than a list of integers:
--              now, per decision: admitted, per check: admitted, remaining, retry, reset, receipt
--            A decision for which a full server has no memory is the single number 2. Nothing of it is stored.
--
-- Most of the cost of a decision is the Lua interpreter. Creating or calling a function costs as much as ten other
-- operations, and growing a table even more. So one function with local variables handles what all decisions have
-- in common, and functions that few decisions need are only created for those.
local floor = math.floor

local args = cmsgpack.unpack(ARGV[1])
local now = args[1]
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

-- Returns the rules, and the index where the decisions begin.
local function rules_of(args)
  local rules, modules, shapes, cursor = {}, {}, {}, 2
  for i = 1, args[2] do
    local algorithm, numbers = args[cursor + 1], args[cursor + 2]
    local functions = modules[algorithm] or module(algorithm)
    local shape_name = functions.shape or 'cells'
    local storage = shapes[shape_name] or shape(shape_name)
    modules[algorithm], shapes[shape_name] = functions, storage
    -- One constructor with everything, as each field that is added later can rebuild the table.
    local rule = {
      decide = functions.decide, adjust = functions.adjust, fields = functions.fields, basis = false,
      open = storage.open, apply = storage.apply or false, save = storage.save,
      unpack(args, cursor + 3, cursor + 2 + numbers),
    }
    rule.basis = storage.basis and storage.basis(functions.basis and functions.basis(rule), functions.fields)
    rules[i] = rule
    cursor = cursor + 2 + numbers
  end
  return rules, cursor
end

-- Makes all decisions and saves the new states. `full`: the server has no memory for new keys (`maxmemory` with
-- `noeviction`), so only decisions on existing keys are possible.
local function run(full)
  local args, now, floor, rules, cursor = args, now, floor, rules_of(args)
  -- Text of each key; false if there is none or the key has another shape.
  local texts = call('MGET', unpack(KEYS))
  -- By key: the open state; and for each state to be saved, its rule and how long to store it.
  local states, owners, ttls = {}, {}, {}
  -- The reply is filled from front to back, or Lua would rebuild the table again and again.
  local reply, size, total = { now }, 1, #args
  -- By check of a decision: the state to store if the decision admits, and for how long.
  local nexts, lives = {}, {}

  local function apply(key, rule, ttl, next)
    local change = rule.apply
    if change then next = change(states[key], next, KEYS[key]) end
    states[key] = next
    owners[key] = rule
    ttls[key] = ttl
  end

  local lacks_memory, is_undecidable
  if full then
    -- Reports whether the server has no memory for a new state of the key.
    function lacks_memory(key)
      local state = states[key]
      return not (state and (not state.is_kept or state:is_kept()))
    end

    -- Reports whether the server has no memory for a state that a decision has to store. A shadow limit is not worth
    -- failing the decision, so its state is dropped.
    function is_undecidable(checks, first, head, refused)
      for i = 1, checks do
        local at = first + 5 * i - 5
        local shadow = args[at + 4] % 2 == 1
        local own = shadow or reply[head + 5 * i - 4] == 0
        if lives[i] and (own or not refused) and lacks_memory(args[at + 1]) then
          -- Nor is the count of a refusal, as the request is refused all the same.
          if not shadow and args[at + 3] >= -1 then return true end
          lives[i] = false
        end
      end
      return false
    end
  end

  -- Returns the charges that are not made although their checks admit: those of limits of which another check refuses,
  -- and of candidates, if a limit besides their incumbent refuses. `links` is the index before the links of the checks.
  local function find_dropped(checks, first, head, links)
    -- By limit: true if it refuses the request, false if it refuses and has no say.
    local refuses, refusing, dropped = {}, 0, {}
    for i = 1, checks do
      local limit = args[links + i] % 256
      if reply[head + 5 * i - 4] == 0 and not refuses[limit] then
        refuses[limit] = args[first + 5 * i - 1] % 8 == 0
        if refuses[limit] then refusing = refusing + 1 end
      end
    end
    for i = 1, checks do
      local limit, incumbent = args[links + i] % 256, floor(args[links + i] / 256)
      local others = incumbent > 0 and refusing - (refuses[incumbent] and 1 or 0) or 0
      if reply[head + 5 * i - 4] == 1 and (others > 0 or refuses[limit] ~= nil) then
        dropped[i], lives[i] = true, false
      end
    end
    return dropped
  end

  while cursor < total do
    local operation, checks, first, head = args[cursor + 1], args[cursor + 2], cursor + 2, size + 1
    local at, last, refused, dropped = first, head, false, operation > 4
    if dropped then operation = operation - 4 end
    reply[head] = 1
    for i = 1, checks do
      local key, rule, cost, role, tag = args[at + 1], rules[args[at + 2]], args[at + 3], args[at + 4], args[at + 5]
      local admitted, remaining, retry, reset, receipt, ttl, next = true, 0, 0, 0, 0
      local state = states[key]
      if state == nil and operation < 4 then
        state = rule.open(KEYS[key], rule, texts[key])
        states[key] = state
      end
      if operation <= 2 then
        local judged = cost < -1 and -1 - cost
        if judged then cost = 1 - reply[head + 5 * judged - 4] end
        if cost < 0 then
          admitted, remaining, retry, reset, receipt, ttl, next = rule.decide(rule, state, now, 1, tag)
          if admitted then cost = 0 end
        end
        if cost >= 0 then
          admitted, remaining, retry, reset, receipt, ttl, next = rule.decide(rule, state, now, cost, tag)
        end
        if role >= 8 and reply[head + 5 * floor(role / 8) - 4] == 1 then
          -- The check does not apply: the limit before it still has capacity.
          admitted, retry, ttl = true, 0, false
        end
        if judged and cost == 0 and not admitted then
          -- The key is banned. The limit, which admits, is not charged; its reply is computed without the charge.
          local asked, told = first + 5 * judged - 5, head + 5 * judged - 5
          local limit = rules[args[asked + 2]]
          local _, left, wait, free, mark = limit.decide(limit, states[args[asked + 1]], now, 0, args[asked + 5])
          reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4], reply[told + 5] = 0, left, wait, free, mark
          lives[judged] = false
        end
        -- A refusal counts unless the check is a shadow check, a base, or forwards what exceeds it.
        if not admitted and role % 8 == 0 then refused = true end
        if operation == 2 then ttl = false end
        if checks > 1 or full then
          nexts[i], lives[i] = next, ttl
        elseif ttl then
          -- The decision has no other check, so this one admits it.
          apply(key, rule, ttl, next)
        end
      elseif operation == 3 then
        local units
        ttl, next, units = rule.adjust(rule, state, now, cost, tag)
        admitted, receipt = ttl and not (full and lacks_memory(key)), tag
        -- The reply says how many units the correction charged or refunded.
        remaining = admitted and units or 0
        if admitted then apply(key, rule, ttl, next) end
      else
        free('UNLINK', KEYS[key])
        states[key], ttls[key], texts[key] = nil, nil, false
      end
      reply[last + 1] = admitted and 1 or 0
      reply[last + 2] = remaining
      reply[last + 3] = retry
      reply[last + 4] = reset
      reply[last + 5] = receipt
      at, last = at + 5, last + 5
    end
    cursor, size = at, last
    if dropped then
      dropped, cursor = find_dropped(checks, first, head, at), at + checks
    end

    if refused then reply[head] = 0 end
    -- Corrections and resets are independent of each other, so they are already done.
    if full and operation <= 2 and is_undecidable(checks, first, head, refused) then
      for i = head + 1, size do reply[i] = nil end
      size, reply[head] = head, 2
    elseif operation <= 2 and (checks > 1 or full) then
      at, last = first, head
      for i = 1, checks do
        local ttl = lives[i]
        -- A charge is stored only if all checks admit. The charge of a shadow limit is stored if that limit itself
        -- admits. A refusal may also have a state to store.
        if refused and reply[last + 1] == 1 and args[at + 4] % 2 == 0 or dropped and dropped[i] then
          -- Another check refused, so this one is not charged. Its reply is computed without the charge.
          local key, rule = args[at + 1], rules[args[at + 2]]
          local _, remaining, retry, reset, receipt = rule.decide(rule, states[key], now, 0, args[at + 5])
          reply[last + 2], reply[last + 3], reply[last + 4], reply[last + 5] = remaining, retry, reset, receipt
        elseif ttl then
          apply(args[at + 1], rules[args[at + 2]], ttl, nexts[i])
        end
        at, last = at + 5, last + 5
      end
    end
  end

  for key = 1, #KEYS do
    local ttl = ttls[key]
    if ttl then
      local rule = owners[key]
      rule.save(KEYS[key], rule, states[key], ttl)
    end
  end
  return reply
end

local done, reply = pcall(run, false)
if done then return cmsgpack.pack(reply) end

-- The text of an error begins with its code, such as OOM or WRONGTYPE. Versions of Redis before 7 put the place first:
-- `@user_script: 12: -OOM command not allowed`.
local text = type(reply) == 'table' and reply.err or tostring(reply)
local code = string.match(text, '^%-?(%u+) ') or string.match(text, ': %-(%u+) ')
if code ~= 'OOM' then
  -- The error is returned, not raised again: that would remove its code.
  return { err = string.match(text, '^%u+ ') and text or 'ERR ' .. text }
end

-- The server is out of memory. No command says so in advance: Redis checks its memory at the first write of a script,
-- and refuses that write if its command can take memory. So nothing has been written yet. After a first write that
-- takes no memory, Redis no longer checks its memory in this script. PEXPIRE with the lifetime that the key has is such
-- a write, and PERSIST of a key that has none. From here on, `run` itself makes sure that it replaces existing states
-- and creates none.
local life = call('PTTL', KEYS[1])
if life < 0 then call('PERSIST', KEYS[1]) else call('PEXPIRE', KEYS[1], math.max(life, 1)) end
return cmsgpack.pack(run(true))
