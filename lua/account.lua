-- A node's account under gcra: what it was lent and has not reported as spent. Put after lib.lua and before the
-- scripts that close an account or take something back.

--<credit tokens
if limit.kind ~= 'g' then
  limit.used = limit.used > tokens and limit.used - tokens or 0
elseif tokens * limit.whole > EXACT then
  -- Worth more than any debt, and not exact. A bucket without a debt is as one that was never charged.
  limit.at, limit.prev = 0, 0
else
  -- What tokens are worth when they come back is rounded down.
  local at = limit.at - tokens * limit.whole
  if limit.part > 0 then at = at - scaled(tokens, limit.part, limit.count, 0) end
  if at > 0 then limit.at = at else limit.at, limit.prev = 0, 0 end
end
-->

-- The account is closed: what this node was lent, less what it still `has` and hands `back`, it has spent, as if
-- in one go as long ago as each limit's argument x says; but never more than `most`. What it
-- has beyond the account was charged for a waiter at the node who did not get it: that charge is taken back.
-- `closed` is what the node was lent by it then, and `settled` whether there was an account to close.
local closed, settled = 0, false
--<close has, back, most
if is_open then
  if is_now then
    lent_now = lent_now > account and lent_now - account or 0
  else
    lent_before = lent_before > account and lent_before - account or 0
  end
  -- One after the other: their sum may be no exact number.
  local spent = account - has - back
  if spent > most then spent = most end
  for i = 1, #limits do local limit = limits[i]
    if limit.kind == 'g' then
      --=spend spent, now > limit.x and now - limit.x or 0
      if spent < 0 then
        --=credit -spent < EXACT and -spent or EXACT
      end
    end
  end
  closed, settled = account, true
elseif account > 0 and account_period > 0 and has + back > 0 then
  -- An account that was not renewed in time has been charged as spent. A node that was only late says now what it
  -- has not spent of it, and that is credited, as long as the bucket cannot have filled up since: a charge
  -- that has leaked away is worth nothing any more.
  local lapsed, rest = account, has + back
  for i = 1, #limits do local limit = limits[i]
    if limit.kind == 'g' then
      local tokens = lapsed < limit.burst and lapsed or limit.burst
      local fills_in = tokens * limit.whole
      if limit.part > 0 then fills_in = fills_in + scaled(tokens, limit.part, limit.count, limit.count - 1) end
      if now < (account_period - account_period % units + 2 * units) * UNIT + fills_in then
        --=credit rest < lapsed and rest or lapsed
      end
    end
  end
  account, settled = 0, true
end
-->
