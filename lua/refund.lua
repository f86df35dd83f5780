-- refund: takes back a cost that was spent, into the current windows: of all limits, or of none.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     4 amount (tokens); per limit more: window_at (us), 0 for whatever window is open, or the limit's
--          `at` as it was when the cost was spent; for gcra the time from which on it has filled up since
-- Reply    lib.lua's; granted = amount, or 0 when nothing is stored, which is a full limit, or when another
--          window was charged

local amount = integer(ARGV[4], EXACT)
local limits = read_arguments(5, 1)
if not limits or not amount then return redis.error_reply(WRONG) end
local state, failure = load(limits)
if not state then return failure end
roll_census(state, limits)
local seen = seen_before(state)
if seen ~= 0 then return answer(state, 0, seen) end
if not state.epoch then return answer(state, 0) end

local function is_charged(counter, limit)
  local window_at = limit[1]
  if limit.kind == 'g' then return window_at == 0 or now < window_at end
  return window_at == 0 or window_at == counter.at
end

for i = 1, #limits do
  if not is_charged(state.counters[i], limits[i]) then return answer(state, 0) end
end

for i = 1, #limits do credit(state.counters[i], limits[i], amount) end
local fields = {}
add_counters(fields, state, limits)
if id ~= 0 then
  add_record(fields, remembered(state))
  if has_gcra then add_lent(fields) end
end
save(state, fields)
return answer(state, amount)
