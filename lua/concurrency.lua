-- Concurrency: arithmetic only, twin of src/limit/algo/concurrency.rs, same names, same order.
-- rule   at most in_flight units at once; a unit is lost to its holder lease ms after its last renewal
-- state  leases: ids with an expiry each; a decision holds the ids from its tag on
local floor, max, min = math.floor, math.max, math.min

local function decide(rule, state, now, cost, tag)
  local limit, lease = rule[1], rule[2]
  local expiry = now + lease
  local latest = state:at(0) or now
  -- An expiry further ahead than a lease was left by another clock, or by a longer lease. It must
  -- be cut for good, or what a dead holder left would stay until then.
  local mended = latest > expiry

  -- The latest of the leases that must have expired.
  local last = cost > 0 and cost <= limit and state:at(limit - cost)
  local refused = last and last > now
  local admitted = cost == 0 or cost <= limit and not refused
  local live = limit
  if admitted or cost > 1 then live = state:live(now) end
  local charge = admitted and cost or 0
  if charge > 0 then latest = expiry end

  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = min(last, expiry) - now
  end
  local reset = max(min(latest, expiry) - now, 0)
  local store = cost > 0 and (admitted or mended)
  return admitted, max(limit - live - charge, 0), retry, reset, tag, store and reset,
    { now = now, expiry = expiry, first = tag, count = charge, act = 'add' }
end

-- How many ids from `first` on are held; those of one decision are held together.
local function run(state, first, now)
  if not state:holds(first, now) then return 0 end
  local low, high = 0, 1
  while state:holds(first + high, now) do low, high = high, high * 2 end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if state:holds(first + middle, now) then low = middle else high = middle end
  end
  return high
end

-- The receipt is the tag. Less than 0 releases, 0 renews what is held, or takes one unit anew if
-- the lease was lost and there is room.
local function adjust(rule, state, now, delta, receipt)
  local limit, lease = rule[1], rule[2]
  local expiry = now + lease
  local held = run(state, receipt, now)
  if delta < 0 then
    if held == 0 then return false end
    local count = min(-delta, held)
    return max(min(state:at(0), expiry) - now, 1),
      { now = now, expiry = expiry, first = receipt + held - count, count = count, act = 'drop' }
  end
  if delta == 0 and held > 0 then
    return lease, { now = now, expiry = expiry, first = receipt, count = held, act = 'renew' }
  end
  local room = delta == 0 and limit or held > 0 and 2 * limit or 0
  local count = min(max(delta, 1), room - state:live(now))
  if count < 1 then return false end
  return lease, { now = now, expiry = expiry, first = receipt + held, count = count, act = 'add' }
end

return { decide = decide, adjust = adjust, shape = 'leases' }
