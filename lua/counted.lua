-- What windows that count have in common: arithmetic only, twin of src/limit/algo/counted.rs.
-- Joined before the algorithm files.
-- window  count, id, end, and whether it has to be stored even after a refusal
local counted = {}

function counted.decide(limit, now, cost, count, id, stop, mended)
  local admitted = cost == 0 or count + cost <= limit
  if admitted then count = count + cost end

  local left = stop - now
  local retry = 0
  if cost > limit then
    retry = -1
  elseif not admitted then
    retry = left
  end
  local store = cost > 0 and (admitted or mended)
  return admitted, math.max(limit - count, 0), retry, left, id, store and left, { count, id }
end

-- The receipt is the id of the window charged; when that window is over nothing is given back.
function counted.adjust(now, delta, receipt, count, id, stop)
  if delta < 0 and (count == 0 or id ~= receipt) then return false end
  return stop - now, { math.max(count + delta, 0), id }
end
