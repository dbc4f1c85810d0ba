-- Distinct values: arithmetic only. Twin of src/limiting/algorithm/distinct/mod.rs, which explains it: same names, same
-- order.
-- rule   at most limit values; window in ms; 0: a value counts for the window after its last request, 1: until the end
--        of a window that began with a value, 2: of one that begins at a multiple of its length, 3: of one of the
--        calendar; the value of a charge that is corrected, or 0; with 3, the starts of five consecutive windows, of
--        which the second is the current one by the clock of the gateway
-- state  the values with the times of their last requests: see lua/shapes/values.lua
-- tag    the value
local max, min = math.max, math.min

-- Returns the index of the start of the current calendar window. This server's clock decides, so any of the first three
-- windows may be current. False without a calendar, and if the clocks are too far apart: then a value counts for the
-- length of a window.
local function index_at(rule, now)
  if rule[3] ~= 3 or now < rule[5] or now >= rule[8] then return false end
  return now >= rule[7] and 7 or now >= rule[6] and 6 or 5
end

-- Returns the current window; if the clock was set back a little, it is still that of the newest value: the first time
-- that counts, the end of the window (false if each value leaves at its own time), its start to store, and whether times that are ahead have to be moved to now.
local function window_at(rule, state, now, window, index)
  local kind, newest, start = rule[3], state:nth_newest(0), state.start
  local is_repaired = (newest or now) > now + window or kind == 1 and start > now + window
  if index then is_repaired = newest and newest >= rule[index + 2] or false end
  local at = is_repaired and now or max(now, newest or now)
  local edge, stop = now - window, false
  if kind == 1 then
    if is_repaired and start > now or at >= start + window then start = at end
    edge, stop = start, start + window
  elseif kind == 2 then
    edge = at - at % window
    stop = edge + window
  elseif index then
    if at >= rule[index + 1] then index = index + 1 end
    edge, stop = rule[index], rule[index + 1]
  end
  return edge, stop, start, is_repaired, newest
end

local function decide(rule, state, now, cost, tag)
  local limit, window_ms = rule[1], rule[2]
  local value = rule[4] > 0 and rule[4] or tag
  local index = index_at(rule, now)
  if index then window_ms = rule[index + 1] - rule[index] end
  local longest, largest = max(state.longest, window_ms), max(state.largest, limit)
  local edge, stop, start, is_repaired, newest = window_at(rule, state, now, window_ms, index)
  local function at(ms)
    return ms and (is_repaired and min(ms, now) or ms)
  end

  local count = state:count_since(edge)
  -- The newest value that must leave before a further one fits.
  local last = count >= limit and at(state:nth_newest(limit - 1))
  local score = state:score(value)
  local own = score and at(math.floor(score / 2))
  if own and own < edge then own = false end
  -- Of a limit that was larger before, only the newest values count.
  local is_member = own and (count <= limit or not last or own >= last)
  local admitted = cost == 0 or is_member or not last
  local is_charged = admitted and cost > 0
  local is_new = is_charged and not own

  local retry = 0
  if not admitted then retry = (stop or last + window_ms + 1) - now end
  local time = max(now, edge, own or 0)
  newest = at(newest)
  if newest and newest < edge then newest = false end
  local latest = newest
  if is_charged then latest = max(newest or 0, time) end
  local reset = stop or latest and latest + window_ms + 1
  reset = reset and max(reset - now, 0) or 0
  -- The wait of a refusal is only exact if the window that it ends with is stored.
  local is_head_new = longest > state.longest or largest > state.largest or start ~= state.start
  local store = cost > 0 and (is_charged or is_repaired or state.head and is_head_new)
  local ttl = max((latest or at(state:nth_newest(0)) or now) + longest + 1 - now, 1)
  return admitted and true or false, max(limit - count - (is_new and 1 or 0), 0), retry, reset, is_new and time or 0,
    store and ttl, {
      moved_to = is_repaired and now, value = is_charged and value, ms = time, is_new = is_new,
      kept_since = now - longest, longest = longest, largest = largest, start = start,
    }
end

-- Removes a value that the charge added, if no other request has used it since; the receipt is its time.
local function adjust(rule, state, now, delta, receipt)
  local value = rule[4]
  if delta >= 0 or receipt <= 0 or state:score(value) ~= 2 * receipt then return false end
  local newest = state:nth_newest(0)
  -- The value may be the newest itself.
  if newest == receipt then newest = state:nth_newest(1) end
  local ttl = newest and max(newest + state.longest + 1 - now, 1) or 1
  return ttl, { remove = value }, 1
end

return { decide = decide, adjust = adjust, shape = 'values' }
