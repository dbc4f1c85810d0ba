-- The gate: one call carries many decisions; each asks up to 16 limits and charges all of them or
-- none. The state of a key is opened once and saved once. Joined behind the algorithms
-- (`module` makes one by its number) and the shapes of state (`shape`, by its name) by
-- src/limit/algo/mod.rs.
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
-- Reply    such an array, which spares the client a parse of every integer: now,
--          per decision: admitted, per check: admitted, remaining, retry, reset, receipt
--   a decision that a full server has no room for is 2 alone: nothing of it is stored
--
-- The interpreter is most of what a decision costs its server: to make or call a function costs as much
-- as ten other operations, to let a table grow more. So what all decisions have in common is one
-- function, on locals, and what few need is made for those.
local floor = math.floor

local args = cmsgpack.unpack(ARGV[1])
local now = args[1]
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

-- The rules, and where the decisions begin.
local function rules_of(args)
  local rules, modules, shapes, cursor = {}, {}, {}, 2
  for i = 1, args[2] do
    local algorithm, numbers = args[cursor + 1], args[cursor + 2]
    local made = modules[algorithm] or module(algorithm)
    local form = made.shape or 'cells'
    local kept = shapes[form] or shape(form)
    modules[algorithm], shapes[form] = made, kept
    local rule = { unpack(args, cursor + 3, cursor + 2 + numbers) }
    rule.decide, rule.adjust, rule.shape, rule.fields = made.decide, made.adjust, kept, made.fields
    rule.basis = made.basis and kept.basis(made.basis(rule))
    rules[i] = rule
    cursor = cursor + 2 + numbers
  end
  return rules, cursor
end

-- Makes all decisions and saves what they leave behind. full: the server refuses whatever may take
-- memory (`maxmemory`, `noeviction`); keys that exist go on.
local function run(full)
  local args, now, floor, rules, cursor = args, now, floor, rules_of(args)
  -- Text of every key; of one kept in another shape, false.
  local texts = call('MGET', unpack(KEYS))
  -- Of each key once opened: its state; of each to be saved: the rule, and for how long (0: not at all).
  local states, owners, ttls = {}, {}, {}
  -- Filled in the order of the places, or the table would be built anew again and again.
  local reply, size, total = { now }, 1, #args
  -- Of each check of a decision: what is stored if the decision allows it, and for how long.
  local nexts, lives = {}, {}

  local function apply(key, rule, ttl, next)
    local change = rule.shape.apply
    if change then next = change(states[key], next, KEYS[key]) end
    states[key] = next
    owners[key] = rule
    ttls[key] = ttl
  end

  -- Whether the server has no room for a new state of the key.
  local function lacks_room(key)
    local state = states[key]
    return full and not (state and (not state.is_kept or state:is_kept()))
  end

  -- The same of what a decision stores. A shadow limit is not worth a fallback: it forgets.
  local function is_undecidable(checks, first, head, refused)
    for i = 1, checks do
      local at = first + 5 * i - 5
      local shadow = args[at + 4] % 2 == 1
      local own = shadow or reply[head + 5 * i - 4] == 0
      if lives[i] and (own or not refused) and lacks_room(args[at + 1]) then
        if not shadow then return true end
        lives[i] = false
      end
    end
    return false
  end

  while cursor < total do
    local operation, checks, first, head = args[cursor + 1], args[cursor + 2], cursor + 2, size + 1
    local at, last, refused = first, head, false
    reply[head] = 1
    for i = 1, checks do
      local key, rule, cost, role, tag = args[at + 1], rules[args[at + 2]], args[at + 3], args[at + 4], args[at + 5]
      local admitted, remaining, retry, reset, receipt, ttl, next = true, 0, 0, 0, 0
      local state = states[key]
      if state == nil and operation < 4 then
        state = rule.shape.open(KEYS[key], rule, texts[key])
        states[key] = state
      end
      if operation <= 2 then
        admitted, remaining, retry, reset, receipt, ttl, next = rule.decide(rule, state, now, cost, tag)
        if role >= 4 and reply[head + 5 * floor(role / 4) - 4] == 1 then
          -- Not its turn: the limit before it still has room.
          admitted, retry, ttl = true, 0, false
        end
        -- Neither a shadow nor a base.
        if not admitted and role % 4 == 0 then refused = true end
        nexts[i], lives[i] = next, operation == 1 and ttl
      elseif operation == 3 then
        ttl, next = rule.adjust(rule, state, now, cost, tag)
        admitted, receipt = ttl and not lacks_room(key), tag
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

    -- Of corrections and resets none depends on another: they are done.
    local decides = operation <= 2
    if decides and full and is_undecidable(checks, first, head, refused) then
      for i = head + 1, size do reply[i] = nil end
      size, reply[head] = head, 2
    elseif decides then
      if refused then reply[head] = 0 end
      at, last = first, head
      for i = 1, checks do
        local ttl = lives[i]
        -- A refusal may have a state of its own to store; a charge is stored only if all admit, that
        -- of a shadow limit by its own verdict.
        if refused and reply[last + 1] == 1 and args[at + 4] % 2 == 0 then
          -- What the limit would have left is not what it has: nothing is charged.
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

  for key, ttl in pairs(ttls) do
    local rule = owners[key]
    rule.shape.save(KEYS[key], rule, states[key], ttl)
  end
  return reply
end

local done, reply = pcall(run, false)
if not done then
  local said = type(reply) == 'table' and reply.err or tostring(reply)
  if not string.find(said, 'OOM', 1, true) then
    -- Returned, the error of a command keeps its code; raised again it would lose it.
    return { err = string.match(said, '^%u+ ') and said or 'ERR ' .. said }
  end
  -- Only the first write of a script is refused, so nothing has been written. One that takes no memory
  -- opens the way for those that only replace what is there.
  call('DEL', KEYS[1] .. ':none')
  reply = run(true)
end
return cmsgpack.pack(reply)
