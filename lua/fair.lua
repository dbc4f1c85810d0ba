-- Fair sharing of a token bucket, the pool: arithmetic only. Twin of src/limiting/algorithm/fair, which explains it:
-- same names, same order.
-- rule   rate, per, burst, 0, 0, empty, refunds as of a token bucket; reserve: tokens that a tenant above its share
--        leaves; active: us for which a tenant is active after its TAT; max_active tenants of their own; weight of the
--        tenant; the tenant whose charge is corrected
-- state  a record of the pool, and `tenants`: the TAT and the weight of each tenant, see lua/shapes/tenants.lua
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local BUCKETS, RECEIPT, SHARED, PERMILLE = 16, 1024, 1023, 2048
local GUARANTEED = 0.36787944117144233

-- Returns the time in which the pool refills so many units, in us, rounded up.
local function refill_us(rule, units)
  local rate = rule[1]
  local ms = floor(units / rate)
  return ms * 1000 + ceil((units - ms * rate) * 1000 / rate)
end

-- Returns what the pool refills in that time, rounded up.
local function refilled(rule, us)
  local rate = rule[1]
  local ms = floor(us / 1000)
  return ms * rate + ceil((us - ms * 1000) * rate / 1000)
end

-- Returns by how much a charge moves the TAT; nothing if that is more than tau.
local function increment(rule, units, total)
  if units > rule.reserve_units then return nil end
  local base, tau, weight = refill_us(rule, units), rule.tau, rule[11]
  local times = floor(base / weight)
  if times > floor(tau / total) then return nil end
  local moved = times * total + ceil((base - times * weight) * total / weight)
  return moved <= tau and moved or nil
end

-- Returns by how much a refund moves the TAT back, at most tau.
local function decrement(rule, units, total)
  local rate, tau, weight = rule[1], rule.tau, rule[11]
  local ms = floor(units / rate)
  if ms > floor(tau / 1000) then return tau end
  local base = ms * 1000 + floor((units - ms * rate) * 1000 / rate)
  local times = floor(base / weight)
  if times > floor(tau / total) then return tau end
  return min(times * total + floor((base - times * weight) * total / weight), tau)
end

-- Returns what has to be left in the pool after a charge that moves the TAT by `moved`.
local function withheld(rule, backlog, moved)
  if moved and backlog + moved < rule.tau then return min(refilled(rule, backlog + moved), rule.reserve_units) end
  return rule.reserve_units
end

-- Returns after how many ms `need` fits, if `total` is the weight of all active tenants.
local function wait_for_fit(rule, need, free, backlog, total)
  local rate = rule[1]
  local latest = max(ceil((need + rule.reserve_units - free) / rate), 0)
  local moved = increment(rule, need, total)
  if not moved then return latest end
  local both = max(ceil((need + refilled(rule, backlog + moved) - free) / (2 * rate)), 0)
  local whole = floor(backlog / 1000)
  if both <= whole then return min(latest, both) end
  local after = max(ceil((need + refilled(rule, moved) - free) / rate), 0)
  return min(latest, max(after, whole + 1))
end

-- Returns how many units the tenant could be charged at once; exact, or a little too small.
local function remaining(rule, free, backlog, total)
  local per, weight = rule[2], rule[11]
  local beyond = free > rule.reserve_units and floor((free - rule.reserve_units) / per) or 0
  local lead = free - refilled(rule, backlog)
  if lead <= 0 then return beyond end
  local within = min(floor(lead / per * weight / (total + weight)), rule[8], rule[3] - rule[8])
  for cost = within, within - 4, -1 do
    if cost <= beyond then break end
    if cost * per + withheld(rule, backlog, increment(rule, cost * per, total)) <= free then return cost end
  end
  return beyond
end

-- Looks the tenant up. Returns its id and whether it shares a backlog, its TAT if it is active, its backlog, the number
-- and the weights of all active tenants, and the latest TAT of an inactive one.
local function share_at(rule, clock, is_repaired)
  local set, max_active = rule.tenants, rule[10]
  local edge = is_repaired and math.huge or clock * 1000 - rule[9]
  local active, total = set:active(edge)
  local id, shared = rule.tenant, false
  local tat = set:tat(id)
  if not tat and active >= max_active then
    id, shared = id % BUCKETS, true
    tat = set:tat(id)
  end
  if tat and tat <= edge then tat = nil end
  if tat then active, total = active - 1, total - set:weight_of(id) end
  local backlog = tat and max(min(tat - clock * 1000, rule.tau), 0) or 0
  return id, shared, tat, backlog, active + 1, total + rule[11], edge
end

-- Returns after how many ms `need` fits, if no other request arrives: others become inactive meanwhile.
local function wait_for(rule, clock, need, free, id, backlog, total, edge)
  local wait = wait_for_fit(rule, need, free, backlog, total)
  local latest = (clock + wait - 1) * 1000 - rule[9]
  if latest <= edge then return wait end
  for _, leaving in ipairs(rule.tenants:between(edge, latest, id)) do
    local left = ceil((leaving[1] + rule[9] - clock * 1000) / 1000)
    if left >= wait then break end
    total = total - leaving[2]
    wait = max(left, wait_for_fit(rule, need, free, backlog, total))
  end
  return wait
end

local pool = bucket(5, function(level, adjust_pool, refilling, is_marked, stored_for)
  local NO_MARKS = {}

  local function kept_ms(rule)
    return ceil(rule.tau / 1000) + rule[9] / 1000 + 1
  end

  local function decide(rule, record, now, cost)
    local rate, per, most = rule[1], rule[2], rule[3] - rule[8]
    local used, at, full, _, _, _, is_repaired = level(rule, record, now)
    local clock = max(at, now)
    local id, shared, tat, backlog, active, total, edge = share_at(rule, clock, is_repaired)
    local fits = cost <= most
    local need = min(cost, most) * per
    local moved = increment(rule, need, total)
    local free = full - used
    local left = withheld(rule, backlog, moved)
    local admitted = cost == 0 or fits and need + left <= free

    local retry = 0
    if not fits then
      retry = -1
    elseif not admitted then
      retry = clock + wait_for(rule, clock, need, free, id, backlog, total, edge) - now
    end
    local before = used
    if admitted then
      used = used + need
      if moved and backlog + moved <= rule.tau then backlog = backlog + moved end
    end
    local reset = at + ceil(used / rate) - now
    local next_tat = clock * 1000 + backlog
    local renews = fits and tat ~= next_tat
    local next = false
    if cost > 0 and (admitted or is_repaired or renews) then
      if record and not admitted and not is_repaired then
        next = { unpack(record, 1, #record) }
      else
        next = { used, at, rate, per, 1 }
        if admitted and (rule[7] or record and record[6]) then
          refilling().mark_charge(next, not is_repaired and record or NO_MARKS, before, is_marked(rule))
        end
      end
      rule.change = { edge = edge, id = id, tat = next_tat, weight = rule[11] }
    end
    local receipt
    local active_code = shared and SHARED or min(active, SHARED - 1)
    if cost == 0 then
      local permille = min(floor(backlog / max(floor(rule.tau / 1000), 1)), 1000)
      receipt = (total * PERMILLE + permille) * RECEIPT + active_code
    elseif admitted then
      receipt = clock * RECEIPT + active_code
    else
      local within = fits and need + left <= floor(rule.reserve_units * GUARANTEED)
      receipt = (within and RECEIPT or 0) + active_code
    end
    return admitted, remaining(rule, full - used, backlog, total), retry, reset > 0 and reset or 0, receipt,
      next and max(stored_for(rule, reset), kept_ms(rule)), next
  end

  -- Corrects a charge; the receipt contains its time. What the pool gets back is also taken from the backlog of the
  -- tenant. A further charge adds to the backlog, at most up to tau.
  local function adjust(rule, record, now, delta, receipt)
    local ttl, next, more = adjust_pool(rule, record, now, delta, floor(receipt / RECEIPT))
    if not ttl then return false end
    local used, at, _, _, _, _, is_repaired = level(rule, record, now)
    local clock = max(at, now)
    local id, _, tat, backlog, _, total, edge = share_at(rule, clock, is_repaired)
    if delta < 0 then
      backlog = max(backlog - decrement(rule, used - next[1], total), 0)
    else
      backlog = min(backlog + (increment(rule, next[1] - used, total) or rule.tau), rule.tau)
    end
    local is_kept = receipt >= 0 and (delta > 0 or tat)
    rule.change = { edge = edge, id = id, tat = is_kept and clock * 1000 + backlog, weight = rule[11] }
    return max(ttl, kept_ms(rule)), next, more
  end

  return decide, adjust, kept_ms
end)

local function decide(rule, state, now, cost, tag)
  rule.tenants, rule.change = state.tenants, nil
  rule.tenant = rule[12] > 0 and rule[12] or tag
  local admitted, remaining, retry, reset, receipt, ttl, next = pool.decide(rule, state[1] and state, now, cost)
  if next then next.change = rule.change end
  return admitted, remaining, retry, reset, receipt, ttl, next
end

local function adjust(rule, state, now, delta, receipt)
  rule.tenants, rule.change, rule.tenant = state.tenants, nil, rule[12]
  local ttl, next, more = pool.adjust(rule, state[1] and state, now, delta, receipt)
  if next then next.change = rule.change end
  return ttl, next, more
end

-- Prepares a rule; called once for each.
local function basis(rule)
  rule[7] = rule[7] == 1
  rule.reserve_units = rule[8] * rule[2]
  rule.tau = refill_us(rule, rule.reserve_units)
  return pool.basis(rule)
end

return { decide = decide, adjust = adjust, shape = 'tenants', fields = 5, basis = basis }
