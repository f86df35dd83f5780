-- A node's account under gcra: what it was lent and has not reported as spent. Put after lib.lua and before the
-- scripts that close an account or take something back.

local function credit(limit, tokens)
  if limit.kind ~= 'g' then
    limit.used = max(limit.used - tokens, 0)
  elseif tokens * limit.whole > EXACT then
    -- Worth more than any debt, and beyond the exact integers.
    limit.at = 0
  else
    -- What returned tokens are worth is rounded down.
    limit.at = max(limit.at - tokens * limit.whole - scaled(tokens, limit.part, limit.count, 0), 0)
  end
end

-- Closes the account. Of what this node was lent it still `has` some and hands some `back`; the rest it has spent,
-- but never more than `most`, and that is debited as if it were spent in one go, as long ago as the given argument of
-- each limit says. If it has more than it was lent, the difference was charged for a waiter that did not get it, and
-- that charge is taken back. Returns what it was lent, and whether an account was open.
local close_account
if has_gcra then close_account = function(has, back, age_at, most)
  if not is_open then
    -- An account that was not renewed in time was charged as spent. If the node was only late, it now says what of it
    -- is unspent. That is credited, unless the bucket may have filled up since: then the charge has leaked away, and
    -- a credit would admit too much.
    local lapsed, rest = account, has + back
    if lapsed == 0 or account_period == 0 or rest == 0 then return 0, false end
    account = 0
    for i = 1, #limits do
      local limit = limits[i]
      if limit.kind == 'g' and now < (account_period + 2) * PERIOD + cost(limit, min(lapsed, limit.burst)) then
        credit(limit, min(rest, lapsed))
      end
    end
    return 0, true
  end
  if account_period == lent_period then
    lent_now = max(lent_now - account, 0)
  else
    lent_before = max(lent_before - account, 0)
  end
  -- Added one after the other, because their sum may not be exact.
  local spent = min(account - has - back, most)
  for i = 1, #limits do
    local limit = limits[i]
    if limit.kind == 'g' then
      spend(limit, spent, max(now - limit[age_at], 0))
      if spent < 0 then credit(limit, min(-spent, EXACT)) end
    end
  end
  return account, true
end end
