-- return: takes back unspent tokens, into the windows that lent them or not at all.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     a amount (tokens), b epoch that lent them, c held (tokens lent that it keeps), d the id of an acquire
--          that is void (0 = none), e what that needed (gcra, and where tokens are set aside), f gcra: what it told to be spent, g gcra: what
--          was spent since (the rest of what the node was lent is free), h gcra: the id of this node's last acquire or
--          return that was answered; of each limit x age (gcra: us since it spent the others, taken as spent in one
--          go), y window_at (us), the limit's `at` as it was when they were lent
-- Reply    lib.lua's; granted = amount if any limit took it back, else 0

local amount, epoch, held, void, needed, told, spent, answered = a1, a2, a3, a4, a5, a6, a7, a8
if amount > EXACT or epoch > EXACT or held > EXACT or void > EXACT or needed > EXACT or told > EXACT or spent > EXACT
  or answered > EXACT then
  return redis.error_reply(WRONG)
end
--<alone
limit_x, limit_y = a9, a10
if limit_x > EXACT or limit_y > EXACT then return redis.error_reply(WRONG) end
-->
-- A node that never had an answer knows no epoch, and says so only where an order of its own is void.
local knows = epoch == epoch_now or epoch == 0 and void ~= 0
--=see
if seen ~= 0 then
  replayed = seen
elseif epoch_now and knows then
  -- Tokens of the next window go back to that. A sliding window that is over still counts, and takes tokens back.
  local taken = false
  for i = 1, #limits do local limit = limits[i]
    local window_at = limit.y
    if limit.kind ~= 'g' and window_at ~= 0 and window_at == limit.at then
      --=credit amount
      taken = true
    elseif limit.kind == 'f' and window_at == limit.at + limit.period
      or limit.kind == 's' and window_at ~= 0 and window_at + limit.period == limit.at then
      limit.prev = limit.prev > amount and limit.prev - amount or 0
      taken = true
    end
  end

  -- Voids an acquire that the node has abandoned, and takes back what it was lent: of a bucket only what was charged
  -- at once, since the rest is in the account. If the acquire was not executed, the record is brought to what it
  -- would have said, and if it arrives later it is lent nothing. `most` is the most that can have been spent of the
  -- account.
  local most = EXACT
  if void ~= 0 and acquire_id == void then
    local place = windows_place
    for i = 1, #limits do local limit = limits[i]
--<one
      local then_at = window_was or #windows_then >= place + 6 and numbers_of('<I7', windows_then, place) or 0
--<several
      local then_at = #windows_then >= place + 6 and numbers_of('<I7', windows_then, place) or 0
-->
      if limit.kind == 'g' then
        --=credit math.min(granted_then, needed)
      elseif then_at == limit.at then
--<entitled
        local used_then = limit.used
-->
        --=credit granted_then
--<entitled
        -- What the order needed may have been to pay for what its node has spent of its entitlement in this window, which the
        -- order freed. That goes back with the rest, so the entitlement is set aside again until the node calls once more. Where
        -- others were lent it meanwhile, and it does not fit any more, what the order needed stays charged instead: if more were
        -- lent and set aside than the limit, who comes back would not be lent what it has to pay.
        local kept = needed < granted_then and needed or granted_then
--<fixed
        local is_ahead = part_called == limit.at + limit.period
        if kept > 0 and (is_ahead or part_called == limit.at) then
--<opened
        if kept > 0 and part_called == limit.at then
--<sliding
        if kept > 0 and part_called == limit.at then
--<entitled
          local called_then = called > part_held and called - part_held or 0
          local aside = entitled_now + entitled_before - called_then
          if aside < 0 then aside = 0 end
--<fixed
          local fits = aside == 0 or limit.used + aside <= limit.count
--<opened
          local fits = aside == 0 or limit.used + aside <= limit.count
--<sliding
          local weighs, rest = limit.prev + (aside_before - aside), limit.at + limit.period - now
          if weighs > EXACT then weighs = EXACT end
          weighs = weighs > 0 and scaled(weighs, rest, limit.period, limit.period - 1) or 0
          local fits = aside == 0 or limit.used + aside + weighs <= limit.count
--<fixed
          local ahead_then = called_ahead
          if is_ahead then
            ahead_then = called_ahead > part_held and called_ahead - part_held or 0
            local aside_ahead = entitled_now + entitled_before - ahead_then
            if aside_ahead < 0 then aside_ahead = 0 end
            fits = fits and limit.prev + aside_ahead <= limit.count
          end
--<entitled
          if fits then
            called, part_called, part_is_new = called_then, 0, true
--<fixed
            called_ahead = ahead_then
--<entitled
          else
            limit.used = used_then > granted_then - kept and used_then - (granted_then - kept) or 0
          end
        end
-->
      end
      place = place + 7
    end
    taken = taken or granted_then > 0
    granted_then, most = 0, spent
  elseif void ~= 0 then
    -- If the account is older than the last answer that the node has, either the store lost a change of it or another
    -- process under the node's name opened it. What was reported since is then unknown, and all of the account counts
    -- as spent.
    if acquire_id == answered or acquire_id < answered and answered <= other_id then
      most = math.min(spent + told, EXACT)
    end
    if acquire_id < void then acquire_id, granted_then = void, 0 end
  end

  -- gcra: closes the account, and opens it anew with what this node keeps. A later acquire has done so already.
  if has_gcra and id > acquire_id then
--<bucket
    if is_late then limit.x = 0 end
-->
    if has_record then
      --=close held, amount, most
    end
    taken = taken or closed > 0 or settled and held + amount > 0
    -- A late account is opened anew, too, with what the node keeps of it: the node may be able to spend that yet, as where
    -- the store's clock was ahead for a while, and has ended the account, before it stepped back.
--<bucket
    local account_was = account_period
-->
    account, account_period = settled and held or 0, lent_period
    lent_now = math.min(lent_now + account, EXACT)
--<bucket
    -- No node renews its account by a return, and while others are silent only an acquire may renew it. So what the node keeps stays in the
    -- period in which it was lent.
    if silent > 0 and account_was + 1 == lent_period then
      lent_now, lent_before = lent_now - account, math.min(lent_before + account, EXACT)
      account_period = account_was
    end
-->
    -- The hash has to last as long as this node holds any of it.
    renews = account > 0
  end
  if taken or void ~= 0 then
    other_id, writes = id, true
    --=remember census_id - 2
  end
  if taken then granted = amount end
end
