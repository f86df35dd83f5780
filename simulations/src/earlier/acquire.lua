-- acquire: lends tokens of all limits, or of none. May lend a part of what is wanted.
--
-- KEYS[1]  the key's hash (lib.lua says what is in it)
-- ARGV     a need, b want, c least (tokens), d ahead_of (us; 0 = lend of now, else of the window
--          after the one that ends then), e epoch (as the node knows it; 0 = none), f held (tokens
--          lent before that it has not spent); of each limit x known_used (tokens), y known_at (us), z age
--          (gcra: us since it spent the others, taken as spent in one go)
-- Reply    lib.lua's; granted = tokens lent: none where the node brings back what the store has lost. With
--          an id that was executed before, the answer of then.

local need, want, least, ahead_of, epoch, held = a1 + 0, a2 + 0, a3 + 0, a4 + 0, a5 + 0, a6 + 0
if max(need, want, least, ahead_of, epoch, held) > EXACT then return redis.error_reply(WRONG) end

if id ~= 0 and id < acquire_id then
  replayed = 2
elseif id ~= 0 and id == acquire_id then
  -- What was granted under this id, as far as it can still be spent: a window that is over took its
  -- tokens with it, and so did an account that was closed for this node.
  granted, replayed = min(granted_then, max(want, need)), 1
  local windows = {}
  for at in string.gmatch(windows_then, '%d+') do windows[#windows + 1] = at + 0 end
  for i = 1, #limits do
    local still_open = is_open
    if limits[i].kind ~= 'g' then still_open = (windows[i] or 0) == limits[i].at end
    if not still_open then granted = 0 end
  end
else
  -- Once per node: its first acquire under an epoch that it does not know, unless a reset began it. What it took back
  -- meanwhile is no acquire. What this node knows that it spent or holds, and the store has lost, is added again; never
  -- above the limit. Others may have as much to tell: who brings back some of a window is lent nothing yet.
  local restored = false
  if epoch ~= 0 and epoch ~= epoch_now and not was_reset and id ~= 0 and acquire_id == 0 then
    for i = 1, #limits do
      local limit = limits[i]
      local known_used, known_at = limit.x, limit.y
      if limit.kind == 'g' then
        limit.at = max(limit.at, min(known_at, now + limit.depth))
        spend(limit, known_used, now)
      else
        if limit.kind == 'o' and limit.at == 0 and known_at > now and known_at <= now + limit.period then
          limit.at = known_at
        end
        if known_at ~= 0 and known_at == limit.at then
          limit.used = min(limit.used + known_used, limit.count)
          restored = restored or known_used > 0
        end
      end
    end
  end

  -- Ids of different nodes may meet: never the epoch that was lost.
  epoch_now = epoch_now or max(id == epoch and id - 1 or id, 1)

  -- Counts this node once per census period.
  local census_is_new = census_has_rolled or not census_is_stored
  if id == 0 then
    nodes_before, seen_again = 0, 0
  elseif not has_record or asked_in ~= census_id then
    census_is_new, nodes_now = true, nodes_now + 1
    if not has_record or asked_in ~= census_id - 1 then seen_again = seen_again + 1 end
  end
  nodes = max(1, min(nodes_before + seen_again, MOST))

  -- What this node was lent and holds no more it has spent.
  if has_record then close_account(held, 0, 'z', EXACT) end

  -- The most tokens of a bucket whose cost fits: an estimate in doubles, corrected by the exact cost.
  local function left_of_bucket(limit)
    local room, burst = now + limit.depth - max(limit.at, now), limit.burst
    if limit.part == 0 then return max(min(floor(room / limit.whole), burst), 0) end
    local tokens = max(min(floor(room * limit.count / limit.period), burst), 0)
    while tokens > 0 and cost(limit, tokens) > room do tokens = tokens - 1 end
    while tokens < burst and cost(limit, tokens + 1) <= room do tokens = tokens + 1 end
    return tokens
  end

  -- What is left of all limits; of buckets also what a node that is alone with a key may be lent before it has
  -- trickled in: it knows from the answer when each token comes, and spends none before. Another node finds them lent.
  local tokens, with_coming, capacity, parts = EXACT, EXACT, EXACT, 2
  for i = 1, #limits do
    local limit = limits[i]
    local kind, left, more = limit.kind, nil, 0
    if kind == 'g' then
      left = left_of_bucket(limit) - (lent_now + lent_before)
      more = limit.coming
      with_coming = min(with_coming, left - held + more)
      left = max(max(left, 0) - held, 0)
    else
      left = limit.count - limit.used
      if kind == 's' then
        left = left - scaled(limit.prev, limit.at + limit.period - now, limit.period, limit.period - 1)
      else
        -- A window's tail is shared to the last; what trickles in is handed out by the lot.
        parts = 32
      end
      left = max(left, 0)
      with_coming = min(with_coming, left)
    end
    tokens, capacity = min(tokens, left), min(capacity, limit.burst)
  end
  if ahead_of ~= 0 then
    local limit = limits[1]
    local next_is_known = limit.at == ahead_of and limit.at % limit.period == 0
    if #limits > 1 or limit.kind ~= 'f' or not next_is_known then
      tokens = 0
    else
      -- Two fifths are kept for who asks in that window.
      local fifth = floor(limit.count / 5)
      local for_then = 2 * fifth + up(2 * (limit.count - 5 * fifth), 5)
      tokens = max(limit.count - for_then - limit.prev, 0)
    end
  elseif has_gcra and id ~= 0 and nodes == 1 and tokens >= need then
    -- What somebody waits for is charged at once, and has to be there.
    tokens = max(tokens, with_coming)
  end

  -- Guided self-scheduling: nobody takes more than its part of what is left, beyond what waits.
  if tokens >= least and not restored then
    local part = max(need, up(tokens, nodes), up(capacity, parts * nodes))
    granted = min(max(want, need), tokens, part)
  end

  -- gcra: what somebody waits for is spent now; the rest is set aside, and counts when it is spent.
  local at_once = id == 0 and granted or min(granted, need)
  for i = 1, #limits do
    local limit = limits[i]
    if ahead_of ~= 0 then
      limit.prev = limit.prev + granted
    elseif limit.kind ~= 'g' then
      if limit.kind == 'o' and limit.at == 0 and granted > 0 then limit.at = now + limit.period end
      limit.used = limit.used + granted
    end
    if limit.kind == 'g' then spend(limit, at_once, now) end
  end

  -- What has not changed is not written.
  fields, all = {}, true
  if epoch_now ~= stored_epoch then fields = { 'e', format('%d', epoch_now) } end
  if id ~= 0 then
    asked_in, acquire_id, granted_then, windows_then = census_id, id, granted, ''
    account, account_period = 0, 0
    if has_gcra then
      account, account_period = min(held + (granted - at_once), EXACT), lent_period
      lent_now = min(lent_now + account, EXACT)
    end
    for i = 1, #limits do
      windows_then = windows_then .. (limits[i].kind == 'g' and ' 0' or format(' %d', limits[i].at))
    end
    if census_is_new then
      fields[#fields + 1] = 'c'
      fields[#fields + 1] = format('%d %d %d %d', census_id, nodes_now, nodes_before, seen_again)
    end
  end
  renews, counts_nodes = true, true
end
