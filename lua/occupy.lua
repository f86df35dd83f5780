-- occupy: a node says how many slots of a concurrent limit its clients hold, and is lent some more.
--
-- KEYS[1]  the key's hash; of its fields only
--          p:NODE   a node's last call, its slots and when they lapse "id slots at"
-- ARGV     1 p:NODE, 2 the limit: c, count, period, burst; and behind it now (us; 0 = the clock of Redis), id, used, need (beyond
--          used), want (all, used among them; 2^32 - 1 = what it has and needs), lease (us, 1 s at least). Each number has seven
--          bytes, the lowest first
-- Reply    that of the other scripts (lib.lua); granted = all slots of this node from now on, used = those of all
--          nodes, prev = those that this node had before, at = when this node's lapse, nodes = nodes that have some

local call, find, format, match = redis.call, string.find, string.format, string.match
local floor, max, min = math.floor, math.max, math.min

local EXACT = 9007199254740991
-- Slots of a concurrent limit.
local MOST = 4294967295
local WRONG = 'ERR rationd: wrong arguments: daemon and script differ in version'

local hash, own_name, head = KEYS[1], ARGV[1], ARGV[2]
if #ARGV ~= 2 or #head ~= 64 or #own_name > 257 then return redis.error_reply(WRONG) end
local kind, most, period, burst, now, id, used, need, want, lease = struct.unpack('<c1I7I7I7I7I7I7I7I7I7', head)
if kind ~= 'c' or now > 2 ^ 52 then return redis.error_reply(WRONG) end
if max(id, most, burst) > EXACT or max(used, need, want) > MOST or period > 2 ^ 49 or most * period * burst == 0
  or lease < 1000000 or lease > 2 ^ 45 then
  return redis.error_reply(WRONG)
end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local damaged = false
local others, live, own_id, own_slots, own_at, last_at, gone = 0, 1, nil, 0, 0, 0, {}

local values = redis.pcall('HGETALL', hash)
if values.err then
  if not find(values.err, 'WRONGTYPE', 1, true) then return values end
  call('DEL', hash)
  values, damaged = {}, true
end
for i = 1, #values, 2 do
  local name = values[i]
  if find(name, '^p:') then
    local last, slots, at = match(values[i + 1], '^(%d+) (%d+) (%d+)$')
    if last then last, slots, at = last + 0, slots + 0, at + 0 end
    if not last or last > EXACT or slots > MOST or at > EXACT then
      gone[#gone + 1], damaged = name, true
    elseif name == own_name then
      own_id, own_slots, own_at = last, slots, at
    elseif at <= now then
      gone[#gone + 1] = name
    elseif slots > 0 then
      others, live, last_at = others + slots, live + 1, max(last_at, at)
    end
  end
end
-- One call drops at most so many fields; later calls drop the rest.
if #gone > 0 then call('HDEL', hash, unpack(gone, 1, min(#gone, 500))) end

local had = own_id and own_at > now and own_slots or 0
local function answer_of(slots, at, replayed, has)
  local marks = live * 16 + (damaged and 4 or 0) + replayed
  return struct.pack('<I7I7I7I7I7I7I7', slots, marks, 0, now, min(others + has, EXACT), had, at)
end

if id ~= 0 and own_id and id == own_id then return answer_of(had, had > 0 and own_at or 0, 1, had) end
if id ~= 0 and own_id and id < own_id then return answer_of(0, 0, 2, had) end

-- A node keeps the permits that it has. Of what is left it gets no more than its part, except to serve waiters; and nothing else if it
-- wants as many as there can be, which says that it does not know how many it has.
local left = max(most - others, 0)
local part = want < MOST and max(need, floor((max(left - used, 0) + live - 1) / live)) or need
local slots = max(used, min(want, had), min(want, left, used + part))
local at = now + lease
call('HSET', hash, own_name, format('%d %d %d', id, slots, at))
-- Nodes that go by other settings may be lent slots for longer.
call('PEXPIRE', hash, format('%d', floor(max(at, last_at) / 1000) - floor(now / 1000) + 1))
return answer_of(slots, at, 0, slots)
