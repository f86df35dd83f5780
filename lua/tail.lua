-- Writes what the script has decided, and answers. Put after each script, as lib.lua is put before it.

--<many
-- What was written of a key that nobody had asked for: the loop at the end writes the same of others.
local census_then, counter_then, record_then, lent_then, span_then
-->
if writes then
  if wrong_type then call('DEL', hash) end
  if bad then call('HDEL', hash, unpack(bad)) end
  local record, lent
  if is_remembered then
    asked_text = asked_text or format('%d', asked_in)
--<one
    local seconds = window_then and (has_gcra and account_period or window_then / SECOND)
    if seconds and other_id + account == 0 and granted_then < 65536 and seconds <= MOST and seconds % 1 == 0 then
      record = asked_text .. (has_gcra and ',' or ';') .. pack(SHORT, acquire_id, granted_then, seconds)
    elseif window_then or window_was then
      record = asked_text .. ':'
        .. pack(RECORD_OF_ONE, acquire_id, granted_then, other_id, account, account_period, window_then or window_was)
    else
-->
    record = asked_text .. ':' .. pack(RECORD, acquire_id, granted_then, other_id, account, account_period)
      .. string.sub(windows_then, windows_place)
--<one
    end
-->
    if has_gcra and (lent_is_stored or lent_now + lent_before > 0) then
      lent = format('%d %d %d', lent_now, lent_before, lent_period)
    end
  end
  local epoch_is_new = epoch_now ~= stored_epoch
--<one
  local counter
  if all or limit_stored then
    if has_gcra then
      local past = limit_prev % SECOND
      counter = past == 0 and format('0 %d %d', limit_prev / SECOND, limit_at)
        or format('%d %d %d', past, (limit_prev - past) / SECOND, limit_at)
    else
      counter = limit_prev == 0 and format('%d 0 %d', limit_used, limit_at)
        or format('%d %d %d', limit_used, limit_prev, limit_at)
    end
  end
--<entitled
  local sums, part
  if part_is_new then
    sums = pack(ASIDE, generation, entitled_now, entitled_before, demand_now, demand_before, called_in, called,
--<fixed
      called_ahead)
--<opened
      0)
--<sliding
      aside_before)
--<entitled
    part = pack(PART, part_of, part_held, part_given, part_demand, part_called)
  end
  if part_is_new and record and counter and not epoch_is_new and not census_is_new then
    call('HSET', hash, limit_name, counter, own, record, aside_field, sums, own_part, part)
    part_is_stored = true
  elseif record and counter and epoch_is_new == census_is_new then
--<bucket
  local sums, part
  if part_is_new then
    sums = pack(ASIDE, generation, entitled_now, entitled_before, demand_now, demand_before, called_in, called_now,
      called_before, charged_until, late_until, fitted)
    part = pack(PART, part_of, part_held, part_given, part_demand, part_called)
  end
  if part_is_new and record and counter and not epoch_is_new and not census_is_new then
    if lent then
      call('HSET', hash, limit_name, counter, own, record, 'o', lent, aside_field, sums, own_part, part)
    else
      call('HSET', hash, limit_name, counter, own, record, aside_field, sums, own_part, part)
    end
    part_is_stored = true
  elseif record and counter and epoch_is_new == census_is_new then
--<plain
  if record and counter and epoch_is_new == census_is_new then
--<one
    -- The two calls that are made most often: about a key that is new, and about one of which no other field has changed.
    if not epoch_is_new then
      if lent then
        call('HSET', hash, limit_name, counter, own, record, 'o', lent)
      else
        call('HSET', hash, limit_name, counter, own, record)
      end
    else
      local census = nodes_now == 1 and nodes_before == 0 and seen_again == 1 and asked_in == census_id
        and asked_text .. ' 1 0 1' or format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again)
--<many
      census_then, counter_then, record_then, lent_then = census, counter, record, lent
--<one
      if lent then
        call('HSET', hash, 'e', format('%d', epoch_now), 'c', census, limit_name, counter, own, record, 'o', lent)
      else
        call('HSET', hash, 'e', format('%d', epoch_now), 'c', census, limit_name, counter, own, record)
      end
    end
  else
-->
  local fields = {}
  if epoch_is_new then fields = { 'e', format('%d', epoch_now) } end
  if census_is_new then
    fields[#fields + 1] = 'c'
    fields[#fields + 1] = format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again)
  end
--<several
  for i = 1, #limits do
    local limit = limits[i]
    if all or limit.stored then
      local used, prev = limit.used, limit.prev
      if limit.kind == 'g' then used, prev = prev % SECOND, math.floor(prev / SECOND) end
      fields[#fields + 1] = limit.name
      fields[#fields + 1] = format('%d %d %d', used, prev, limit.at)
    end
  end
--<one
  if counter then
    fields[#fields + 1] = limit_name
    fields[#fields + 1] = counter
  end
-->
  if record then
    fields[#fields + 1] = own
    fields[#fields + 1] = record
    if lent then
      fields[#fields + 1] = 'o'
      fields[#fields + 1] = lent
    end
  end
  if #fields > 0 then call('HSET', hash, unpack(fields)) end
--<one
  end
-->
--<aside
  if part_is_new and not part_is_stored then call('HSET', hash, aside_field, sums, own_part, part) end
-->
  if renews then
    -- Redis may drop the hash when it says nothing that a missing one would not say.
    local lasts = (census_id + 2) * census_period
    for i = 1, #limits do local limit = limits[i]
      local at, ends = limit.at, nil
      if limit.kind == 'g' then
        if lent_now + lent_before > 0 then
          ends = (at > now and at or now) + 2 * limit.depth + 2 * PERIOD
        else
          local stepped, step
          --=in_steps at
          ends = stepped + limit.depth
        end
      elseif limit.kind == 's' then
        ends = at + 3 * limit.period
      elseif at == 0 then
        ends = now + 2 * limit.period
      else
        ends = at + limit.period
      end
      if ends > lasts then lasts = ends end
    end
--<aside
    -- As long as a node may live on its entitlement, it has to be known that it has one.
    if entitled_now + entitled_before > 0 and lasts < (generation + 2) * GENERATION then
      lasts = (generation + 2) * GENERATION
    end
--<sliding
    -- Of a sliding window it weighs for one more, which is a minute at most.
    if entitled_now + entitled_before > 0 and lasts < (generation + 2) * GENERATION + 60 * SECOND then
      lasts = (generation + 2) * GENERATION + 60 * SECOND
    end
-->
    lasts = lasts + 999
    local span = format('%d', (lasts - lasts % 1000 - now + now % 1000) / 1000 + 1)
    call('PEXPIRE', hash, span)
--<many
    span_then = span
-->
  end
end

-- Records of nodes that have not asked for two census periods are dropped, a bounded number at a time. Under gcra such a node's
-- account may be open for longer: without its record, what it holds would count as lent once more when it renews that.
-- The limits of a policy may have changed a moment ago, and not for all nodes yet. Under other limits census periods are as long as
-- others, and have numbers that are far from these, before them or behind. So a record that seems to be of long ago, or of a time
-- to come, may be of just now, and is kept as long as what else it says may be of now: without it, a call that is repeated would be
-- executed again. So would a return, a refund or a reset, whose node may not have asked for two periods when it comes (`remember` in
-- lib.lua): a record that tells of one is kept for two periods more, and for no less than two periods of accounts.
if census_has_rolled and counts_nodes and is_remembered and call('HLEN', hash) > LIMITS + 2 * nodes + 24 then
  local records = {}
  for _, name in ipairs(call('HKEYS', hash)) do
    if string.find(name, '^n:') and name ~= own then records[#records + 1] = name end
  end
  local accounts = math.ceil(2 * PERIOD / census_period)
  local kept = has_gcra and accounts or 1
  -- Numbers of other limits are further away than `far`. No census period is longer than `longest`. For CALL_LIFE after a call the
  -- windows that it was about begin or end within `near` of now, either way, unless all of them are longer than that; and where they
  -- are, their census periods have the length `longest`.
  local far, longest = 16, 60 * SECOND
  local near = longest + CALL_LIFE
  local unit_now, longest_now = (now - now % UNIT) / UNIT, (now - now % longest) / longest
  local some, stale = {}, {}
  for i = 1, math.min(#records, 500) do
    some[i] = records[(census_id * 500 + i) % #records + 1]
  end
  if #some > 0 then
    for i, record in ipairs(call('HMGET', hash, unpack(some))) do
      local asked, mark, place = match(record, '^(%d+)([:;, ]?)()')
      asked = asked and asked + 0
      local ago = asked and census_id - asked
      local is_recent = ago and ago >= 0 and ago <= kept
      if ago and not is_recent then
        -- The period of its account, which all buckets number alike, what it says of windows, and its last return, refund or reset.
        local rest, period, ats, other = #record + 1 - place, 0, {}, 0
        if mark == ':' and rest >= RECORD_BYTES then
          local _
          _, _, other, _, period, place = numbers_of(RECORD, record, place)
          while #record >= place + 6 do ats[#ats + 1], place = numbers_of('<I7', record, place) end
        elseif (mark == ';' or mark == ',') and rest == SHORT_BYTES then
          local _, _, number = numbers_of(SHORT, record, place)
          if mark == ',' then period = number else ats[1] = number * SECOND end
        elseif mark == ' ' then
          for number in string.gmatch(string.sub(record, place), '%d+') do ats[#ats + 1] = number + 0 end
          other, period = ats[3] or 0, ats[5] or 0
          for _ = 1, math.min(#ats, 5) do table.remove(ats, 1) end
        end
        local more = other > 0 and 2 or 0
        if more > 0 and ago >= 0 and ago <= accounts + more then
          is_recent = true
        elseif period > 0 then
          is_recent = math.abs(unit_now - period) < 2 * LONGEST
        elseif ago < 0 or ago > far then
          is_recent = math.abs(longest_now - asked) <= 1 + more
          for _, at in ipairs(ats) do is_recent = is_recent or at > 0 and math.abs(now - at) <= near end
        end
      end
      if not is_recent then stale[#stale + 1] = some[i] end
    end
  end
  if #stale > 0 then call('HDEL', hash, unpack(stale)) end
end

--<aside
-- Entitlements that have lapsed are dropped when a generation begins, a bounded number at a time.
if part_is_new and generation_is_new then
  local parts, stale = {}, {}
  for _, name in ipairs(call('HKEYS', hash)) do
    if string.find(name, '^' .. aside_field .. ':') and name ~= own_part and #parts < 500 then parts[#parts + 1] = name end
  end
  if #parts > 0 then
    for i, text in ipairs(call('HMGET', hash, unpack(parts))) do
      if not text or #text ~= PART_BYTES or numbers_of('<I4', text) + 1 < generation then stale[#stale + 1] = parts[i] end
    end
  end
  if #stale > 0 then call('HDEL', hash, unpack(stale)) end
end
-->

local lent = 0
if has_gcra then
  lent = lent_now + lent_before
  if lent > EXACT then lent = EXACT end
end
if not nodes then
  --=count_nodes
end
local marks = nodes * 16 + replayed
if damaged then marks = marks + 4 end
if was_reset then marks = marks + 8 end
--<entitled
-- Nobody can be lent what is set aside for others, so it counts as used. This node's entitlement is the last number.
local set_aside = entitled_now + entitled_before - called
--<fixed
if part_called ~= limit_at and part_called ~= limit_at + 1 and part_called ~= limit_at + limit_period then
--<opened
if limit_at == 0 or part_called ~= limit_at and part_called ~= limit_at + 1 then
--<sliding
if part_called ~= limit_at and part_called ~= limit_at + 1 then
--<entitled
  set_aside = set_aside - part_held
end
--<sliding
-- What is set aside of a sliding window comes as the window before weighs less. Where it is less than that, it takes the place of
-- as much of it, so that the rest weighs by the part of the window that has yet to pass, as nodes reckon.
local weighs = set_aside > 0 and limit_prev + (aside_before - set_aside) or limit_prev + aside_before
if weighs < 0 then weighs = 0 elseif weighs > EXACT then weighs = EXACT end
--<entitled
set_aside = set_aside > 0 and limit_used + set_aside or limit_used
if set_aside > EXACT then set_aside = EXACT end
--<fixed
return pack(REPLY, granted, marks, epoch_now or 0, now, set_aside, limit_prev, limit_at, part_given)
--<opened
return pack(REPLY, granted, marks, epoch_now or 0, now, set_aside, limit_prev, limit_at, part_given)
--<sliding
return pack(REPLY, granted, marks, epoch_now or 0, now, set_aside, weighs, limit_at, part_given)
--<bucket
-- Nobody can be lent what silent nodes may have, so it counts as lent. The last two numbers are this node's part, and what of its account
-- was not renewed.
--=count_silent 0
if not calls_in_time then silent = silent > part_held and silent - part_held or 0 end
--=burst_of silent
lent = lent + tokens_of
if lent > EXACT then lent = EXACT end
return pack(REPLY, granted, marks, epoch_now or 0, now, lent, limit_prev, limit_at, part_given, not_kept)
--<single
return pack(REPLY, granted, marks, epoch_now or 0, now, has_gcra and lent or limit_used, limit_prev, limit_at)
--<many
-- The answers of all keys stand one after another.
local reply = pack(REPLY, granted, marks, epoch_now or 0, now, has_gcra and lent or limit_used, limit_prev, limit_at)
-- Of a key that neither the node nor the store knew, the loop at the end is also given what was written, and how many bytes stand
-- before the id in the record, so that it can put another id there.
if exists or damaged or ahead_of ~= 0 or epoch ~= 0 or not census_then or not span_then then return reply end
return reply, now, census_then, counter_then, record_then, lent_then, span_then, #asked_text + 1
end
-- What a call is granted of a key that neither its node nor the store knows depends on the limit and on what the call asks for, and
-- on nothing else. Two such keys of which the same is asked for therefore differ in the id alone, which becomes the key's epoch and
-- stands in the node's record. So the first of them is decided as any other key is, and each one behind it is written as the first
-- was, under its own id. HLEN tells whether the store knows a key; it takes a fifth of the time of the HMGET that would be needed else.
local cut = string.sub
local told_then, need_then, want_then, least_then, held_then
local now, census, counter, lent, span, record_head, record_rest, reply_head, reply_rest
-- An error is of its key alone, and makes the answer an array.
local replies, all_told = {}, true
for place = 1, #keys do
  local hash, head, reply = keys[place], argv[place + 2], nil
  if told_then and #head == HEAD_BYTES then
    local told, id, need, want, least, ahead_of, held, rest_place = numbers_of(HEAD, head)
    local until_at, epoch = numbers_of('<I7I7', head, rest_place)
    if need == need_then and want == want_then and least == least_then and held == held_then and told == told_then
      and epoch == 0 and ahead_of == 0 and id > 0 and id <= EXACT
      and (until_at == 0 or now <= until_at and now + CALL_LIFE >= until_at) and redis.pcall('HLEN', hash) == 0 then
      local id_text, epoch_text = cut(head, 8, 14), format('%d', id)
      local record = record_head .. id_text .. record_rest
      if lent then
        call('HSET', hash, 'e', epoch_text, 'c', census, limit_name, counter, own, record, 'o', lent)
      else
        call('HSET', hash, 'e', epoch_text, 'c', census, limit_name, counter, own, record)
      end
      call('PEXPIRE', hash, span)
      reply = reply_head .. id_text .. reply_rest
    end
  end
  if not reply then
    local now_then, census_then, counter_then, record_then, lent_then, span_then, id_place
    reply, now_then, census_then, counter_then, record_then, lent_then, span_then, id_place = lend(place)
    if reply.err then
      all_told = false
    elseif census_then and not told_then then
      now, census, counter, lent, span = now_then, census_then, counter_then, lent_then, span_then
      local _
      told_then, _, need_then, want_then, least_then, _, held_then = numbers_of(HEAD, head)
      record_head, record_rest = cut(record_then, 1, id_place), cut(record_then, id_place + 8)
      reply_head, reply_rest = cut(reply, 1, 14), cut(reply, 22)
    end
  end
  replies[place] = reply
end
return all_told and table.concat(replies) or replies
--<several
local reply =
  pack(REPLY, granted, marks, epoch_now or 0, now, first.kind == 'g' and lent or first.used, first.prev, first.at)
for i = 2, #limits do
  local limit = limits[i]
  reply = reply .. pack('<I7I7I7', limit.kind == 'g' and lent or limit.used, limit.prev, limit.at)
end
return reply
-->
