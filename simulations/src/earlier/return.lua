-- return: takes back unspent tokens, into the windows that lent them or not at all.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     a amount (tokens), b epoch that lent them, c held (tokens lent that it keeps), d the id of an acquire
--          that is void (0 = none), e what that needed, f gcra: what it told to be spent, g gcra: what
--          was spent since (the rest of what the node was lent is free), h gcra: the id of this node's last acquire or
--          return that was answered; of each limit x window_at (us), the limit's `at` as it was when they
--          were lent, y age (gcra: us since it spent the others, taken as spent in one go)
-- Reply    lib.lua's; granted = amount if any limit took it back, else 0

local amount, epoch, held, void, needed = a1 + 0, a2 + 0, a3 + 0, a4 + 0, a5 + 0
local told, spent, answered = a6 + 0, a7 + 0, a8 + 0
if max(amount, epoch, held, void, needed, told, spent, answered) > EXACT then return redis.error_reply(WRONG) end
-- A node that never had an answer knows no epoch, and says so only where an order of its own is void.
local knows = epoch == epoch_now or epoch == 0 and void ~= 0
if seen ~= 0 then
  replayed = seen
elseif epoch_now and knows then
  -- What was lent ahead goes back to the window after this one; a sliding window that is over still
  -- weighs, and takes them back.
  local taken = false
  for i = 1, #limits do
    local limit = limits[i]
    local window_at = limit.x
    if limit.kind ~= 'g' and window_at ~= 0 and window_at == limit.at then
      credit(limit, amount)
      taken = true
    elseif limit.kind == 'f' and window_at == limit.at + limit.period
      or limit.kind == 's' and window_at ~= 0 and window_at + limit.period == limit.at then
      limit.prev = max(limit.prev - amount, 0)
      taken = true
    end
  end

  -- What an order was lent that nobody waits for any more goes back: of a bucket what it was charged at once, since the
  -- rest is in the account. Where it was not executed, this says what it would have told, and if it comes later it is
  -- lent nothing, as if it had been before. At most so much was spent of the account.
  local most = EXACT
  if void ~= 0 and acquire_id == void then
    local windows = {}
    for at in string.gmatch(windows_then, '%d+') do windows[#windows + 1] = at + 0 end
    for i = 1, #limits do
      local limit = limits[i]
      if limit.kind == 'g' then
        credit(limit, min(granted_then, needed))
      elseif (windows[i] or 0) == limit.at then
        credit(limit, granted_then)
      end
    end
    taken = taken or granted_then > 0
    granted_then, most = 0, spent
  elseif void ~= 0 then
    -- An account of before the last answer is one that the store lost a change of, or that another process of this
    -- node opened: what was told since is not known here, and all of it counts as spent.
    if acquire_id == answered or acquire_id < answered and answered <= other_id then
      most = min(spent + told, EXACT)
    end
    if acquire_id < void then acquire_id, granted_then = void, 0 end
  end

  -- gcra: the account is closed, but for what this node keeps. An acquire that was sent later has said so.
  if has_gcra and id > acquire_id then
    local lent, settled = 0, false
    if has_record then lent, settled = close_account(held, amount, 'y', most) end
    taken = taken or lent > 0 or settled and held + amount > 0
    -- What was credited to an account that was late, and the node keeps, it may spend yet: by a clock that stepped back
    -- an account is over here sooner than there.
    account, account_period = settled and min(held, EXACT) or 0, lent_period
    lent_now = min(lent_now + account, EXACT)
    -- The hash has to last as long as this node holds any of it.
    renews = account > 0
  end
  if taken or void ~= 0 then other_id, fields = id, {} end
  if taken then granted = amount end
end
