-- reset: forgets the key, under a new epoch, so that what nodes know of the old one stays out.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     nothing more
-- Reply    lib.lua's; granted = 0

local limits = read_arguments(4, 0)
if not limits then return redis.error_reply(WRONG) end
local state, failure = load(limits)
if not state then return failure end
roll_census(state, limits)
local seen = seen_before(state)
if seen ~= 0 then return answer(state, 0, seen) end
if not state.exists and not state.wrong_type then return answer(state, 0) end

-- Never one that was before: a reset forgets those of other nodes, which may come once more.
local old = state.epoch or 0
if id > old then
  state.epoch = id
else
  state.epoch = old < EXACT and old + 1 or 1
end
local fields = { 'e', format('%.0f', state.epoch), 'z', '1' }
if id ~= 0 then
  -- What this node asked for earlier, and what arrives late, must not be lent under the new epoch.
  local asked = state.record and state.record[2] or 0
  add_record(fields, { 0, max(asked, id), 0, id, 0, 0 })
end
local span = 2 * SECOND
for i = 1, #limits do
  span = max(span, 2 * (limits[i].depth or limits[i].period))
  state.counters[i] = { used = 0, prev = 0, at = 0, gcra = limits[i].kind == 'g' }
  roll(state.counters[i], limits[i])
end
redis.call('DEL', hash)
lent = { 0, 0, lent[3] }
redis.call('HSET', hash, unpack(fields))
expire_after(span)
state.reset, state.census = true, { -1, 0, 0, 0 }
return answer(state, 0)
