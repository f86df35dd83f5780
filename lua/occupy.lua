-- occupy: a node says how many slots of a concurrent limit its clients hold, and is lent some more.
--
-- KEYS[1]  the key's hash; of its fields only
--          p:NODE   a node's last call, its slots and when they lapse "id slots at"
-- ARGV     4 used, 5 need (beyond used), 6 want (all, used among them), 7 lease (us; 1 s at least); then one
--          limit of the kind c
-- Reply    lib.lua's; granted = all slots of this node from now on, used = those of all nodes, at = when
--          this node's lapse, nodes = nodes that have some

local used, need, want = integer(ARGV[4], MOST), integer(ARGV[5], MOST), integer(ARGV[6], MOST)
local lease = integer(ARGV[7], 2 ^ 45)
local limits = read_arguments(8, 0, '^c$')
if not limits or #limits ~= 1 or not used or not need or not want or not lease or lease < SECOND then
  return redis.error_reply(WRONG)
end

local own_name, most, damaged = 'p:' .. node, limits[1].count, false
local others, live, own, gone = 0, 1, nil, {}

local values = redis.pcall('HGETALL', hash)
if values.err then
  if not find(values.err, 'WRONGTYPE', 1, true) then return values end
  redis.call('DEL', hash)
  values, damaged = {}, true
end
for i = 1, #values, 2 do
  local name = values[i]
  if sub(name, 1, 2) == 'p:' then
    local record = integers(values[i + 1], 3, 3)
    if not record or record[2] > MOST then
      gone[#gone + 1], damaged = name, true
    elseif name == own_name then
      own = record
    elseif record[3] <= now then
      gone[#gone + 1] = name
    elseif record[2] > 0 then
      others, live = others + record[2], live + 1
    end
  end
end
-- A call may drop so many fields at most; the rest another time.
if #gone > 0 then redis.call('HDEL', hash, unpack(gone, 1, min(#gone, 500))) end

local had = own and own[3] > now and own[2] or 0
local function answer_of(slots, at, replayed)
  return { slots, replayed, damaged and 1 or 0, 0, 0, live, now, min(others + had, EXACT), 0, at }
end

local seen = standing(own and own[1])
if seen == 1 then return answer_of(had, had > 0 and own[3] or 0, 1) end
if seen == 2 then return answer_of(0, 0, 2) end

-- What it has it keeps; of what is left nobody takes more than its part, beyond what waits.
local left = max(most - others, 0)
local part = max(need, up(max(left - used, 0), live))
local slots = max(used, min(want, had), min(want, left, used + part))
had = slots
local at = now + lease
redis.call('HSET', hash, own_name, written({ id, slots, at }))
redis.call('PEXPIRE', hash, format('%.0f', up(lease, 1000) + 1))
return answer_of(slots, at, 0)
