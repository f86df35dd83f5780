-- reset: forgets the key, under a new epoch, so that what nodes know of the old one stays out.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     nothing more
-- Reply    lib.lua's; granted = 0

if seen ~= 0 then
  replayed = seen
elseif exists or wrong_type then
  -- The new epoch differs from every earlier one. The reset drops the records of other nodes, so their earlier calls
  -- may arrive once more, and must see another epoch than theirs.
  local old = epoch_now or 0
  if id > old then
    epoch_now = id
  else
    epoch_now = old < EXACT and old + 1 or 1
  end
  local written = { 'e', format('%d', epoch_now), 'z', '1' }
  if id ~= 0 then
    -- What this node asked for earlier, and what arrives late, must not be lent under the new epoch.
    written[5], written[6] = own, '0:' .. pack(RECORD, math.max(acquire_id, id), 0, id, 0, 0)
  end
  local span = 2 * SECOND
  for i = 1, #limits do local limit = limits[i]
    local period = limit.period
    span = math.max(span, 2 * (limit.depth or period))
    limit.used, limit.prev, limit.at = 0, 0, 0
    if limit.kind == 'f' then limit.at = now - now % period + period end
    if limit.kind == 's' then limit.at = now - now % period end
  end
--<aside
  -- A node that has lost the store hears of no reset, and goes on within its entitlement.
  local parts, kept = {}, {}
  for _, name in ipairs(wrong_type and {} or call('HKEYS', hash)) do
    if string.find(name, '^' .. aside_field) then parts[#parts + 1] = name end
  end
  for i = 1, #parts do kept[i] = call('HMGET', hash, parts[i])[1] end
-->
  call('DEL', hash)
  call('HSET', hash, unpack(written))
--<aside
  for i = 1, #parts do call('HSET', hash, parts[i], kept[i]) end
  if entitled_now + entitled_before > 0 and now + span < (generation + 2) * GENERATION then
    span = (generation + 2) * GENERATION - now
  end
-->
  call('PEXPIRE', hash, format('%d', math.ceil(span / 1000) + 1))
  was_reset, lent_now, lent_before, nodes = true, 0, 0, 1
end
