-- Concurrency: arithmetic only. Twin of src/limiting/algorithm/concurrency.rs: same names, same order.
-- rule   at most in_flight units at once; a unit expires lease ms after its last renewal
-- state  leases: units that the tag of a decision holds until they expire
local max, min = math.max, math.min

local function decide(rule, state, now, cost, tag)
  local limit, lease = rule[1], rule[2]
  local live = state:live(now)
  local longest = live > 0 and max(state.longest, lease) or lease
  -- An expiry further ahead than the longest lease comes from a clock that was wrong. It has to be shortened and
  -- stored, or the lease of a crashed gateway would last until then.
  local latest_allowed = now + longest
  local latest = live > 0 and state:latest() or now
  local is_repaired = latest > latest_allowed
  latest = min(latest, latest_allowed)

  local admitted = cost == 0 or live + cost <= limit
  local charge = admitted and cost or 0
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = min(state:free_at(limit - cost, now), latest_allowed) - now
  end
  local expiry = now + lease
  if charge > 0 then latest = max(latest, expiry) end
  local reset = latest - now
  local store = cost > 0 and (admitted or is_repaired or live > 0 and longest > state.longest)
  return admitted, max(limit - live - charge, 0), retry, reset, tag, store and reset,
    { now = now, longest = longest, drop_others = live == 0, tag = tag, units = charge, expiry = expiry }
end

-- Corrects a lease; the receipt is its tag. A negative delta releases units. A positive one renews a lease of that many
-- units. Units that the store had lost are held again, even beyond in_flight, because the request is still running.
local function adjust(rule, state, now, delta, receipt)
  local lease = rule[2]
  local live = state:live(now)
  local longest = live > 0 and max(state.longest, lease) or lease
  local latest = live > 0 and min(state:latest(), now + longest) or now
  if delta < 0 then
    local held, till = state:find_lease(receipt, now)
    local units = min(-delta, held)
    if units == 0 then return false end
    if units == live then return 1, { none = true }, units end
    return latest - now,
      { now = now, longest = longest, tag = receipt, units = held - units, expiry = min(till, now + longest) }, units
  end
  if delta == 0 then return false end
  local expiry = now + lease
  return max(latest, expiry) - now,
    { now = now, longest = longest, drop_others = live == 0, tag = receipt, units = delta, expiry = expiry }, delta
end

return { decide = decide, adjust = adjust, shape = 'leases' }
