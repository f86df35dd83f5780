-- Writes and answers what the script has decided: stands after each that lib.lua stands before.

if fields then
  for i = 1, #limits do
    local limit = limits[i]
    if all or limit.stored then
      local used, prev = limit.used, limit.prev
      if limit.kind == 'g' then used, prev = prev % SECOND, floor(prev / SECOND) end
      fields[#fields + 1] = names[i + 5]
      fields[#fields + 1] = format('%d %d %d', used, prev, limit.at)
    end
  end
  if id ~= 0 then
    fields[#fields + 1] = names[4]
    fields[#fields + 1] = format('%d %d %d %d %d %d',
      asked_in, acquire_id, granted_then, other_id, account, account_period) .. windows_then
    if has_gcra then
      fields[#fields + 1] = 'o'
      fields[#fields + 1] = format('%d %d %d', lent_now, lent_before, lent_period)
    end
  end
  if wrong_type then call('DEL', hash) end
  if bad then call('HDEL', hash, unpack(bad)) end
  if #fields > 0 then call('HSET', hash, unpack(fields)) end
  if renews then
    -- Redis may forget the hash once it says nothing that a missing one would not.
    local lasts = 2 * census_period
    for i = 1, #limits do
      local limit = limits[i]
      local kind, at, ends = limit.kind, limit.at, nil
      if kind == 'g' then
        ends = max(at - now, 0) + limit.depth
        if lent_now + lent_before > 0 then ends = ends + limit.depth + 2 * PERIOD end
      elseif kind == 's' then
        ends = at + 3 * limit.period - now
      elseif at == 0 then
        ends = 2 * limit.period
      else
        ends = at + limit.period - now
      end
      lasts = max(lasts, ends)
    end
    call('PEXPIRE', hash, format('%d', up(lasts, 1000) + 1))
  end
end

-- Records of nodes that have not asked for two census periods are dropped, a bounded number at a time.
if counts_nodes and id ~= 0 and census_has_rolled and call('HLEN', hash) > 8 + #limits + 2 * nodes + 16 then
  local records = {}
  for _, name in ipairs(call('HKEYS', hash)) do
    if find(name, '^n:') and name ~= names[4] then records[#records + 1] = name end
  end
  local some, stale = {}, {}
  for i = 1, min(#records, 500) do
    some[i] = records[(census_id * 500 + i) % #records + 1]
  end
  if #some > 0 then
    for i, record in ipairs(call('HMGET', hash, unpack(some))) do
      local asked = match(record, '^%d+')
      asked = asked and asked + 0
      if asked ~= census_id and asked ~= census_id - 1 then stale[#stale + 1] = some[i] end
    end
  end
  if #stale > 0 then call('HDEL', hash, unpack(stale)) end
end

local reply = {
  granted, replayed, damaged and 1 or 0, epoch_now or 0, was_reset and 1 or 0, nodes, now, 0, 0, 0,
}
for i = 1, #limits do
  local limit, place = limits[i], 5 + 3 * i
  reply[place] = limit.kind == 'g' and min(lent_now + lent_before, EXACT) or limit.used
  reply[place + 1], reply[place + 2] = limit.prev, limit.at
end
return reply
