-- A node's account under gcra: what it was lent and has not said to have spent. Stands after lib.lua before the
-- scripts that close it or take something back.

local function credit(limit, tokens)
  if limit.kind ~= 'g' then
    limit.used = max(limit.used - tokens, 0)
  elseif tokens * limit.whole > EXACT then
    -- Worth more than any debt, and not exact.
    limit.at = 0
  else
    -- What tokens are worth when they come back is rounded down.
    limit.at = max(limit.at - tokens * limit.whole - scaled(tokens, limit.part, limit.count, 0), 0)
  end
end

-- The account is closed: what this node was lent, less what it still `has` and hands `back`, it has spent, as if
-- in one go as long ago as the extra argument of that place says of each limit; but never more than `most`. What it
-- has beyond the account was charged for somebody at the node who did not get it: that charge is taken back.
-- Returns what it was lent, and whether anything was open.
local close_account
if has_gcra then close_account = function(has, back, age_at, most)
  if not is_open then
    -- An account that was not renewed in time has been charged as spent. A node that was only late says now what it
    -- has not spent of it, and that is credited, as long as the bucket cannot have filled up since: a charge
    -- that has leaked away is worth nothing any more.
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
  -- One after the other: their sum may be no exact number.
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
