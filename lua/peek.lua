-- peek: reports the counters and writes nothing.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     nothing more
-- Reply    lib.lua's; granted = 0, epoch = 0 when nothing is stored

return answer(0, 0)
