-- Sliding log: arithmetic only, twin of src/limit/algo/sliding_log.rs, same names, same order.
-- rule   at most limit in any window ms; third: the form it is stored in
-- state  a log of time stamps in microseconds, each once: those of one ms take the next free ones.
--        A stamp counts for a whole window from its ms on
local floor, max, min = math.floor, math.max, math.min

local function ms(stamp)
  return floor(stamp / 1000)
end

-- The newest stamp, how many of the newest are moved to now and how many of those remain, and the
-- first stamp that is free.
local function head_at(rule, state, now)
  local limit, window = rule[1], rule[2]
  local head = state:at(0)
  local moved = 0
  -- A stamp further ahead than a whole window was left by another clock. All that are ahead must be
  -- moved for good, or they would hold the limit until that time comes.
  if head and ms(head) > now + window then moved = state:above((now + 1) * 1000, true) end
  local kept = min(moved, limit)
  local first = max(now * 1000, (state:at(moved) or -1) + 1)
  if kept > 0 then head = first + kept - 1 end
  return head, moved, kept, first
end

local function decide(rule, state, now, cost)
  local limit, window = rule[1], rule[2]
  local head, moved, kept, first = head_at(rule, state, now)

  -- The newest stamp that must have left the window.
  local last, place = false, limit - cost
  if cost > 0 and cost <= limit then
    if place < kept then last = head - place else last = state:at(place + moved - kept) end
  end
  local refused = last and ms(last) > now - window
  local admitted = cost == 0 or cost <= limit and not refused
  local inside = limit
  if admitted or cost > 1 then inside = min(state:above((now - window + 1) * 1000) - moved + kept, limit) end
  local charge = admitted and cost or 0
  if charge > 0 then head = first + kept + charge - 1 end

  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = ms(last) + window - now
  end
  local reset = head and max(ms(head) + window - now, 0) or 0
  local store = cost > 0 and (admitted or moved > 0)
  return admitted, limit - inside - charge, retry, reset, first + kept, store and reset,
    { drop = moved, first = first, count = kept + charge, keep = inside + charge }
end

-- The receipt is the first stamp of the charge: those that follow it are the rest.
local function adjust(rule, state, now, delta, receipt)
  local limit, window = rule[1], rule[2]
  if delta < 0 then
    local from = state:above(receipt + min(-delta, limit), true)
    local to = state:above(max(receipt, (now - window + 1) * 1000), true)
    if from >= to then return false end
    local head = state:at(from == 0 and to or 0)
    local ttl = head and ms(head) + window - now or 0
    return max(min(ttl, 2 * window), 1), { from = from, to = to }
  end
  if delta == 0 then return false end
  local _, moved, kept, first = head_at(rule, state, now)
  local inside = state:above((now - window + 1) * 1000)
  local count = kept + min(delta, limit)
  return ms(first + count - 1) + window - now,
    { drop = moved, first = first, count = count, keep = min(inside - moved + count, limit) }
end

return { decide = decide, adjust = adjust, shape = 'log' }
