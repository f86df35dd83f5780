-- What the scripts of windows and buckets share: it stands before each of them, after the lines of src/store/script.rs
-- that say how ARGV looks. The same arithmetic, with the same roundings, is in src/core/gcra.rs and
-- src/core/window.rs; src/store/memory.rs answers the same calls, and a test holds all to it.
--
-- Redis runs these lines anew for every call. What that costs, in instructions, where a whole acquire takes 85,000 to 110,000
-- (callgrind, Redis 7.0.15 of Debian): a step of the interpreter, such as one value that is assigned, 45, of which it takes
-- 380 to 580; two texts or numbers that are compared 95; a field of a table 60 to 110; a function that is defined 320 and 100
-- more, with a cell to allocate and to collect, for each variable around it that it uses; texts that are put together 570; a
-- pattern 1,200 to 2,200; a text of one number 1,500, and 550 for each number more; a number that struct.unpack reads 270, and
-- one that struct.pack writes 500; a reply of seven numbers 8,600, and as one text 4,100; TIME 7,000, HMGET of six fields 16,600, HSET of two 5,900,
-- PEXPIRE 6,200. So arguments and replies are binary numbers in as few texts as possible, nothing is defined that another kind of limit needs, and what is done once
-- compares instead of calling max or min.
--
-- For the same reason src/store/form.rs makes six scripts of each of these files, by the rules of `written` there. Five are
-- for policies of one limit, which most are: in those a limit's fields are local variables. The sixth is for several
-- limits, whose fields are in tables. In all of them constants, whose names are in capitals, are written out, and the values of
-- one assignment are assigned one by one where that comes to the same, and numbers of a call bear from the start the names that a
-- script gives them. Of acquire there is a seventh, which lends of several keys
-- in one call: to begin a script, to ask for the time, to read the limit and to answer in numbers takes a third of an acquire,
-- and it does that once. A line that is one of these heads says which scripts have the lines below it, up to the next head or
-- arrow:
--   --<several   that for several limits
--   --<one       those for one limit
--   --<plain     of those the two where nothing is set aside for nodes that may lose the store: --<single for one key, and
--                --<many for several. What the latter does for each key is a function, which begins after the limit is read
--   --<aside     the other four: --<entitled for a window (entitled.lua), and of those --<fixed, --<opened (from the first request)
--                and --<sliding for each kind; --<bucket for a bucket (silent.lua)
--   --<alone     those for one limit and one key
-- Below any other head stands a block, up to its arrow, which is put wherever a line --= names it.
--
-- KEYS[1]  the hash of one key under one policy. Its fields:
--          e        epoch: never 0; another one than before = the store lost or reset the key
--          z        "1" when the epoch was born by a reset
--          c        census "cid nodes-now nodes-before nodes-before-seen-again"
--          o        gcra: tokens lent that nobody has accounted for "now before period"; missing while there are none. A period
--                   of accounts has the number of its first two seconds, whatever its length
--          n:NODE   a node's last calls and its account (name_in_keys of script.rs shortens its name), in one of three
--                   forms, of which the third is read only:
--                   cid, a colon, and in binary acquire-id, granted, other-id, lent (seven bytes each), period (four) and at1,
--                   at2, ... (seven each)
--                   cid, a semicolon (of a bucket a comma), and in binary acquire-id (seven bytes), granted (two) and at1 in
--                   seconds (of a bucket period; four), where there is one limit and the other numbers are 0
--                   "cid acquire-id granted other-id lent period at1 at2 ..."
--                   Its first byte that is no digit says to whoever reads another form that this is none, but its cid still
--                   tells when the node asked
--          p:NODE   slots of a concurrent limit (occupy.lua)
--          fI oI sI      limit I by algorithm (fixed, from-first, sliding): "used prev at"
--          gI       a bucket: "micros seconds at", the first two how deep it was when it was charged
-- ARGV     1 n:NODE, 2 now (us; 0 = the clock of Redis), id (0 = remember nothing), a, b, c ... (the script says what
--          they are), from 3 on the limits: kind (its letter), count, period, burst, x, y, z (gcra with count and
--          period in lowest terms; the script says what x, y and z are). Each number has seven bytes, the lowest first;
--          the formats of struct.unpack are in the lines before this file.
--          One limit stands with the call's numbers in 2, because an argument costs as much as several numbers: kind, count,
--          period, burst, now, id, a, b, c ..., x, y, z. Where tokens are set aside there is a third one, the name of the field of the
--          node's part. For several keys: 1 n:NODE, 2 the limit up to its burst, and from 3 on what stands behind that otherwise, in the
--          order of KEYS; x, y and z may be missing there if they are 0
-- Reply    granted, marks, epoch, now, then used, prev, at of each limit, as text, of seven bytes each, the lowest first. Redis takes
--          longer for an array of seven integers than Lua for the whole text. The marks are 1 (executed before), 2 (the node's last
--          id was higher: nothing was done) or 3 (it came outside of its time: nothing was done), 4 (damaged), 8 (the epoch was born by a reset), and 16 for each of the nodes.
--          Of several keys the same, one key after another; or, if a key had an error, an array of such texts and of errors
-- Units    tokens and microseconds. All numbers are integers below 2^53, exact in doubles.

-- A global is looked up by its name in a table whenever it is named.
local redis, struct, string = redis, struct, string
local call, pack, numbers_of, match, format = redis.call, struct.pack, struct.unpack, string.match, string.format

local EXACT = 9007199254740991
-- Nodes of a key, periods of accounts (until 2242), and whatever else has four bytes.
local MOST = 4294967295
-- The deepest that a bucket may be: 71 years.
local DEEPEST = 2 ^ 51
local SECOND = 1000000
-- Under gcra a lease is accounted for within the period of accounts in which it was opened or the next, or counts as spent. A period has
-- one to eight times these seconds, and no more than a sixth of the time in which the bucket fills (src/core/gcra.rs says why).
local UNIT, LONGEST, DEPTH_PART = 2 * SECOND, 8, 6
-- gcra: a node that is alone with a key is lent what comes within this time, too (acquire.lua).
local AHEAD = 500000
local WRONG = 'ERR rationd: wrong arguments: daemon and script differ in version'
local THREE = '^(%d+) (%d+) (%d+)$'
-- An acquire that was executed is remembered for at least this long, with its node's record and its key.
local CALL_LIFE = SECOND
-- A node's record behind its colon, and how long that is; and behind its semicolon or comma.
local RECORD, RECORD_BYTES, RECORD_OF_ONE = '<I7I7I7I7I4', 32, '<I7I7I7I7I4I7'
local SHORT, SHORT_BYTES = '<I7I2I4', 13
-- Bytes of the name of a node's field at most, and how many arguments a script for one limit and one key has.
local OWN_NAME = 257
--<single
local ARGUMENTS = 2
--<aside
local ARGUMENTS = 3
-->
-- The answer.
local REPLY = '<I7I7I7I7I7I7I7'
--<entitled
REPLY = '<I7I7I7I7I7I7I7I7'
--<bucket
REPLY = '<I7I7I7I7I7I7I7I7I7'
-->

-- The arguments. HEAD and LIMIT are the formats of the second and of a limit, and ALL that of both where they are one. Behind the
-- last number struct.unpack gives the place at which it ended, which stands in the first of those that a script does not have.

local argv = ARGV
--<several
local hash, own, head = KEYS[1], argv[1], argv[2]
local LIMITS = #argv - 2
if not head or #head ~= HEAD_BYTES or #own > OWN_NAME or LIMITS < 1 or LIMITS > 8 then return redis.error_reply(WRONG) end
--<one
local LIMITS = 1
--<alone
local hash = KEYS[1]
local own, head = argv[1], argv[2]
if #argv ~= ARGUMENTS or #head ~= ALL_BYTES or #own > OWN_NAME then return redis.error_reply(WRONG) end
--<many
-- The keys of one call: what they share stands before what each says, and is read once.
local keys, own, limit_text = KEYS, argv[1], argv[2]
if #keys < 1 or #argv ~= #keys + 2 or #own > OWN_NAME then return redis.error_reply(WRONG) end
-->
local has_gcra = false
-- How many of them a period of accounts has. Where tokens are set aside for nodes that fall silent, no more than one: see silent.lua.
--<several
local units = LONGEST
--<one
local units = 1
local limit_name, limit_whole, limit_part, limit_depth, limit_coming
--<alone
local limit_kind, limit_count, limit_period, limit_burst, now, id, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 =
  numbers_of(ALL, head)
local limit_x, limit_y, limit_z
--<many
-- What x, y and z are each key says for itself, behind its numbers, unless all of them are 0.
local OWN, OWN_BYTES = '<I7I7I7', 21
if #limit_text ~= LIMIT_BYTES - OWN_BYTES then return redis.error_reply(WRONG) end
local limit_kind, limit_count, limit_period, limit_burst = numbers_of('<c1I7I7I7', limit_text)
local limit_x, limit_y, limit_z = 0, 0, 0
-->

-- a * b / c for b <= c: rounded up if c - 1 is added, and down if nothing is. Products that are not exact take long
-- division, seven bits of a at a time where c < 2^45, else one: so no step leaves the exact integers. A window that does
-- not slide has nothing to scale, nor has a bucket whose tokens cost whole microseconds.
local scaled
--<one
if limit_kind == 's' or limit_kind == 'g' and limit_period % limit_count > 0 then
--<several
do
-->
  scaled = function(a, b, c, added)
    local product = a * b
    if product + c <= 9007199254740991 then
      product = (product + added) / c
      return product - product % 1
    end
    local floor = math.floor
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
end

--<several
local limits = {}
for i = 1, LIMITS do
  local text = argv[i + 2]
  if #text ~= LIMIT_BYTES then return redis.error_reply(WRONG) end
  -- No more fields than sixteen, with those of a bucket: a table that has more grows.
  local limit = {
    kind = false, name = false, count = 0, period = 0, burst = 0, x = 0, y = 0, z = 0, used = 0, prev = 0, at = 0,
    stored = false,
  }
  local limit_kind, limit_count, limit_period, limit_burst, x, y, z = numbers_of(LIMIT, text)
  local limit_whole, limit_part, limit_depth, limit_coming
  limit.kind, limit.count, limit.period, limit.burst, limit.x, limit.y, limit.z =
    limit_kind, limit_count, limit_period, limit_burst, x, y, z
--<one
do
-->
  if limit_kind ~= 'g' and limit_kind ~= 'f' and limit_kind ~= 's' and limit_kind ~= 'o'
    or limit_count > EXACT or limit_burst > EXACT
--<several
    or limit.x > EXACT or (limit.y or 0) > EXACT or (limit.z or 0) > EXACT
-->
    or limit_period > 2 ^ 49 or limit_count * limit_period * limit_burst == 0 then
    return redis.error_reply(WRONG)
  end
  if limit_kind == 'g' then
    has_gcra = true
    limit_part = limit_period % limit_count
    limit_whole = (limit_period - limit_part) / limit_count
    -- Single costs round up; a full bucket takes all of its burst one by one all the same.
    limit_depth = limit_burst * limit_whole
    if limit_part > 0 then
      limit_depth = limit_depth + scaled(limit_burst, limit_part, limit_count, limit_count - 1)
        + (limit_burst < limit_whole and limit_burst or limit_whole)
    end
    -- What a node that is alone with the key is lent before it comes; nothing where numbers would not be exact.
    limit_coming = AHEAD * limit_count / limit_period
    limit_coming = limit_coming - limit_coming % 1
    if limit_coming > 0 then
      local most = limit_burst + 2 + limit_coming
      if limit_count > MOST or most * limit_count > EXACT or most * limit_period / limit_count > DEEPEST then limit_coming = 0 end
    end
    if (limit_burst + 2) * limit_period / limit_count > DEEPEST then return redis.error_reply(WRONG) end
--<several
    limit.whole, limit.part, limit.depth, limit.coming = limit_whole, limit_part, limit_depth, limit_coming
    local fit = limit_depth / (DEPTH_PART * UNIT)
    if fit < units then units = fit < 1 and 1 or fit - fit % 1 end
--<plain
    units = limit_depth / (DEPTH_PART * UNIT)
    units = units < 1 and 1 or units > LONGEST and LONGEST or units - units % 1
-->
  end
--<several
  limit.name = limit_kind .. i
  limits[i] = limit
--<one
  -- A text that is in the script is not put together anew.
  limit_name = has_gcra and 'g1' or limit_kind == 'f' and 'f1' or limit_kind .. '1'
-->
end
--<several
local first = limits[1]
if not has_gcra then units = 1 end
-->
local PERIOD = units * UNIT
--<many
-- All keys are asked for at the same moment.
local clock = 0
local function lend(place)
local hash, head = keys[place], argv[place + 2]
-- Of its own a variable is reached more quickly than around it.
local limit_kind, limit_count, limit_period, limit_burst = limit_kind, limit_count, limit_period, limit_burst
local limit_whole, limit_part, limit_depth, limit_coming = limit_whole, limit_part, limit_depth, limit_coming
local has_gcra = has_gcra
local limit_x, limit_y, limit_z = 0, 0, 0
if #head == HEAD_BYTES + OWN_BYTES then
  limit_x, limit_y, limit_z = numbers_of(OWN, head, HEAD_BYTES + 1)
  if limit_x > EXACT or limit_y > EXACT or limit_z > EXACT then return redis.error_reply(WRONG) end
elseif #head ~= HEAD_BYTES then
  return redis.error_reply(WRONG)
end
--<one
local limit_used, limit_prev, limit_at, limit_stored
-->
--<several
local now, id, a1, a2, a3, a4, a5, a6, a7, a8 = numbers_of(HEAD, head)
--<many
local now, id, a1, a2, a3, a4, a5, a6 = numbers_of(HEAD, head)
-->
if now > 2 ^ 52 or id > EXACT then return redis.error_reply(WRONG) end
local is_remembered = id ~= 0
--<many
if now == 0 then now = clock end
-->
if now == 0 then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
--<many
  clock = now
-->
end

-- Reads the hash. Malformed values are treated as missing, and listed in `bad`.

local values
--<several
local names = { 'e', 'z', 'c', own }
for i = 1, #limits do names[i + 4] = limits[i].name end
names[#names + 1] = has_gcra and 'o' or nil
values = redis.pcall('HMGET', hash, unpack(names))
--<fixed
local aside_field = 'a'
--<opened
local aside_field = 'h'
--<sliding
local aside_field = 'd'
--<bucket
local aside_field = 'b'
--<aside
local own_part = argv[3]
values = redis.pcall('HMGET', hash, 'e', 'z', 'c', own, limit_name, 'o', aside_field, own_part)
--<plain
if has_gcra then
  values = redis.pcall('HMGET', hash, 'e', 'z', 'c', own, limit_name, 'o')
else
  values = redis.pcall('HMGET', hash, 'e', 'z', 'c', own, limit_name)
end
-->
local wrong_type, bad = false, nil
if values.err then
  if not string.find(values.err, 'WRONGTYPE', 1, true) then return values end
  wrong_type, values = true, {}
end
local epoch_text, reset_text, census_text, record_text = values[1], values[2], values[3], values[4]
--<several
local lent_text = values[#limits + 5]
--<one
local lent_text = values[6]
-->
local exists = epoch_text or reset_text or census_text or record_text or lent_text

local epoch_now, was_reset = nil, false
if epoch_text then
  epoch_now = match(epoch_text, '^%d+$')
  epoch_now = epoch_now and epoch_now + 0
  if not epoch_now or epoch_now > EXACT or epoch_now == 0 then epoch_now, bad = nil, { 'e' } end
end
local stored_epoch = epoch_now
if reset_text then
  was_reset = reset_text == '1'
  if not was_reset then
    bad = bad or {}
    bad[#bad + 1] = 'z'
  end
end

-- What this node asked for last, and its account; the windows of what it was granted are what its record has from
-- `windows_place` on, or, where the record is a short one, `window_was` alone.
local has_record, asked_in, acquire_id, granted_then, other_id = false, 0, 0, 0, 0
local account, account_period, windows_then, windows_place = 0, 0, '', 1
local asked_text
--<one
local window_was
-- The window of this acquire, for its record.
local window_then
-->
if record_text then
  local a, mark, place = match(record_text, '^(%d+)([:;,])()')
  local rest = a and #record_text + 1 - place
  if not a then
    local b, c, d, e, f, more
    a, b, c, d, e, f, more = match(record_text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)([ %d]*)$')
    if a then
      has_record, asked_in, acquire_id, granted_then, other_id, account = true, a + 0, b + 0, c + 0, d + 0, e + 0
      account_period = math.min(f, MOST)
      for at in string.gmatch(more, '%d+') do windows_then = windows_then .. pack('<I7', math.min(at, EXACT)) end
    end
  elseif rest == SHORT_BYTES and mark ~= ':' then
    has_record, asked_in, asked_text = true, a + 0, a
    acquire_id, granted_then, account_period = numbers_of(SHORT, record_text, place)
    local window = 0
    if mark == ';' then window, account_period = account_period * SECOND, 0 end
--<one
    window_was = window
--<several
    windows_then = pack('<I7', window)
-->
  elseif mark == ':' and rest >= RECORD_BYTES and (rest - RECORD_BYTES) % 7 == 0 then
    has_record, asked_in, asked_text, windows_then = true, a + 0, a, record_text
    acquire_id, granted_then, other_id, account, account_period, windows_place = numbers_of(RECORD, record_text, place)
  end
  if not has_record or asked_in > EXACT or acquire_id > EXACT or granted_then > EXACT or other_id > EXACT or account > EXACT then
    has_record, asked_in, acquire_id, granted_then, other_id, account, account_period = false, 0, 0, 0, 0, 0, 0
    windows_then, windows_place, asked_text, bad = '', 1, nil, bad or {}
--<one
    window_was = nil
-->
    bad[#bad + 1] = own
  end
end

-- The census.
local census_id, nodes_now, nodes_before, seen_again = -1, 0, 0, 0
local census_is_stored = false
if not census_text then
  -- Nobody was counted.
elseif asked_text and census_text == asked_text .. ' 1 0 1' then
  -- Nobody but this node has asked, as mostly, and it need not be taken to pieces.
  census_id, nodes_now, seen_again, census_is_stored = asked_in, 1, 1, true
elseif asked_text and census_text == asked_text .. ' 1 1 0' then
  census_id, nodes_now, nodes_before, census_is_stored = asked_in, 1, 1, true
else
  local a, b, c, d = match(census_text, '^(%d+) (%d+) (%d+) (%d+)$')
  if a then a, b, c, d = a + 0, b + 0, c + 0, d + 0 end
  if a and a <= EXACT and b <= EXACT and c <= EXACT and d <= EXACT then
    census_id, nodes_now, nodes_before, seen_again, census_is_stored = a, b, c, d, true
  else
    bad = bad or {}
    bad[#bad + 1] = 'c'
  end
end

-- gcra: what is lent by accounts of this period, by those of the one before, and the number of this period.
-- While nothing is lent the number says nothing, and the field need not be stored.
local lent_now, lent_before, lent_period, lent_is_stored = 0, 0, 0, false
if lent_text then
  local a, b, c = match(lent_text, THREE)
  if a then a, b, c = a + 0, b + 0, c + 0 end
  if a and a <= EXACT and b <= EXACT and c <= MOST then
    lent_now, lent_before, lent_period, lent_is_stored = a, b, c, a + b > 0
  else
    bad = bad or {}
    bad[#bad + 1] = 'o'
  end
end

-- Each limit, brought to now.
for i = 1, #limits do local limit = limits[i]
--<one
  local text = values[5]
--<several
  local text = values[i + 4]
  local limit_kind, limit_period = limit.kind, limit.period
-->
  local used, prev, at = 0, 0, 0
  if text then
    exists = true
    local a, b, c
    -- Mostly one of the numbers is 0, and a pattern that has the 0 in it reads one number less.
    if limit.kind == 'g' then
      b, c = match(text, '^0 (%d+) (%d+)$')
      if b then
        a, b, c = 0, b + 0, c + 0
      end
    else
      a, c = match(text, '^(%d+) 0 (%d+)$')
      if c then
        a, b, c = a + 0, 0, c + 0
      end
    end
    if not c then
      a, b, c = match(text, THREE)
      if a then a, b, c = a + 0, b + 0, c + 0 end
    end
    if not a or a > EXACT or b > EXACT or c > EXACT or limit.kind == 'g' and (a >= SECOND or b > MOST) then
      bad = bad or {}
      bad[#bad + 1] = limit.name
    else
      used, prev, at, limit.stored = a, b, c, c
    end
  end
  if limit.kind == 'g' then
    -- Stored as two numbers, because scripts of earlier versions accept no number above 2^32 here.
    prev = prev * SECOND + used
    used = 0
    -- Never further ahead than the bucket is deep, or was when it was charged: no change of numbers forgives a
    -- debt, and a clock that stepped back locks nobody out for longer than that bucket took to fill.
    local latest = now + (prev > limit.depth and prev or limit.depth)
    if at > latest then at = latest end
  elseif limit_kind == 'f' then
    local last = now - now % limit_period + limit_period
    if at > now + limit_period then
      at = last
    elseif now >= at then
      local follows = at ~= 0 and at + limit_period == last
      used, prev, at = follows and prev or 0, 0, last
    end
  elseif limit_kind == 'o' then
    if now >= at then
      used, prev, at = 0, 0, 0
    elseif at > now + limit_period then
      at = now + limit_period
    end
  else
    local start = now - now % limit_period
    if at + limit_period == start then
      used, prev = 0, used
    elseif at + limit_period < start then
      used, prev = 0, 0
    end
    at = start
  end
  limit.used, limit.prev, limit.at = used, prev, at
end

-- Tokens of a bucket were spent, the last of them at that time. What a deeper bucket still has owed stays owed.
--<spend tokens, at
if tokens > 0 then
  local depth, tat, deepest = limit.depth, limit.at, limit.prev
  if tat <= at + depth or depth > deepest then deepest = depth end
  limit.prev = deepest
  if tat < at then tat = at end
  local most = limit.burst + limit.coming
  if tokens > most then tokens = most end
  -- Their cost is rounded up.
  tat = tat + tokens * limit.whole
  if limit.part > 0 then tat = tat + scaled(tokens, limit.part, limit.count, limit.count - 1) end
  limit.at = tat < now + deepest and tat or now + deepest
end
-->
-- `stepped` is the time at which a bucket is full again, rounded up to a quarter of the time in which it fills: by that its
-- hash is kept, so that not every charge has to renew the hash.
--<in_steps at
step = limit.prev / 4
step = step < 1 and 1 or step - step % 1
stepped = at - at % step + step
-->
-- Whether this node's account is among what is lent now, or was before: then what its record says of it still holds.
local is_now, is_before = false, false
if has_gcra then
  -- Under other limits, or by the scripts of an earlier build, periods of accounts may have another length, and begin within one of these.
  -- What was lent in such a period counts as lent in the one in which that begins, under its own number, by which others go.
  local unit = (now - now % UNIT) / UNIT
  local period, found, passed = unit - unit % units, lent_period, 0
  if not lent_is_stored or found > unit then
    -- Nothing is lent, or a clock was set back: a period to come is none.
    found, lent_period = period, period
  elseif found < period then
    passed, lent_period = period - found, period
  end
  -- A number within a period is one of the scripts of an earlier build, which charge what is more than two seconds older.
  if account_period > 0 then
    is_now = account_period == found
    is_before = account_period < found and account_period >= found - (found % units == 0 and units or 1)
  end
  if passed > 0 then
    -- What was not accounted for in two periods counts as spent, as of the end of the second.
    local follows = passed < 2 * units
    local lapsed, ended = lent_now, found + units < period and found + units or period
    for i = 1, #limits do local limit = limits[i]
      if limit.kind == 'g' then
        --=spend lent_before, ended * UNIT
        if not follows then
          --=spend lapsed, (found + 2 * units) * UNIT
        end
      end
    end
    is_now, is_before = false, is_now and follows
    lent_now, lent_before = 0, follows and lapsed or 0
  end
  if account == 0 and account_period == lent_period and account_period > 0 then is_now = true end
end
local is_open = is_now or is_before

-- The census as it is now, before this call is counted in it.
local census_period = 60 * SECOND
for i = 1, #limits do local limit = limits[i]
  local span = limit.depth or limit.period
  if span < census_period then census_period = span end
end
if census_period < SECOND then census_period = SECOND end
local census_now = (now - now % census_period) / census_period
local census_has_rolled = census_id ~= census_now
if census_has_rolled then
  local follows = census_id + 1 == census_now
  census_id, nodes_now, nodes_before, seen_again = census_now, 0, follows and nodes_now or 0, 0
end

local nodes
--<count_nodes
nodes = nodes_before + seen_again
if nodes < 1 then nodes = 1 elseif nodes > MOST then nodes = MOST end
-->

-- How the id of a return, refund or reset stands to the last of this node: 0 new, 1 the same, 2 older.
--<see
local seen = 0
if has_record and id ~= 0 and id <= other_id then seen = id == other_id and 1 or 2 end
-->
local damaged = wrong_type or bad or exists and not epoch_now

-- A return, a refund or a reset does not count its node in the census, but the store has to remember that call as long as it may be
-- repeated. So a record that is older is given the `latest` census period in which its node may have asked and is not counted any more.
--<remember latest
if asked_in < latest or asked_in > census_id then asked_in, asked_text = latest > 0 and latest or 0, nil end
-->

-- What the script answers and writes: tail.lua does both. Unless it `writes`, nothing is written; else this node's
-- record and the limits that are stored, or `all` of them, an epoch that is new and the census if that `census_is_new`;
-- and if it `renews` the hash, how long that says anything.
local granted, replayed = 0, 0
local census_is_new = false
local writes, all, renews, counts_nodes
