-- Token bucket: arithmetic only, twin of src/limit/algo/token_bucket.rs, same names, same order.
-- rule   rate tokens every per ms; at most burst at once; debt tokens may be taken in advance;
--        interval 1: refill in whole lumps every per ms; empty 1: a new bucket starts empty
-- state  used, at, per: tokens taken and not yet refilled, times per, as of time at
-- Absent state is a full bucket, so a bucket that has refilled may expire.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local EMPTY_KEPT_MS = 86400000

-- What was taken and not yet refilled by now, the stamp it holds for, the sizes involved, and
-- whether the state has to be stored even after a refusal.
local function level(rule, state, now)
  local rate, per, burst, debt, interval, empty = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
  local full, floor_debt = burst * per, debt * per
  local lump = interval == 1 and per or 1
  local gain = rate * lump

  local used, at, mended = 0, now, empty == 1 and not state
  if state then
    used, at = state[1], state[2]
    if state[3] ~= per then used = ceil(used / max(state[3], 1) * per) end
    used = min(used, full + floor_debt)
    -- A stamp further ahead than a whole refill was left by another clock. It must be mended for
    -- good, or the refill would start anew with each refusal.
    if at > now + ceil((full + floor_debt) / gain) * lump then at, mended = now, true end
    local steps = floor(max(now - at, 0) / lump)
    if steps >= ceil(used / gain) then
      used, at = 0, max(now, at)
    else
      used, at = used - steps * gain, at + steps * lump
    end
  elseif empty == 1 then
    used = full
  end
  return used, at, full, floor_debt, lump, gain, mended
end

local function life(rule, reset)
  return reset + 1 + (rule[6] == 1 and EMPTY_KEPT_MS or 0)
end

local function decide(rule, state, now, cost)
  local per, burst, debt = rule[2], rule[3], rule[4]
  local used, at, full, floor_debt, lump, gain, mended = level(rule, state, now)

  local need = min(cost, burst + debt + 1) * per
  local over = used + need - full
  if debt > 0 then over = max(over - floor_debt, min(over, used - full + 1)) end
  local admitted = cost == 0 or over <= 0
  if admitted then used = used + need end

  local retry = 0
  if cost > burst + debt then
    retry = -1
  elseif not admitted then
    retry = at + ceil(over / gain) * lump - now
  end
  local reset = at + ceil(used / gain) * lump - now
  local store = cost > 0 and (admitted or mended)
  return admitted, max(floor((full - used) / per), 0), retry, max(reset, 0), 0,
    store and life(rule, reset), { used, at, per }
end

-- Tokens given back fill the bucket at most; tokens taken on top empty it at most to its debt.
local function adjust(rule, state, now, delta)
  local per, burst, debt = rule[2], rule[3], rule[4]
  local used, at, full, floor_debt, lump, gain = level(rule, state, now)
  if delta < 0 and (used == 0 or not state) then return false end
  local change = max(min(delta, burst + debt), -burst - debt) * per
  used = max(min(used + change, full + floor_debt), 0)
  if used == 0 then at = max(now, at) end
  return life(rule, at + ceil(used / gain) * lump - now), { used, at, per }
end

return { decide = decide, adjust = adjust, fields = 3 }
