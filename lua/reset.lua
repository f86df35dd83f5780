-- reset: forgets what of the key was used, under a new epoch, so that what nodes know of the old one stays out.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     nothing more
-- Reply    lib.lua's; granted = 0

--=see
if seen ~= 0 then
  replayed = seen
elseif exists or wrong_type then
  -- The new epoch differs from every earlier one, because earlier calls of other nodes may arrive yet, and must see another
  -- epoch than theirs.
  local old = epoch_now or 0
  if id > old then
    epoch_now = id
  else
    epoch_now = old < EXACT and old + 1 or 1
  end
  local written = { 'e', format('%d', epoch_now), 'z', '1' }
  local records, rewritten = {}, {}
  if id ~= 0 then
    --=remember census_id - 2
    -- What this node asked for earlier, and what arrives late, must not be lent under the new epoch.
    written[5], written[6] = own, format('%d:', asked_in) .. pack(RECORD, math.max(acquire_id, id), 0, id, 0, 0)
    -- Nodes share the limit after a reset as before. If the census were dropped, the node that asks first would count as the only
    -- one and be lent all of the limit. So the census is written again, and for each node that it counts a record with two numbers:
    -- the census period in which the node last asked, and the id of its last acquire, so that a late repeat of that is lent nothing.
    if census_is_stored then
      written[7], written[8] = 'c', format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again)
    end
    for _, name in ipairs(wrong_type and {} or call('HKEYS', hash)) do
      if string.find(name, '^n:') and name ~= own then
        local text = call('HMGET', hash, name)[1]
        local asked, mark, place = match(text, '^(%d+)([:;, ])()')
        local last
        if mark == ' ' then
          last = match(text, '^%d+', place)
          last = last and last + 0
        elseif mark and #text >= place + 6 then
          last = numbers_of('<I7', text, place)
        end
        asked = asked and asked + 0
        if last and last <= EXACT and (asked == census_id or asked == census_id - 1) then
          records[#records + 1] = name
          rewritten[#records] = format('%d:', asked) .. pack(RECORD, last, 0, 0, 0, 0)
        end
      end
    end
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
  for i = 1, #records do call('HSET', hash, records[i], rewritten[i]) end
--<aside
  for i = 1, #parts do call('HSET', hash, parts[i], kept[i]) end
  if entitled_now + entitled_before > 0 and now + span < (generation + 2) * GENERATION then
    span = (generation + 2) * GENERATION - now
  end
--<sliding
  if entitled_now + entitled_before > 0 and now + span < (generation + 2) * GENERATION + 60 * SECOND then
    span = (generation + 2) * GENERATION + 60 * SECOND - now
  end
-->
  call('PEXPIRE', hash, format('%d', math.ceil(span / 1000) + 1))
  was_reset, lent_now, lent_before = true, 0, 0
end
