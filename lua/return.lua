-- return: takes back unspent tokens, into the windows that lent them or not at all.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     4 amount (tokens), 5 epoch that lent them, 6 held (tokens lent that it keeps), 7 the id of an acquire
--          that is void (0 = none), 8 what that needed, 9 gcra: what it told to be spent, 10 gcra: what
--          was spent since (the rest of what the node was lent is free); per limit more: window_at (us),
--          the limit's `at` as it was when they were lent, age (gcra: us since it spent the others,
--          taken as spent in one go)
-- Reply    lib.lua's; granted = amount if any limit took it back, else 0

local amount, epoch = integer(ARGV[4], EXACT), integer(ARGV[5], EXACT)
local held, void = integer(ARGV[6], EXACT), integer(ARGV[7], EXACT)
local needed, told, spent = integer(ARGV[8], EXACT), integer(ARGV[9], EXACT), integer(ARGV[10], EXACT)
local limits = read_arguments(11, 2)
if not limits or not amount or not epoch or not held or not void or not needed or not told or not spent then
  return redis.error_reply(WRONG)
end
local state, failure = load(limits)
if not state then return failure end
roll_census(state, limits)
local seen = seen_before(state)
if seen ~= 0 then return answer(state, 0, seen) end
-- A node that never had an answer knows no epoch, and says so only where an order of its own is void.
local knows = epoch == state.epoch or epoch == 0 and void ~= 0
if not state.epoch or not knows then return answer(state, 0) end

-- What was lent ahead goes back to the window after this one; a sliding window that is over still
-- weighs, and takes them back.
local function credit_lent(counter, limit, window_at)
  if limit.kind == 'g' then return false end
  if window_at ~= 0 and window_at == counter.at then
    credit(counter, limit, amount)
    return true
  end
  local ahead = limit.kind == 'f' and window_at == counter.at + limit.period
  local before = limit.kind == 's' and window_at ~= 0 and window_at + limit.period == counter.at
  if ahead or before then counter.prev = max(counter.prev - amount, 0) end
  return ahead or before
end

local taken = false
for i = 1, #limits do
  if credit_lent(state.counters[i], limits[i], limits[i][1]) then taken = true end
end
-- What an order was lent that nobody waits for any more goes back: of a bucket what it was charged at once, since the
-- rest is in the account. Where it was not executed, this says what it would have told, and if it comes later it is
-- lent nothing, as if it had been before. Returns the most that was spent of the account.
local function take_back_order(record)
  if void == 0 then return EXACT end
  local most = min(spent + told, EXACT)
  if record[2] > void then return most end
  if record[2] < void then
    record[2], record[3] = void, 0
    return most
  end
  for i = 1, #limits do
    local limit, counter = limits[i], state.counters[i]
    if limit.kind == 'g' then
      credit(counter, limit, min(record[3], needed))
    elseif (record[6 + i] or 0) == counter.at then
      credit(counter, limit, record[3])
    end
  end
  taken = taken or record[3] > 0
  record[3] = 0
  return spent
end

-- gcra: the account is closed, but for what this node keeps. An acquire that was sent later has said so.
local fields, record = {}, remembered(state)
local most = take_back_order(record)
if has_gcra and id > record[2] then
  local was_open = record[6] > 0 and is_open(record)
  local account, settled = settle_account(state, limits, held, amount, 2, most)
  taken = taken or account > 0 or settled and held + amount > 0
  open_account(record, was_open and held or 0)
end
if not taken and void == 0 then return answer(state, 0) end
add_counters(fields, state, limits)
if id ~= 0 then
  add_record(fields, record)
  if has_gcra then add_lent(fields) end
end
save(state, fields)
return answer(state, taken and amount or 0)
