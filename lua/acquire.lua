-- acquire: lends tokens of all limits, or of none. May lend a part of what is wanted.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     a need, b want, c least (tokens), d ahead_of (us; 0 = lend of now, else of the window
--          after the one that ends then), e held (tokens lent before that it has not spent), until (us; 0 = for
--          ever), epoch (as the node knows it; 0 = none); of each limit x age (gcra: us since it
--          spent the others, taken as spent in one go), y known_used (tokens), z known_at (us)
-- Reply    lib.lua's; granted = tokens lent: none where the node brings back what the store has lost. With
--          an id that was executed before, the answer of then. Where nothing is known of an acquire of this node,
--          this one may have been executed and forgotten: it is not executed after `until`, nor more than CALL_LIFE
--          before, which is less than it takes to forget it
--          Where tokens are set aside, ARGV has what claim.lua says, and entitled.lua says what is done

--<divide_up a, b
-- Where a + b is not exact, the quotient could reach the next integer. (x - x % 1 is x rounded down.)
local sum = a + b
if sum <= EXACT then
  sum = (sum - 1) / b
  quotient = sum - sum % 1
else
  local rest = math.fmod(a, b)
  quotient = (a - rest) / b + (rest > 0 and 1 or 0)
end
-->
--<one
local depth_then = limit_prev
-->
local need, want, least, ahead_of, held = a1, a2, a3, a4, a5
if need > EXACT or want > EXACT or least > EXACT or ahead_of > EXACT or held > EXACT then
  return redis.error_reply(WRONG)
end

-- What else the call says stands from here on, and is read only where it is needed: until when it may be executed, where nothing is
-- known of an acquire of this node; the epoch there, too, and where the key has none.
--<several
local rest_place = a6
--<plain
local rest_place = a6
--<entitled
local rest_place = a9
--<bucket
local rest_place = a10
-->
local until_at, epoch = 0, 0
if acquire_id == 0 or not epoch_now then
  until_at, epoch = numbers_of('<I7I7', head, rest_place)
  if until_at > EXACT or epoch > EXACT then return redis.error_reply(WRONG) end
  if acquire_id > 0 then until_at = 0 end
end
if id ~= 0 and id < acquire_id then
  replayed = 2
elseif until_at > 0 and (now > until_at or now + CALL_LIFE < until_at) then
  replayed = 3
elseif id ~= 0 and id == acquire_id then
  -- What was granted under this id, as far as it can still be spent: a window that is over took its
  -- tokens with it, and so did an account that was closed for this node.
  granted, replayed = math.min(granted_then, math.max(want, need)), 1
  local place = windows_place
  for i = 1, #limits do local limit = limits[i]
    local still_open = is_open
    if limit.kind ~= 'g' then
--<one
      local then_at = window_was or #windows_then >= place + 6 and numbers_of('<I7', windows_then, place) or 0
--<several
      local then_at = #windows_then >= place + 6 and numbers_of('<I7', windows_then, place) or 0
-->
      still_open = then_at == limit.at
    end
    if not still_open then granted = 0 end
    place = place + 7
  end
--<bucket
  -- What of its account was not renewed then.
  if is_open then
    local kept = account - (granted_then - math.min(granted_then, need))
    if kept < 0 then kept = 0 end
    not_kept = held > kept and held - kept or 0
  end
-->
else
  -- Restores what the store has lost. It happens once per node, in its first acquire under an epoch that it does not
  -- know, unless a reset began the epoch; a return or a refund since then does not count as an acquire. What this
  -- node knows that it has spent or holds is added again, but never above the limit. Other nodes may have spending to
  -- report, too, so a node that restores some of a window is lent nothing in this call.
  local restored = false
  if epoch ~= 0 and epoch ~= epoch_now and not was_reset and id ~= 0 and acquire_id == 0 then
    for i = 1, #limits do local limit = limits[i]
--<several
      local known_used, known_at = limit.y, limit.z
--<many
      local known_used, known_at = limit_y, limit_z
--<alone
      local known_used, known_at = numbers_of('<I7I7', head, rest_place + 21)
      if known_used > EXACT or known_at > EXACT then return redis.error_reply(WRONG) end
-->
      if limit.kind == 'g' then
        limit.at = math.max(limit.at, math.min(known_at, now + limit.depth))
        --=spend known_used, now
      else
        if limit.kind == 'o' and limit.at == 0 and known_at > now and known_at <= now + limit.period then
          limit.at = known_at
        end
        if known_at ~= 0 and known_at == limit.at then
          limit.used = math.min(limit.used + known_used, limit.count)
          restored = restored or known_used > 0
        end
      end
    end
  end

  -- Ids of different nodes may meet: never the epoch that was lost.
  if not epoch_now then
    epoch_now = id == epoch and id - 1 or id
    if epoch_now < 1 then epoch_now = 1 end
  end

  -- Counts this node once per census period.
  census_is_new = census_has_rolled or not census_is_stored
  if not is_remembered then
    nodes_before, seen_again = 0, 0
  elseif not has_record or asked_in ~= census_id then
    census_is_new, nodes_now = true, nodes_now + 1
    if not has_record or asked_in ~= census_id - 1 then seen_again = seen_again + 1 end
  end
  --=count_nodes

--<bucket
  local believes, demand, frees_until, owes = a6, a7, a8, a9
  if believes > EXACT or demand > EXACT or frees_until > EXACT or owes > EXACT then return redis.error_reply(WRONG) end
  local is_stranger = believes == 0
  believes = is_stranger and 0 or believes - 1
  if believes > WHOLE then believes = WHOLE end
  if demand > MOST then demand = MOST end
  local frees = frees_until >= now
  if frees then
    if is_charged then
      late_until = now + 2 * PERIOD
      if limit.at > 0 then
        local latest = now + (limit.prev > limit.depth and limit.prev or limit.depth)
        limit.at = limit.at + charge < latest and limit.at + charge or latest
      end
    end
    if charged_until < now then charged_until = now end
    charge = 0
    if lapsed_parts > 0 then
      --=burst_of lapsed_parts
      --=spend tokens_of, now
    end
  end
-->
  -- What this node was lent and holds no more it has spent.
  if has_gcra and has_record and account + held > 0 then
--<alone
    limit_x = numbers_of('<I7', head, rest_place + 14)
    if limit_x > EXACT then return redis.error_reply(WRONG) end
--<bucket
    if is_late then limit_x = 0 end
-->
    --=close held, 0, EXACT
  end

--<entitled
  -- This node's entitlement is taken out of the sums, and put back as it is from now on.
  local believes, demand, frees_until = a6, a7, a8
  if believes > EXACT or demand > EXACT or frees_until > EXACT then return redis.error_reply(WRONG) end
  local is_stranger = believes == 0
  believes = is_stranger and 0 or believes - 1
  if believes > limit_count then believes = limit_count end
  if demand > limit_count then demand = limit_count end
  local frees = now <= frees_until
--<fixed
  local has_called_ahead = part_called == limit_at + limit_period
  local has_called = has_called_ahead or part_called == limit_at
  local aside, aside_ahead, freed = 0, 0, 0
--<opened
  -- The window is the one that is open, or the one that opens now if anything is wanted.
  local is_open_already = limit_at ~= 0
  local window = is_open_already and limit_at or now + limit_period
  local has_called = is_open_already and part_called == window
  local aside, freed = 0, 0
--<sliding
  local has_called = part_called == limit_at
  local aside, freed = 0, 0
--<entitled
  if frees then
    -- Another process under this name may have spent its entitlement in this window.
    local stays = part_called == limit_at + 1 or is_stranger and part_held > 0
--<opened
    -- But in one that opens now it has spent nothing, nor does anybody once a call under the name has freed it.
    if not is_open_already or has_called then stays = false end
--<sliding
    -- But a call under the name that freed it in this window paid what was spent of it, and nobody spends any more. If it were set
    -- aside once more it would count twice, in this window and in the next.
    if has_called then stays = false end
--<entitled
    if part_of == generation then
      entitled_now = entitled_now > part_held and entitled_now - part_held or 0
      demand_now = demand_now > part_demand and demand_now - part_demand or 0
    else
      entitled_before = entitled_before > part_held and entitled_before - part_held or 0
      demand_before = demand_before > part_demand and demand_before - part_demand or 0
    end
    if has_called then called = called > part_held and called - part_held or 0 end
--<fixed
    if has_called_ahead then called_ahead = called_ahead > part_held and called_ahead - part_held or 0 end

--<entitled
    -- The entitlement is 95 % of the limit by this node's part of the demand, rounded up, and no more than the others leave of those 95 %. A
    -- node says what it used since its last call, which may be a moment: an eighth of that counts, and seven eighths of what counted before.
    if demand > 0 and part_demand > 0 then
      demand = 7 * part_demand + demand + 7
      demand = (demand - demand % 8) / 8
    end
    -- Nor is it more than four times what the node uses, or a node that was the first to use a key a little would leave the others
    -- nothing of a window in which it has not called yet.
    local free, all, given = limit_count * 19, demand_now + demand_before + demand, 0
    free = (free - free % 20) / 20
    if demand > 0 then
      given = free * demand + all - 1
      given = (given - given % all) / all
      if given > 4 * demand then given = 4 * demand end
    end
    free = free - entitled_now - entitled_before
    if given > free then given = free > 0 and free or 0 end
    -- What the node believes stays set aside until a call of it shows that it knows of less.
    local held = believes > given and believes or given
    if stays and part_held > held then held = part_held end

--<fixed
    local is_ahead = ahead_of ~= 0 and limit_at == ahead_of
    if not stays and (is_ahead and not has_called_ahead or not is_ahead and not has_called) then freed = held end
    has_called_ahead = not stays and (has_called_ahead or is_ahead)
--<opened
    if not stays and not has_called then freed = held end
--<sliding
    if not stays and not has_called then freed = held end
--<entitled
    entitled_now, demand_now = entitled_now + held, demand_now + demand
--<fixed
    if not stays then called = called + held end
    if has_called_ahead then called_ahead = called_ahead + held end
--<opened
    if not stays then called = called + held end
--<sliding
    -- The process before may have spent as much as was set aside then. What has been added since nobody may spend yet.
    called = called + (stays and held - part_held or held)
--<entitled
    part_of, part_held, part_given, part_demand = generation, held, given, demand
--<fixed
    part_called = stays and limit_at + 1 or has_called_ahead and limit_at + limit_period or limit_at
--<opened
    part_called = stays and window + 1 or window
--<sliding
    part_called = stays and limit_at + 1 or limit_at
--<entitled
    part_is_new = true
    -- Where the limit was lowered in this window, those who called before may have had more set aside than all nodes have now. Then the
    -- difference is below 0, and without this as much would be lent beyond the limit.
    aside = entitled_now + entitled_before - called
    if aside < 0 then aside = 0 end
--<fixed
    aside_ahead = entitled_now + entitled_before - called_ahead
    if aside_ahead < 0 then aside_ahead = 0 end
--<entitled
  end
-->
--<bucket
  if frees then
    -- Another process under this name may have spent all that its share held.
    if is_stranger and not calls_in_time then
      --=burst_of part_held
      if owes < tokens_of then owes = tokens_of end
    end
    if owes > limit.burst then owes = limit.burst end
    --=spend owes, now
    -- This node's part is taken out of the sums, and put back as it is from now on.
    if part_of == generation then
      entitled_now = entitled_now > part_held and entitled_now - part_held or 0
      demand_now = demand_now > part_demand and demand_now - part_demand or 0
    else
      entitled_before = entitled_before > part_held and entitled_before - part_held or 0
      demand_before = demand_before > part_demand and demand_before - part_demand or 0
    end
    if part_called == lent_period then
      called_now = called_now > part_held and called_now - part_held or 0
    elseif calls_in_time then
      called_before = called_before > part_held and called_before - part_held or 0
    end
    -- The part is 95 % by this node's part of the demand, rounded up, and no more than the others leave of those. An eighth of what the node
    -- says counts, and seven eighths of what counted before.
    if demand > 0 and part_demand > 0 then
      demand = 7 * part_demand + demand + 7
      demand = (demand - demand % 8) / 8
    end
    local free, sum, given = 950000, demand_now + demand_before + demand, 0
    if demand > 0 then
      given = free * demand + sum - 1
      given = (given - given % sum) / sum
    end
    free = free - entitled_now - entitled_before
    if given > free then given = free > 0 and free or 0 end
    -- What the node believes stays its own until a call of it shows that it knows of less.
    local part = believes > given and believes or given
    entitled_now, demand_now, called_now = entitled_now + part, demand_now + demand, called_now + part
    part_of, part_held, part_given, part_demand, part_called = generation, part, given, demand, lent_period
    part_is_new, calls_in_time = true, true
  end
  --=count_silent 0
  --=burst_of silent
  local for_silent = tokens_of
  -- Accounts are renewed only up to what silent nodes leave. The rest is charged at the end of this period.
  local kept = held
  if for_silent > 0 then
    local room = is_open and account_period == lent_period and closed or limit.burst - for_silent - lent_now
    if kept > room then kept = room > 0 and room or 0 end
    -- The sum of all three may be no exact number, so the difference is taken first.
    local lapses = held - kept
    lent_before = math.min(lent_before + lapses, EXACT)
  end
  not_kept = held - kept
  held = kept
-->
  -- The tokens that are left under all limits. Of buckets also those that have yet to trickle in, which a node that
  -- is alone with the key may be lent: it knows from the answer when each of them comes, and spends none before. If
  -- another node asks, it finds them lent.
  local tokens, with_coming, parts = EXACT, EXACT, 2
  for i = 1, #limits do local limit = limits[i]
    local left, more
    if limit.kind == 'g' then
      -- The most tokens whose cost fits. If a token does not cost whole microseconds, this is an estimate in doubles,
      -- which is corrected by the exact cost.
      local room, burst = limit.depth, limit.burst
      if limit.at > now then room = now + room - limit.at end
      local fits
      if limit.part == 0 then
        fits = room / limit.whole
        fits = fits - fits % 1
        if fits > burst then fits = burst elseif fits < 0 then fits = 0 end
      else
        fits = math.max(math.min(math.floor(room * limit.count / limit.period), burst), 0)
        local whole, part, count = limit.whole, limit.part, limit.count
        while fits > 0 and fits * whole + scaled(fits, part, count, count - 1) > room do fits = fits - 1 end
        while fits < burst and (fits + 1) * whole + scaled(fits + 1, part, count, count - 1) <= room do
          fits = fits + 1
        end
      end
      left = fits - (lent_now + lent_before)
      more = left - held + limit.coming
      if more < with_coming then with_coming = more end
      left = (left > 0 and left or 0) - held
--<bucket
      left = frees and left - for_silent or 0
      if entitled_now + entitled_before > part_held then with_coming = 0 end
-->
      if left < 0 then left = 0 end
    else
      left = limit.count - limit.used
      if limit.kind == 's' then
        left = left - scaled(limit.prev, limit.at + limit.period - now, limit.period, limit.period - 1)
      else
        -- Of a window the lots may become small, because its tail is shared down to the last token. A bucket refills
        -- all the time, and is lent in larger lots.
        parts = 32
      end
--<fixed
      left = frees and left - aside or 0
--<opened
      left = frees and limit.count - limit.used - aside or 0
--<sliding
      -- While the window passes, the one before weighs less and silent nodes may have admitted more, both by the part of it that
      -- has passed. So the sum is highest now or at the end, where it is what is set aside.
      local weighs = limit.prev + (aside_before - aside)
      if weighs > EXACT then weighs = EXACT end
      weighs = weighs > 0 and scaled(weighs, limit.at + limit.period - now, limit.period, limit.period - 1) or 0
      left = frees and limit.count - limit.used - aside - weighs or 0
-->
      if left < 0 then left = 0 end
      if left < with_coming then with_coming = left end
    end
    if left < tokens then tokens = left end
  end
  if ahead_of ~= 0 then
    local next_is_known = first.at == ahead_of and first.at % first.period == 0
    if LIMITS > 1 or first.kind ~= 'f' or not next_is_known then
      tokens = 0
    else
      -- Two fifths are kept for who asks in that window: as much as a node that is alone with a limit leaves.
      local fifth = math.floor(first.count / 5)
      local for_then = 2 * fifth + math.floor((2 * (first.count - 5 * fifth) + 4) / 5)
      tokens = math.max(first.count - for_then - first.prev, 0)
--<fixed
      tokens = frees and math.min(tokens, math.max(limit_count - aside_ahead - limit_prev, 0)) or 0
-->
    end
  elseif has_gcra and is_remembered and nodes == 1 and tokens >= need then
    -- What somebody waits for is charged at once, and has to be there.
    if with_coming > tokens then tokens = with_coming end
  end

  -- Guided self-scheduling: no node is lent more than its part of what is left, except to serve waiters. The part of one that is alone
  -- is all of it.
  if tokens >= least and not restored then
    local part, quotient = tokens, 0
    if nodes > 1 then
      --=divide_up tokens, nodes
      part = quotient
      local capacity = EXACT
      for i = 1, #limits do local limit = limits[i]
        if limit.burst < capacity then capacity = limit.burst end
      end
      --=divide_up capacity, parts * nodes
      if part < quotient then part = quotient end
--<entitled
      -- What was set aside for this node it may have as a whole, because nobody else would be lent that.
      if part < freed then part = freed end
-->
      if part < need then part = need end
    end
    granted = want > need and want or need
    if granted > tokens then granted = tokens end
    if granted > part then granted = part end
  end

  -- gcra: tokens for waiters count as spent now. The rest is set aside, and counts when the node reports it as spent.
  local at_once = is_remembered and granted > need and need or granted
  for i = 1, #limits do local limit = limits[i]
    if ahead_of ~= 0 then
      limit.prev = limit.prev + granted
    elseif limit.kind ~= 'g' then
      if limit.kind == 'o' and limit.at == 0 and granted > 0 then limit.at = now + limit.period end
      limit.used = limit.used + granted
    end
    if limit.kind == 'g' then
      --=spend at_once, now
    end
  end

--<opened
  -- Here a window opens with the first request also where that is lent nothing, because all there is is set aside for others: an answer
  -- that names no window would say that nothing is used, and the node would ask again at once.
  if frees and limit_at == 0 and need + want > 0 then limit_at = now + limit_period end
  -- Where no window has opened, nobody has called in one.
  if part_is_new then
    if limit_at == 0 then called, part_called = 0, 0 end
    called_in = limit_at
  end
-->

  writes, all, renews, counts_nodes = true, true, true, true
  if is_remembered then
    if asked_in ~= census_id then asked_in, asked_text = census_id, nil end
    acquire_id, granted_then = id, granted
    if has_gcra then
      account, account_period = held + (granted - at_once), lent_period
      if account > EXACT then account = EXACT end
      lent_now = lent_now + account
      if lent_now > EXACT then lent_now = EXACT end
--<one
      window_then = 0
-->
    else
      account, account_period = 0, 0
--<one
      window_then = limit_at
-->
    end
--<several
    windows_then, windows_place = pack('<I7', first.kind == 'g' and 0 or first.at), 1
    for i = 2, #limits do
      windows_then = windows_then .. pack('<I7', limits[i].kind == 'g' and 0 or limits[i].at)
    end
-->
  else
    census_is_new = false
  end

--<plain
  -- Mostly nothing has changed by which the time is reckoned until when the hash lasts, so that need not be written again. (Of a sliding
  -- window only the start is stored, which says nothing of how long it is.)
  if is_remembered and limit_stored and limit_stored > 0 and epoch_now == stored_epoch and not census_is_new and ahead_of == 0 then
    if not has_gcra then
      renews = limit_kind == 's' or limit_at ~= limit_stored
    elseif not lent_is_stored and lent_now + lent_before == 0 and limit_prev == depth_then then
      local stepped, step
      --=in_steps limit_at
      local before = limit_stored - limit_stored % step + step
      renews = stepped ~= before
    end
  end
--<bucket
  if part_is_new then
    --=count_silent 0
    --=burst_of silent
    --=over_at now
    if over <= limit.depth or fitted > silent then fitted = silent end
  end
  if is_remembered and limit_stored and limit_stored > 0 and epoch_now == stored_epoch and not census_is_new and ahead_of == 0
    and was_kept and entitled_now + entitled_before > 0 and not lent_is_stored and lent_now + lent_before == 0
    and limit_prev == depth_then then
    local stepped, step
    --=in_steps limit_at
    local before = limit_stored - limit_stored % step + step
    renews = before ~= stepped
  end
--<sliding
  -- What a key without a window says is no window that begins at 0.
  if limit_at == 0 then was_kept = false end
--<entitled
  -- It is kept as long as something may be set aside in this generation, which is longer than a window asks for.
  if was_kept and entitled_now + entitled_before > 0 and limit_at == limit_stored and epoch_now == stored_epoch
    and is_remembered and not census_is_new and ahead_of == 0 then
    renews = false
  end
-->
end
