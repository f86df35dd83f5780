-- What the scripts of windows and buckets share: it stands before each of them, after the line of src/store/script.rs
-- that says how ARGV looks. The same arithmetic, with the same roundings, is in src/core/gcra.rs and
-- src/core/window.rs; src/store/memory.rs answers the same calls, and a test holds all to it.
--
-- Redis runs these lines anew for every call, and makes every function that they define: that costs as much as a few
-- commands. So what happens once in a call stands here in its place, functions are few, and what is seldom needed
-- is defined where it is.
--
-- KEYS[1]  the hash of one key under one policy. Its fields:
--          e        epoch: never 0; another one than before = the store lost or reset the key
--          z        "1" when the epoch was born by a reset
--          c        census "cid nodes-now nodes-before nodes-before-seen-again"
--          o        gcra: tokens lent that nobody has accounted for "now before period"
--          n:NODE   a node's last calls and its account
--                   "cid acquire-id granted other-id lent period at1 at2 ..."
--          p:NODE   slots of a concurrent limit (occupy.lua)
--          fI oI sI      limit I by algorithm (fixed, from-first, sliding): "used prev at"
--          gI       a bucket: "micros seconds at", the first two how deep it was when it was charged
-- ARGV     1 now (us; 0 = the clock of Redis), 2 node, 3 "id a b c ..." (id 0 = remember nothing; the script says
--          what the others are), from 4 on the limits: "kind count period burst x y z" (kind: its letter; gcra with
--          count and period in lowest terms; the script says what x, y and z are)
-- Reply    granted, replayed (1 = executed before, 2 = the node's last id was higher: nothing was
--          done), damaged, epoch, reset, nodes, now, then used, prev, at of each limit.
-- Units    tokens and microseconds. All numbers are integers below 2^53, exact in doubles.

local call, find, format, match = redis.call, string.find, string.format, string.match
local floor, max, min = math.floor, math.max, math.min

local EXACT = 9007199254740991
-- Nodes of a key.
local MOST = 4294967295
-- The deepest that a bucket may be: 71 years.
local DEEPEST = 2 ^ 51
local SECOND = 1000000
-- Under gcra a lease is accounted for within this period or the next, or counts as spent.
local PERIOD = 2 * SECOND
-- gcra: a node that is alone with a key is lent what comes within this time, too (acquire.lua).
local AHEAD = 500000
local WRONG = 'ERR rationd: wrong arguments: daemon and script differ in version'
local THREE = '^(%d+) (%d+) (%d+)$'

-- a / b, rounded up. Where a + b is not exact, the quotient could reach the next integer.
local function up(a, b)
  if a + b <= EXACT then return floor((a + b - 1) / b) end
  local rest = math.fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

-- a * b / c for b <= c: rounded up if c - 1 is added, and down if nothing is. Products that are not exact take long
-- division, seven bits of a at a time where c < 2^45, else one: so no step leaves the exact integers.
local function scaled(a, b, c, added)
  local product = a * b
  if product + c <= EXACT then return floor((product + added) / c) end
  local base, place = c < 2 ^ 45 and 128 or 2, 1
  while place * base <= a do place = place * base end
  local whole, rest = 0, 0
  while place >= 1 do
    local digit = floor(a / place)
    a, place = a - digit * place, place / base
    if base == 128 then
      local part = rest * 128 + digit * b
      whole, rest = whole * 128 + floor(part / c), part % c
    else
      whole = whole + whole
      if rest >= c - rest then whole, rest = whole + 1, rest - (c - rest) else rest = rest + rest end
      local more = digit * b
      if rest >= c - more then whole, rest = whole + 1, rest - (c - more) else rest = rest + more end
    end
  end
  return rest > 0 and added > 0 and whole + 1 or whole
end

-- gcra: the time that tokens cost, rounded up.
local function cost(limit, tokens)
  local whole, part, count = limit.whole, limit.part, limit.count
  if part == 0 then return tokens * whole end
  return tokens * whole + scaled(tokens, part, count, count - 1)
end

-- The arguments. HEAD and LIMIT are the patterns of the third and of a limit.

local hash, node = KEYS[1], ARGV[2]
local now = match(ARGV[1] or '', '^%d+$')
local id, a1, a2, a3, a4, a5, a6, a7, a8 = match(ARGV[3] or '', HEAD)
if not now or now + 0 > 2 ^ 52 or not id or id + 0 > EXACT or #node > 255 or #ARGV < 4 or #ARGV > 11 then
  return redis.error_reply(WRONG)
end
now, id = now + 0, id + 0
local limits, has_gcra = {}, false
for i = 4, #ARGV do
  local kind, count, period, burst, x, y, z = match(ARGV[i], LIMIT)
  if not kind then return redis.error_reply(WRONG) end
  count, period, burst, x, y, z = count + 0, period + 0, burst + 0, (x or 0) + 0, (y or 0) + 0, (z or 0) + 0
  if count > EXACT or burst > EXACT or x > EXACT or y > EXACT or z > EXACT or period > 2 ^ 49
    or count * period * burst == 0 then
    return redis.error_reply(WRONG)
  end
  local whole, part, depth, coming = 0, 0, nil, 0
  if kind == 'g' then
    has_gcra = true
    whole, part = floor(period / count), period % count
    -- Single costs round up; a full bucket takes all of its burst one by one all the same.
    depth = burst * whole
    if part > 0 then depth = depth + scaled(burst, part, count, count - 1) + min(burst, whole) end
    -- What a node that is alone with the key is lent before it comes; nothing where numbers would not be exact.
    coming = floor(AHEAD * count / period)
    local most = burst + 2 + coming
    if count > MOST or most * count > EXACT or most * period / count > DEEPEST then coming = 0 end
    if (burst + 2) * period / count > DEEPEST then return redis.error_reply(WRONG) end
  end
  limits[i - 3] = {
    kind = kind, count = count, period = period, burst = burst, x = x, y = y, z = z,
    whole = whole, part = part, depth = depth, coming = coming,
    used = 0, prev = 0, at = 0, stored = false,
  }
end
if now == 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end

-- What the hash says. Malformed values are taken as missing and listed in `bad`.

local names = { 'e', 'z', 'c', 'n:' .. node, 'o', limits[1].kind .. '1' }
for i = 2, #limits do names[i + 5] = limits[i].kind .. i end
local values = redis.pcall('HMGET', hash, unpack(names))
local wrong_type, bad = false, nil
if values.err then
  if not find(values.err, 'WRONGTYPE', 1, true) then return values end
  wrong_type, values = true, {}
end
local function mark_bad(name)
  bad = bad or {}
  bad[#bad + 1] = name
end

local exists = values[1] or values[2] or values[3] or values[4] or values[5]

local epoch_now = values[1] and find(values[1], '^%d+$') and values[1] + 0
if values[1] and (not epoch_now or epoch_now > EXACT or epoch_now == 0) then
  epoch_now = nil
  mark_bad('e')
end
epoch_now = epoch_now or nil
local stored_epoch, was_reset = epoch_now, values[2] == '1'
if values[2] and not was_reset then mark_bad('z') end

-- The census.
local census_id, nodes_now, nodes_before, seen_again = -1, 0, 0, 0
local census_is_stored = false
if values[3] then
  local a, b, c, d = match(values[3], '^(%d+) (%d+) (%d+) (%d+)$')
  if a then a, b, c, d = a + 0, b + 0, c + 0, d + 0 end
  if a and max(a, b, c, d) <= EXACT then
    census_id, nodes_now, nodes_before, seen_again, census_is_stored = a, b, c, d, true
  else
    mark_bad('c')
  end
end

-- What this node asked for last, and its account; the windows of what it was granted, as text.
local has_record, asked_in, acquire_id, granted_then, other_id = false, 0, 0, 0, 0
local account, account_period, windows_then = 0, 0, ''
if values[4] then
  local a, b, c, d, e, f, rest = match(values[4], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)([ %d]*)$')
  if a then a, b, c, d, e, f = a + 0, b + 0, c + 0, d + 0, e + 0, f + 0 end
  if a and max(a, b, c, d, e, f) <= EXACT then
    has_record, asked_in, acquire_id, granted_then, other_id = true, a, b, c, d
    account, account_period, windows_then = e, f, rest
  else
    mark_bad(names[4])
  end
end

-- gcra: lent and not accounted for in this period, in the one before, and which this one is.
local lent_now, lent_before, lent_period = 0, 0, 0
if values[5] then
  local a, b, c = match(values[5], THREE)
  if a then a, b, c = a + 0, b + 0, c + 0 end
  if a and max(a, b) <= EXACT and c <= EXACT / PERIOD then
    lent_now, lent_before, lent_period = a, b, c
  else
    mark_bad('o')
  end
end

-- Each limit, brought to now.
for i = 1, #limits do
  local limit, text = limits[i], values[i + 5]
  local kind, period = limit.kind, limit.period
  local used, prev, at = 0, 0, 0
  if text then
    exists = true
    local a, b, c = match(text, THREE)
    if a then a, b, c = a + 0, b + 0, c + 0 end
    if not a or max(a, b, c) > EXACT or kind == 'g' and (a >= SECOND or b > MOST) then
      mark_bad(names[i + 5])
    else
      used, prev, at, limit.stored = a, b, c, true
    end
  end
  if kind == 'g' then
    -- Apart, as scripts of before take no number above 2^32 there.
    used, prev = 0, prev * SECOND + used
    -- Never further ahead than the bucket is deep, or was when it was charged: no change of numbers forgives a
    -- debt, and a clock that stepped back locks nobody out for longer than that bucket took to fill.
    at = min(at, now + max(limit.depth, prev))
  elseif kind == 'f' then
    local last = (floor(now / period) + 1) * period
    if at > now + period then
      at = last
    elseif now >= at then
      local follows = at ~= 0 and at + period == last
      used, prev, at = follows and prev or 0, 0, last
    end
  elseif kind == 'o' then
    if now >= at then
      used, prev, at = 0, 0, 0
    else
      at = min(at, now + period)
    end
  else
    local start = floor(now / period) * period
    if at + period == start then
      used, prev = 0, used
    elseif at + period < start then
      used, prev = 0, 0
    end
    at = start
  end
  limit.used, limit.prev, limit.at = used, prev, at
end

-- gcra: tokens were spent, the last of them at that time. What a deeper bucket still has owed stays owed.
local function spend(limit, tokens, at)
  if tokens <= 0 then return end
  local depth, tat = limit.depth, limit.at
  if tat <= at + depth then limit.prev = depth else limit.prev = max(depth, limit.prev) end
  tat = max(tat, at) + cost(limit, min(tokens, limit.burst + limit.coming))
  limit.at = min(tat, now + max(depth, limit.prev))
end

-- What was not accounted for in two periods counts as spent, as of the end of the second.
if has_gcra then
  local period = floor(now / PERIOD)
  if lent_period < period then
    local follows = lent_period + 1 == period
    local lapsed, ended = lent_now, lent_period + 2
    for i = 1, #limits do
      if limits[i].kind == 'g' then
        spend(limits[i], lent_before, (lent_period + 1) * PERIOD)
        if not follows then spend(limits[i], lapsed, ended * PERIOD) end
      end
    end
    lent_now, lent_before = 0, follows and lapsed or 0
  end
  lent_period = period
end
-- Whether what this node's record says of its account still holds.
local is_open = account_period > 0 and (account_period == lent_period or account_period == lent_period - 1)

-- The census as it is now, before this call is counted in it.
local census_period = 60 * SECOND
for i = 1, #limits do census_period = min(census_period, limits[i].depth or limits[i].period) end
census_period = max(census_period, SECOND)
local census_has_rolled = census_id ~= floor(now / census_period)
if census_has_rolled then
  local follows = census_id + 1 == floor(now / census_period)
  census_id, nodes_now, nodes_before, seen_again = floor(now / census_period), 0, follows and nodes_now or 0, 0
end

local nodes = max(1, min(nodes_before + seen_again, MOST))

-- How the id of a return, refund or reset stands to the last of this node: 0 new, 1 the same, 2 older.
local seen = 0
if id ~= 0 and has_record and id <= other_id then seen = id == other_id and 1 or 2 end
local damaged = wrong_type or bad or exists and not epoch_now

-- What the script answers and writes: tail.lua does both. Without `fields` nothing is written; else those, this
-- node's record and the limits that are stored, or `all` of them; and if it `renews` the hash, how long that says
-- anything.
local granted, replayed = 0, 0
local fields, all, renews, counts_nodes
