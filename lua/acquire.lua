-- acquire: lends tokens of all limits, or of none. May lend a part of what is wanted.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     4 need, 5 want, 6 least (tokens), 7 ahead_of (us; 0 = lend of now, else of the window
--          after the one that ends then), 8 epoch (as the node knows it; 0 = none), 9 held (tokens
--          lent before that it has not spent); per limit more: known_used (tokens), known_at (us), age
--          (gcra: us since it spent the others, taken as spent in one go)
-- Reply    lib.lua's; granted = tokens lent: none where the node brings back what the store has lost. With
--          an id that was executed before, the answer of then.

local need, want, least = integer(ARGV[4], EXACT), integer(ARGV[5], EXACT), integer(ARGV[6], EXACT)
local ahead_of, epoch = integer(ARGV[7], EXACT), integer(ARGV[8], EXACT)
local held = integer(ARGV[9], EXACT)
local limits = read_arguments(10, 3)
if not limits or not need or not want or not least or not ahead_of or not epoch or not held then
  return redis.error_reply(WRONG)
end
local state, failure = load(limits)
if not state then return failure end
local counters = state.counters
roll_census(state, limits)

-- What was granted under this id, as far as it can still be spent: a window that is over took its
-- tokens with it, and so did an account that was closed for this node.
local function granted_before()
  local record = state.record
  local granted = min(record[3], max(want, need))
  for i = 1, #limits do
    local open = limits[i].kind == 'g' and is_open(record)
    if limits[i].kind ~= 'g' then open = (record[6 + i] or 0) == counters[i].at end
    if not open then granted = 0 end
  end
  return granted
end

-- What this node knows that it spent or holds, and the store has lost, is added again; never above
-- the limit.
local function restore(counter, limit, used, at)
  if limit.kind == 'g' then
    counter.at = max(counter.at, clamp_tat(at, limit, 0))
    spend({ counter }, { limit }, used, now)
    return
  end
  if limit.kind == 'o' and counter.at == 0 and at > now and at <= now + limit.period then
    counter.at = at
  end
  if at ~= 0 and at == counter.at then
    counter.used = min(counter.used + used, limit.count)
  end
end

-- Counts this node once per census period.
local function count_node()
  local census, asked = state.census, state.record and state.record[1]
  if asked == census[1] then return end
  census[2] = census[2] + 1
  if asked ~= census[1] - 1 then census[4] = census[4] + 1 end
end

local function left_of_all(kept)
  if ahead_of ~= 0 then
    local limit, counter = limits[1], counters[1]
    local next_is_known = counter.at == ahead_of and counter.at % limit.period == 0
    if #limits > 1 or limit.kind ~= 'f' or not next_is_known then return 0 end
    -- Two fifths are kept for who asks in that window.
    local fifth = floor(limit.count / 5)
    local for_then = 2 * fifth + up(2 * (limit.count - 5 * fifth), 5)
    return max(limit.count - for_then - counter.prev, 0)
  end
  local least_left = EXACT
  for i = 1, #limits do
    local tokens = left(counters[i], limits[i])
    if limits[i].kind == 'g' then tokens = max(tokens - kept, 0) end
    least_left = min(least_left, tokens)
  end
  return least_left
end

-- A node that is alone with a key may be lent tokens of a bucket before they have trickled in: it knows from
-- the answer when each of them comes, and spends none before. Another node finds them lent. What somebody
-- waits for is charged at once, and has to be there.
local function reach(kept, tokens)
  if ahead_of ~= 0 or id == 0 or not has_gcra or nodes(state) > 1 or tokens < need then return tokens end
  local most = EXACT
  for i = 1, #limits do
    local limit, counter = limits[i], counters[i]
    if limit.kind == 'g' then
      most = min(most, left_gcra(counter, limit) - (lent[1] + lent[2]) - kept + limit.coming)
    else
      most = min(most, left(counter, limit))
    end
  end
  return max(most, tokens)
end

-- Guided self-scheduling: nobody takes more than its part of what is left, beyond what waits.
local function share_of(tokens)
  if tokens < least then return 0 end
  local capacity, parts = EXACT, 2
  for i = 1, #limits do
    capacity = min(capacity, limits[i].burst)
    -- A window's tail is shared to the last; what trickles in is handed out by the lot.
    if limits[i].kind == 'f' or limits[i].kind == 'o' then parts = 32 end
  end
  local part = max(need, up(tokens, nodes(state)), up(capacity, parts * nodes(state)))
  return min(max(want, need), tokens, part)
end

local function debit(counter, limit, tokens)
  if ahead_of ~= 0 then
    counter.prev = counter.prev + tokens
  elseif limit.kind ~= 'g' then
    if limit.kind == 'o' and counter.at == 0 and tokens > 0 then counter.at = now + limit.period end
    counter.used = counter.used + tokens
  end
end

-- How long the hash says anything that a missing one would not.
local function lifetime()
  local span = 2 * state.census_period
  for i = 1, #limits do
    local limit, at = limits[i], counters[i].at
    local ends
    if limit.kind == 'g' then
      ends = max(at - now, 0) + limit.depth
      if lent[1] + lent[2] > 0 then ends = ends + limit.depth + 2 * PERIOD end
    elseif limit.kind == 's' then
      ends = at + 3 * limit.period - now
    elseif at == 0 then
      ends = 2 * limit.period
    else
      ends = at + limit.period - now
    end
    span = max(span, ends)
  end
  return span
end

-- Drops records of nodes that have not asked for two census periods, a bounded number at a time.
local function prune()
  local expected = 8 + #limits + 2 * nodes(state) + 16
  if redis.call('HLEN', hash) <= expected then return end
  local names, own = {}, 'n:' .. node
  for _, name in ipairs(redis.call('HKEYS', hash)) do
    if sub(name, 1, 2) == 'n:' and name ~= own then names[#names + 1] = name end
  end
  local some, stale = {}, {}
  for i = 1, min(#names, 500) do
    some[i] = names[(state.census[1] * 500 + i) % #names + 1]
  end
  if #some == 0 then return end
  for i, record in ipairs(redis.call('HMGET', hash, unpack(some))) do
    local asked = integer(string.match(record, '^%d+') or '', EXACT)
    if asked ~= state.census[1] and asked ~= state.census[1] - 1 then stale[#stale + 1] = some[i] end
  end
  if #stale > 0 then redis.call('HDEL', hash, unpack(stale)) end
end

local seen = standing(state.record and state.record[2])
if seen ~= 0 then return answer(state, seen == 1 and granted_before() or 0, seen) end

-- Once per node: its first acquire under an epoch that it does not know, unless a reset began it.
local lost = epoch ~= 0 and epoch ~= state.epoch and not state.reset
-- Others may have as much to tell: who brings back some of a window is lent nothing yet.
local restored = false
if lost and id ~= 0 and not state.record then
  for i = 1, #limits do
    local used, at = limits[i][1], limits[i][2]
    restore(counters[i], limits[i], used, at)
    restored = restored or limits[i].kind ~= 'g' and used > 0 and at ~= 0 and at == counters[i].at
  end
end
-- Ids of different nodes may meet: never the epoch that was lost.
if not state.epoch then state.epoch = max(id == epoch and id - 1 or id, 1) end
if id ~= 0 then count_node() else state.census = { -1, 0, 0, 0 } end
-- What this node was lent and holds no more it has spent.
settle_account(state, limits, held, 0, 3, EXACT)
local granted = restored and 0 or share_of(reach(held, left_of_all(held)))
for i = 1, #limits do debit(counters[i], limits[i], granted) end
-- gcra: what somebody waits for is spent now; the rest is set aside, and counts when it is spent.
local at_once = id == 0 and granted or min(granted, need)
spend(counters, limits, at_once, now)

local fields = { 'e', format('%.0f', state.epoch) }
add_counters(fields, state, limits, true)
if id ~= 0 then
  local record = { state.census[1], id, granted, state.record and state.record[4] or 0, 0, 0 }
  open_account(record, held + (granted - at_once))
  for i = 1, #limits do record[6 + i] = counters[i].gcra and 0 or counters[i].at end
  add_record(fields, record)
  if has_gcra then add_lent(fields) end
  fields[#fields + 1] = 'c'
  fields[#fields + 1] = written(state.census)
end
save(state, fields)
expire_after(lifetime())
if id ~= 0 and state.census_rolled then prune() end
return answer(state, granted)
