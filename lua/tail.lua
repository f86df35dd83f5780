-- Writes what the script has decided, and answers. Put after each script, as lib.lua is put before it.

if writes then
  local record = id ~= 0 and format('%d:', asked_in)
    .. pack(RECORD, acquire_id, granted_then, other_id, account, account_period) .. windows_then
  if wrong_type then call('DEL', hash) end
  if bad then call('HDEL', hash, unpack(bad)) end
  local epoch_is_new = epoch_now ~= stored_epoch
  if is_single and record and not has_gcra and epoch_is_new == census_is_new and (all or first.stored) then
    -- The most common case for a window: a new key, or one of which only this counter has changed.
    local counter = format('%d %d %d', first.used, first.prev, first.at)
    if epoch_is_new then
      call('HSET', hash, 'e', format('%d', epoch_now), 'c',
        format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again), first.name, counter, own, record)
    else
      call('HSET', hash, first.name, counter, own, record)
    end
  elseif is_single and record and has_gcra and epoch_is_new == census_is_new and (all or first.stored) then
    -- The same for a bucket.
    local deep = floor(first.prev / SECOND)
    local counter = format('%d %d %d', first.prev - deep * SECOND, deep, first.at)
    local lent = format('%d %d %d', lent_now, lent_before, lent_period)
    if epoch_is_new then
      call('HSET', hash, 'e', format('%d', epoch_now), 'c',
        format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again), first.name, counter, own, record,
        'o', lent)
    else
      call('HSET', hash, first.name, counter, own, record, 'o', lent)
    end
  else
    local fields = {}
    if epoch_is_new then fields = { 'e', format('%d', epoch_now) } end
    if census_is_new then
      fields[#fields + 1] = 'c'
      fields[#fields + 1] = format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again)
    end
    for i = 1, #limits do
      local limit = limits[i]
      if all or limit.stored then
        local used, prev = limit.used, limit.prev
        if limit.kind == 'g' then used, prev = prev % SECOND, floor(prev / SECOND) end
        fields[#fields + 1] = limit.name
        fields[#fields + 1] = format('%d %d %d', used, prev, limit.at)
      end
    end
    if record then
      fields[#fields + 1] = own
      fields[#fields + 1] = record
      if has_gcra then
        fields[#fields + 1] = 'o'
        fields[#fields + 1] = format('%d %d %d', lent_now, lent_before, lent_period)
      end
    end
    if #fields > 0 then call('HSET', hash, unpack(fields)) end
  end
  if renews then
    -- Redis may drop the hash when it says nothing that a missing one would not say.
    local lasts = 2 * census_period
    for i = 1, #limits do
      local limit = limits[i]
      local kind, at, ends = limit.kind, limit.at, nil
      if kind == 'g' then
        ends = (at > now and at - now or 0) + limit.depth
        if lent_now + lent_before > 0 then ends = ends + limit.depth + 2 * PERIOD end
      elseif kind == 's' then
        ends = at + 3 * limit.period - now
      elseif at == 0 then
        ends = 2 * limit.period
      else
        ends = at + limit.period - now
      end
      if ends > lasts then lasts = ends end
    end
    call('PEXPIRE', hash, format('%d', up(lasts, 1000) + 1))
  end
end

-- Drops records of nodes that have not asked for two census periods, a bounded number per call.
if counts_nodes and id ~= 0 and census_has_rolled and call('HLEN', hash) > 8 + #limits + 2 * nodes + 16 then
  local records = {}
  for _, name in ipairs(call('HKEYS', hash)) do
    if find(name, '^n:') and name ~= own then records[#records + 1] = name end
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

local lent = has_gcra and min(lent_now + lent_before, EXACT)
local reply = {
  granted, replayed, damaged and 1 or 0, epoch_now or 0, was_reset and 1 or 0, nodes, now,
  first.kind == 'g' and lent or first.used, first.prev, first.at,
}
for i = 2, #limits do
  local limit, place = limits[i], 5 + 3 * i
  reply[place] = limit.kind == 'g' and lent or limit.used
  reply[place + 1], reply[place + 2] = limit.prev, limit.at
end
return reply
