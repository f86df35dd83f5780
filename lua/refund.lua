-- refund: takes back a cost that was spent, into the current windows.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     4 amount (tokens)
-- Reply    lib.lua's; granted = amount, or 0 when nothing is stored, which is a full limit

local amount = integer(ARGV[4], MOST)
local limits = read_arguments(5, 0)
if not limits or not amount then return redis.error_reply(WRONG) end
local state, failure = load(limits)
if not state then return failure end
roll_census(state, limits)
local seen = seen_before(state)
if seen ~= 0 then return answer(state, 0, seen) end
if not state.epoch then return answer(state, 0) end

for i = 1, #limits do credit(state.counters[i], limits[i], amount) end
local fields = {}
add_counters(fields, state, limits)
if id ~= 0 then
  add_record(fields, remembered(state))
  if has_gcra then add_lent(fields) end
end
save(state, fields)
return answer(state, amount)
