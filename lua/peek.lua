-- peek: reports the counters and writes nothing.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     nothing more
-- Reply    lib.lua's; granted = 0, epoch = 0 when nothing is stored

local limits = read_arguments(4, 0)
if not limits then return redis.error_reply(WRONG) end
local state, failure = load(limits)
if not state then return failure end
roll_census(state, limits)
return answer(state, 0)
