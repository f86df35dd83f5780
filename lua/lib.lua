-- What the scripts share: it stands before each of them (src/store/script.rs), so its first lines
-- are theirs too. The same arithmetic, with the same roundings, is in src/core/gcra.rs and
-- src/core/window.rs; src/store/memory.rs answers the same calls, and a test holds all to it.
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
-- ARGV     now (us; 0 = the clock of Redis), node, id (0 = remember nothing), then what the script
--          says, then for each limit: kind letter, count, period, burst (gcra with
--          count and period in lowest terms), and what the script says.
-- Reply    granted, replayed (1 = executed before, 2 = the node's last id was higher: nothing was
--          done), damaged, epoch, reset, nodes, now, then used, prev, at of each limit.
-- Units    tokens and microseconds. All numbers are integers below 2^53, exact in doubles.

local hash = KEYS[1]
local node, id = ARGV[2] or '', nil
local now
-- gcra: lent and not accounted for in this period, in the one before, and which this one is.
local lent = { 0, 0, 0 }
local has_gcra = false
local floor, max, min = math.floor, math.max, math.min

local EXACT = 9007199254740991
-- Nodes of a key, and slots of a concurrent limit.
local MOST = 4294967295
-- The deepest that a bucket may be: 71 years.
local DEEPEST = 2 ^ 51
local SECOND = 1000000
-- Under gcra a lease is accounted for within this period or the next, or counts as spent.
local PERIOD = 2 * SECOND
-- gcra: a node that is alone with a key is lent what comes within this time, too (acquire.lua).
local AHEAD = 500000
local WRONG = 'ERR rationd: wrong arguments: daemon and script differ in version'

local find, format, sub = string.find, string.format, string.sub

local function integer(text, most)
  if not text or #text > 16 or find(text, '%D') then return nil end
  local value = tonumber(text)
  if value and value <= most then return value end
end

-- All of the integers in text, or nil: at least `least` and at most `most` of them.
local function integers(text, least, most)
  if #text > 256 or find(text, '[^%d ]') then return nil end
  local list, count = {}, 0
  for word in string.gmatch(text, '%d+') do
    local value = #word <= 16 and tonumber(word)
    if not value or value > EXACT then return nil end
    count = count + 1
    list[count] = value
  end
  if count >= least and count <= most then return list end
end

-- A list of at most 14 integers.
local INTEGERS = '%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f'
local function written(list)
  return format(sub(INTEGERS, 1, 5 * #list - 1), unpack(list))
end

-- a / b, rounded up. Where a + b is not exact, the quotient could reach the next integer.
local function up(a, b)
  if a + b <= EXACT then return floor((a + b - 1) / b) end
  local rest = math.fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

-- a * b / c for b <= c, rounded down, and whether there is a rest: long division, for products that are
-- not exact. Seven bits of a at a time where c < 2^45, else one: so no step leaves the exact integers.
local function divided(a, b, c)
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
  return whole, rest > 0
end

-- a * b / c for b <= c, rounded up.
local function scaled_up(a, b, c)
  local product = a * b
  if product + c <= EXACT then return floor((product + c - 1) / c) end
  local whole, more = divided(a, b, c)
  return more and whole + 1 or whole
end

-- The same, rounded down.
local function scaled_down(a, b, c)
  local product = a * b
  if product + c <= EXACT then return floor(product / c) end
  return (divided(a, b, c))
end

-- gcra: the time that tokens cost (rounded up), and that they are worth when returned (down).
local function cost(limit, tokens)
  return tokens * limit.whole + scaled_up(tokens, limit.part, limit.count)
end

local function worth(limit, tokens)
  return tokens * limit.whole + scaled_down(tokens, limit.part, limit.count)
end

-- Completes a gcra limit, and says whether all that is computed from it stays exact.
local function complete_gcra(limit)
  limit.whole, limit.part = floor(limit.period / limit.count), limit.period % limit.count
  local tokens = limit.burst + 2
  -- Single costs round up; a full bucket takes all of its burst one by one all the same.
  local slack = limit.part == 0 and 0 or min(limit.burst, limit.whole)
  limit.depth = cost(limit, limit.burst) + slack
  -- What a node that is alone with the key is lent before it comes; nothing where numbers would not be exact.
  limit.coming = floor(AHEAD * limit.count / limit.period)
  local most = tokens + limit.coming
  if limit.count > MOST or most * limit.count > EXACT or most * limit.period / limit.count > DEEPEST then
    limit.coming = 0
  end
  return tokens * limit.period / limit.count <= DEEPEST
end

-- now, node and id, then the limits from ARGV[first] on, of the kinds that match, each with `extra`
-- more integers.
local function read_arguments(first, extra, kinds)
  now, id = integer(ARGV[1], 2 ^ 52), integer(ARGV[3], EXACT)
  local each = 4 + extra
  local count = (#ARGV - first + 1) / each
  if not now or not id or #node > 255 or count < 1 or count > 8 or count % 1 ~= 0 then return nil end
  local limits = {}
  for i = 1, count do
    local at = first + (i - 1) * each
    local limit = {
      kind = ARGV[at],
      field = ARGV[at] .. i,
      count = integer(ARGV[at + 1], EXACT),
      period = integer(ARGV[at + 2], 2 ^ 49),
      burst = integer(ARGV[at + 3], EXACT),
    }
    if not find(limit.kind, kinds or '^[gfos]$') then return nil end
    if not limit.count or not limit.period or not limit.burst then return nil end
    if limit.count * limit.period * limit.burst == 0 then return nil end
    if limit.kind == 'g' and not complete_gcra(limit) then return nil end
    has_gcra = has_gcra or limit.kind == 'g'
    for more = 1, extra do
      limit[more] = integer(ARGV[at + 3 + more], EXACT)
      if not limit[more] then return nil end
    end
    limits[i] = limit
  end
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * SECOND + time[2]
  end
  return limits
end

local function roll_fixed(counter, limit)
  local last = (floor(now / limit.period) + 1) * limit.period
  if counter.at > now + limit.period then
    counter.at = last
  elseif now >= counter.at then
    local follows = counter.at ~= 0 and counter.at + limit.period == last
    counter.used, counter.prev, counter.at = follows and counter.prev or 0, 0, last
  end
end

local function roll_from_first(counter, limit)
  if now >= counter.at then
    counter.used, counter.prev, counter.at = 0, 0, 0
  else
    counter.at = min(counter.at, now + limit.period)
  end
end

local function roll_sliding(counter, limit)
  local start = floor(now / limit.period) * limit.period
  local last = counter.at + limit.period
  if last == start then
    counter.used, counter.prev = 0, counter.used
  elseif last < start then
    counter.used, counter.prev = 0, 0
  end
  counter.at = start
end

-- Never further ahead than the bucket is deep, or was when it was charged: no change of numbers forgives
-- a debt, and a clock that stepped back locks nobody out for longer than that bucket took to fill.
local function clamp_tat(tat, limit, depth)
  return min(tat, now + max(limit.depth, depth))
end

-- Brings the counter to now.
local function roll(counter, limit)
  if limit.kind == 'g' then
    counter.at = clamp_tat(counter.at, limit, counter.prev)
  elseif limit.kind == 'f' then
    roll_fixed(counter, limit)
  elseif limit.kind == 'o' then
    roll_from_first(counter, limit)
  else
    roll_sliding(counter, limit)
  end
end

-- The most tokens whose cost fits: an estimate in doubles, corrected by the exact cost.
local function left_gcra(counter, limit)
  local room = now + limit.depth - max(counter.at, now)
  local tokens = max(min(floor(room * limit.count / limit.period), limit.burst), 0)
  while tokens > 0 and cost(limit, tokens) > room do tokens = tokens - 1 end
  while tokens < limit.burst and cost(limit, tokens + 1) <= room do tokens = tokens + 1 end
  return tokens
end

-- Tokens that can be lent, rounded down.
local function left(counter, limit)
  if limit.kind == 'g' then return max(left_gcra(counter, limit) - lent[1] - lent[2], 0) end
  local tokens = limit.count - counter.used
  if limit.kind == 's' then
    tokens = tokens - scaled_up(counter.prev, counter.at + limit.period - now, limit.period)
  end
  return max(tokens, 0)
end

local function credit(counter, limit, tokens)
  if limit.kind ~= 'g' then
    counter.used = max(counter.used - tokens, 0)
  elseif tokens * limit.whole > EXACT then
    -- Worth more than any debt, and not exact.
    counter.at = 0
  else
    counter.at = max(counter.at - worth(limit, tokens), 0)
  end
end

-- gcra: tokens were spent, the last of them at that time. What a deeper bucket still has owed stays owed.
local function spend(counters, limits, tokens, at)
  for i = 1, #limits do
    local limit, counter = limits[i], counters[i]
    if limit.kind == 'g' and tokens > 0 then
      local fits = counter.at <= at + limit.depth
      counter.prev = fits and limit.depth or max(limit.depth, counter.prev)
      local tat = max(counter.at, at) + cost(limit, min(tokens, limit.burst + limit.coming))
      counter.at = clamp_tat(tat, limit, counter.prev)
    end
  end
end

-- What was not accounted for in two periods counts as spent, as of the end of the second.
local function roll_lent(state, limits)
  local period = floor(now / PERIOD)
  if lent[3] < period then
    spend(state.counters, limits, lent[2], (lent[3] + 1) * PERIOD)
    if lent[3] + 1 == period then
      lent = { 0, lent[1], period }
    else
      spend(state.counters, limits, lent[1], (lent[3] + 2) * PERIOD)
      lent = { 0, 0, period }
    end
  end
  lent[3] = period
end

-- Whether what a record says of an account still holds.
local function is_open(record)
  return record[6] > 0 and (record[6] == lent[3] or record[6] == lent[3] - 1)
end

-- What this node was lent and has not accounted for; from here on it is lent nothing.
local function close_account(state)
  local record = state.record
  if not record or not is_open(record) then return 0 end
  local place = record[6] == lent[3] and 1 or 2
  lent[place] = max(lent[place] - record[5], 0)
  return record[5]
end

-- An account that was not renewed in time has been charged as spent. A node that was only late says now what it
-- has not spent of it, and that is credited, as long as the bucket cannot have filled up since: a charge
-- that has leaked away is worth nothing any more.
local function take_back_lapsed(state, limits, rest)
  local record = state.record
  local lapsed = record[5]
  if lapsed == 0 or record[6] == 0 or rest == 0 then return false end
  record[5] = 0
  local charged_at = (record[6] + 2) * PERIOD
  for i = 1, #limits do
    local limit = limits[i]
    if limit.kind == 'g' and now < charged_at + cost(limit, min(lapsed, limit.burst)) then
      credit(state.counters[i], limit, min(rest, lapsed))
    end
  end
  return true
end

-- The account is closed: what this node was lent, less what it still `has` and hands `back`, it has spent, as if
-- in one go as long ago as the argument in that place of each limit says; but never more than `most`. What it has beyond the account was
-- charged for somebody at the node who did not get it: that charge is taken back. Returns what it was lent, and
-- whether anything was open.
local function settle_account(state, limits, has, back, place, most)
  local record = state.record
  if not record then return 0, false end
  if not is_open(record) then return 0, take_back_lapsed(state, limits, has + back) end
  local account = close_account(state)
  -- One after the other: their sum may be no exact number.
  local spent = min(account - has - back, most)
  for i = 1, #limits do
    local one, counter = { limits[i] }, state.counters[i]
    spend({ counter }, one, max(spent, 0), max(now - limits[i][place], 0))
    if limits[i].kind == 'g' and spent < 0 then credit(counter, limits[i], -spent) end
  end
  return account, true
end

-- From here on this node is lent so much.
local function open_account(record, tokens)
  record[5], record[6] = 0, 0
  if not has_gcra then return end
  tokens = min(tokens, EXACT)
  lent[1] = min(lent[1] + tokens, EXACT)
  record[5], record[6] = tokens, lent[3]
end

-- Everything the hash says, malformed values taken as missing and listed in `bad`.
local function load(limits)
  local names = { 'e', 'z', 'c', 'n:' .. node, 'o' }
  for i = 1, #limits do names[i + 5] = limits[i].field end
  local values = redis.pcall('HMGET', hash, unpack(names))
  local state = { bad = {}, counters = {}, reset = false, exists = false }
  if values.err then
    if not find(values.err, 'WRONGTYPE', 1, true) then return nil, values end
    state.wrong_type, values = true, {}
  end
  local function parsed(i, parse, ...)
    if not values[i] then return nil end
    state.exists = true
    local value = parse(values[i], ...)
    if not value then state.bad[#state.bad + 1] = names[i] end
    return value
  end
  state.epoch = parsed(1, integer, EXACT)
  if state.epoch == 0 then state.epoch, state.bad[#state.bad + 1] = nil, 'e' end
  state.reset = parsed(2, function(text) return text == '1' end) or false
  state.census = parsed(3, integers, 4, 4) or { -1, 0, 0, 0 }
  state.record = parsed(4, integers, 6, 14)
  lent = parsed(5, integers, 3, 3) or { 0, 0, 0 }
  if lent[3] > EXACT / PERIOD then
    lent, state.bad[#state.bad + 1] = { 0, 0, 0 }, 'o'
  end
  for i = 1, #limits do
    local list, gcra = parsed(i + 5, integers, 3, 3), limits[i].kind == 'g'
    if list and gcra and (list[1] >= SECOND or list[2] > MOST) then
      list, state.bad[#state.bad + 1] = nil, limits[i].field
    end
    local stored = list ~= nil
    list = list or { 0, 0, 0 }
    local counter = { used = list[1], prev = list[2], at = list[3], stored = stored, gcra = gcra }
    -- Apart, as scripts of before take no number above 2^32 there.
    if gcra then counter.used, counter.prev = 0, list[2] * SECOND + list[1] end
    roll(counter, limits[i])
    state.counters[i] = counter
  end
  roll_lent(state, limits)
  state.damaged = state.wrong_type or #state.bad > 0 or (state.exists and not state.epoch)
  return state
end

-- The census as it is now, before this call is counted in it.
local function roll_census(state, limits)
  local period = 60 * SECOND
  for i = 1, #limits do period = min(period, limits[i].depth or limits[i].period) end
  state.census_period = max(period, SECOND)
  local stored, cid = state.census, floor(now / state.census_period)
  if stored[1] == cid then return end
  local before = stored[1] + 1 == cid and stored[2] or 0
  state.census, state.census_rolled = { cid, 0, before, 0 }, true
end

local function nodes(state)
  return max(1, min(state.census[3] + state.census[4], MOST))
end

-- The fields of the limits, of all or of those that are stored, appended to the pairs of an HSET.
local function add_counters(fields, state, limits, all)
  for i = 1, #limits do
    local counter = state.counters[i]
    if all or counter.stored then
      local used, prev = counter.used, counter.prev
      if counter.gcra then used, prev = prev % SECOND, floor(prev / SECOND) end
      fields[#fields + 1] = limits[i].field
      fields[#fields + 1] = written({ used, prev, counter.at })
    end
  end
end

local function add_lent(fields)
  fields[#fields + 1] = 'o'
  fields[#fields + 1] = written(lent)
end

local function add_record(fields, record)
  fields[#fields + 1] = 'n:' .. node
  fields[#fields + 1] = written(record)
end

local function save(state, fields)
  if state.wrong_type then redis.call('DEL', hash) end
  if #state.bad > 0 then redis.call('HDEL', hash, unpack(state.bad)) end
  if #fields > 0 then redis.call('HSET', hash, unpack(fields)) end
end

-- Lets Redis forget the hash when it has said nothing new for so long: cleaning up, nothing more.
local function expire_after(span)
  redis.call('PEXPIRE', hash, format('%.0f', up(span, 1000) + 1))
end

-- How this id stands to the last one of its kind: 0 new, 1 the same, 2 older.
local function standing(last)
  if id == 0 or not last or id > last then return 0 end
  return id == last and 1 or 2
end

-- The same for a return, refund or reset.
local function seen_before(state)
  return standing(state.record and state.record[4])
end

-- This node's record after such a call.
local function remembered(state)
  local record = state.record or { 0, 0, 0, 0, 0, 0 }
  record[4] = id
  return record
end

local function answer(state, granted, replayed)
  local reply = {
    granted, replayed or 0, state.damaged and 1 or 0,
    state.epoch or 0, state.reset and 1 or 0, nodes(state), now,
  }
  for i = 1, #state.counters do
    local counter = state.counters[i]
    reply[#reply + 1] = counter.gcra and min(lent[1] + lent[2], EXACT) or counter.used
    reply[#reply + 1] = counter.prev
    reply[#reply + 1] = counter.at
  end
  return reply
end
