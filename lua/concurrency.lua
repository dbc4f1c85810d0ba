-- Concurrency: arithmetic only, twin of src/limit/algo/concurrency.rs, same names, same order.
-- rule   at most in_flight units at once; a unit is lost to its holder lease ms after its last renewal
-- state  leases: units with an expiry each, held by the tag of a decision
local max, min = math.max, math.min

local function decide(rule, state, now, cost, tag)
  local limit, lease = rule[1], rule[2]
  local live = state:live(now)
  local longest = live > 0 and max(state.longest, lease) or lease
  -- An expiry further ahead than the longest lease was left by another clock. It must be cut for
  -- good, or what a dead holder left would stay until then.
  local far = now + longest
  local latest = live > 0 and state:latest() or now
  local mended = latest > far
  latest = min(latest, far)

  local admitted = cost == 0 or live + cost <= limit
  local charge = admitted and cost or 0
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = min(state:freed(limit - cost, now), far) - now
  end
  local expiry = now + lease
  if charge > 0 then latest = max(latest, expiry) end
  local reset = latest - now
  local store = cost > 0 and (admitted or mended or live > 0 and longest > state.longest)
  return admitted, max(limit - live - charge, 0), retry, reset, tag, store and reset,
    { now = now, longest = longest, anew = live == 0, tag = tag, units = charge, expiry = expiry }
end

-- The receipt is the tag. Less than 0 releases. More than 0 renews a lease of that many units: what was
-- lost of it is held again, even beyond in_flight, because its request is still running.
local function adjust(rule, state, now, delta, receipt)
  local lease = rule[2]
  local live = state:live(now)
  local longest = live > 0 and max(state.longest, lease) or lease
  local latest = live > 0 and min(state:latest(), now + longest) or now
  if delta < 0 then
    local held, till = state:held(receipt, now)
    local units = min(-delta, held)
    if units == 0 then return false end
    if units == live then return 1, { none = true } end
    return latest - now,
      { now = now, longest = longest, tag = receipt, units = held - units, expiry = min(till, now + longest) }
  end
  if delta == 0 then return false end
  local expiry = now + lease
  return max(latest, expiry) - now,
    { now = now, longest = longest, anew = live == 0, tag = receipt, units = delta, expiry = expiry }
end

return { decide = decide, adjust = adjust, shape = 'leases' }
