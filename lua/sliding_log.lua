-- Sliding log: arithmetic only. Twin of src/limiting/algorithm/sliding_log.rs: same names, same order.
-- rule   at most limit units in any window of so many ms; third: whether a new key is stored as a sorted set
-- state  a log of the units charged in each ms. A charge counts for the whole window and one ms more: a charge at the
--        end of its ms and one at the beginning of the last may be less than a window apart.
local max, min = math.max, math.min

-- Returns the longest window and the largest limit that use the log, and the time of a new charge. The last value is
-- false if the stored charges count; otherwise they do not, but that number of units counts at the current time.
local function bounds_at(rule, state, now)
  local longest, largest = max(state.longest, rule[2]), max(state.largest, rule[1])
  if state.total == 0 or state.newest < now - state.longest then return rule[2], rule[1], now, 0 end
  -- A charge further ahead than a window comes from a clock that was wrong. What still counts has to be moved to now
  -- and stored, or it would use up the limit until that time comes.
  if state.newest > now + longest then
    return longest, largest, now, min(state:since(state.newest - longest), largest)
  end
  return longest, largest, max(now, state.newest), false
end

local function decide(rule, state, now, cost)
  local limit, window = rule[1], rule[2]
  local longest, largest, clock, restart = bounds_at(rule, state, now)
  -- The first millisecond that counts.
  local edge = clock - window

  -- The newest charge that must leave the window before this cost fits.
  local last, index = false, limit - cost
  if cost > 0 and cost <= limit then
    if restart then last = index < restart and now else last = state:at(index) end
    if last and last < edge then last = false end
  end
  local admitted = cost == 0 or cost <= limit and not last
  local inside = limit
  if admitted or cost > 1 then inside = restart or state:since(edge) end
  local charge = admitted and cost or 0

  local retry = 0
  if cost > limit then
    retry = -1
  elseif last then
    retry = last + window + 1 - now
  end
  local latest
  if charge > 0 then
    latest = clock
  elseif restart then
    latest = restart > 0 and now
  else
    latest = state:latest()
  end
  local reset = latest and max(latest + window + 1 - now, 0) or 0
  local wider = not restart and (longest > state.longest or largest > state.largest)
  local store = cost > 0 and (admitted or restart and restart > 0 or wider)
  local ttl = ((restart or charge > 0) and clock or state.newest) + longest + 1 - now
  return admitted, max(limit - inside - charge, 0), retry, reset, clock, store and ttl,
    { restart = restart, clock = clock, cost = charge, longest = longest, largest = largest }
end

-- The receipt of the newest charges, whichever request they are of.
local LATEST = 2 ^ 53 - 1

-- Corrects a charge; the receipt is its millisecond, or LATEST for the newest charges that still count.
local function adjust(rule, state, now, delta, receipt)
  local longest, largest, clock, restart = bounds_at(rule, state, now)
  if delta < 0 and receipt == LATEST then
    local units = min(-delta, restart or state:since(clock - rule[2]))
    if units == 0 then return false end
    if units == state.total or restart == units then return 1, { none = true }, units end
    if restart then
      return clock + longest + 1 - now,
        { restart = restart - units, clock = clock, cost = 0, longest = longest, largest = largest }, units
    end
    return state.newest + longest + 1 - now, { cut = units }, units
  end
  if delta < 0 then
    if restart == 0 or receipt < max(state.newest, now) - longest then return false end
    local weight = state:weight_at(receipt)
    if weight == 0 then return false end
    local units = min(-delta, weight)
    if units == state.total or restart and restart <= units then return 1, { none = true }, units end
    if restart then
      return longest + 1, { restart = restart - units, clock = clock, cost = 0, longest = longest, largest = largest }, units
    end
    return state.newest + longest + 1 - now, { ms = receipt, weight = weight - units }, units
  end
  if delta == 0 then return false end
  local charge = min(delta, rule[1])
  return clock + longest + 1 - now,
    { restart = restart, clock = clock, cost = charge, longest = longest, largest = largest }, charge
end

return { decide = decide, adjust = adjust, shape = 'log' }
