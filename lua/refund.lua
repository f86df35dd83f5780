-- refund: takes back a cost that was spent, into the current windows: of all limits, or of none.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     a amount (tokens), b epoch under which it was charged (0 = unknown); of each limit x window_at (us), 0 for whatever window is open, or the limit's
--          `at` as it was when the cost was spent; for gcra the time from which on it has filled up since
-- Reply    lib.lua's; granted = amount, or 0 when nothing is stored, which is a full limit, or when another
--          window was charged, or when a reset has forgotten the charge

local amount, epoch = a1, a2
if amount > EXACT or epoch > EXACT then return redis.error_reply(WRONG) end
--<alone
limit_x = a3
if limit_x > EXACT then return redis.error_reply(WRONG) end
-->
local is_forgotten = was_reset and epoch ~= 0 and epoch ~= epoch_now
--=see
if seen ~= 0 then
  replayed = seen
elseif epoch_now and not is_forgotten then
  local all_were_charged = true
  for i = 1, #limits do local limit = limits[i]
    local window_at, is_charged = limit.x, limit.x == limit.at
    if limit.kind == 'g' then is_charged = now < window_at end
    if window_at ~= 0 and not is_charged then all_were_charged = false end
  end
  if all_were_charged then
    for i = 1, #limits do local limit = limits[i]
      --=credit amount
    end
    granted, other_id, writes = amount, id, true
    --=remember census_id - 2
  end
end
