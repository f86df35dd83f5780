-- Entitlements of a bucket: what the store makes room for when a node falls silent, and the node may admit without it. Put after
-- lib.lua. Only scripts for one bucket of which parts are set aside have it, so it costs the others nothing.
--
-- A node is silent when it has called neither in this period of accounts nor in the one before. Nothing is withheld for a node that
-- calls. From its first silent period on, its part of the burst is lent to nobody else, and accounts are renewed only up to what that
-- leaves. Its share begins to fill, from empty, a period later, when all that was not renewed has been charged. From then on the
-- bucket is charged its part of the rate, and already in its first silent period if others were silent before that began. So
-- what is lent and what silent nodes hold fits into the bucket at every moment.
--
-- Fields   b        generation, parts given in this generation, in the one before, demand of this one, of the one before, period,
--                   parts of those who have called in it, in the one before, until when the bucket was charged for silent
--                   nodes (charged_until), until when what is reported as spent counts as spent now (late_until), and the
--                   parts of those who were silent when what is charged and lent last left room for silent nodes (fitted)
--          b:NODE   generation, the part that the node may believe in, the part that it was given last, its demand, and the
--                   last period in which it has called
-- A part that no call renews lapses two generations after its own has begun. Parts are millionths of the limit.

--<bucket
local GENERATION = 300 * SECOND
local WHOLE = 1000000
-- A hash with a value of more than 64 bytes takes three times as much memory.
local ASIDE, ASIDE_BYTES = '<I4I6I6I6I6I4I6I6I7I7I3', 61
local PART, PART_BYTES = '<I4I7I7I7I7', 32

local generation, entitled_now, entitled_before, demand_now, demand_before = 0, 0, 0, 0, 0
local called_in, called_now, called_before, charged_until, late_until, fitted = 0, 0, 0, 0, 0, 0
local part_of, part_held, part_given, part_demand, part_called = 0, 0, 0, 0, 0
local part_is_new, part_is_stored = false, false
local aside_text, part_text = values[7], values[8]
if aside_text then
  local a, b, c, d, e, f, g, h, i, j, k
  if #aside_text == ASIDE_BYTES then a, b, c, d, e, f, g, h, i, j, k = numbers_of(ASIDE, aside_text) end
  if a and b + c <= EXACT and d + e <= EXACT and g + h <= EXACT and i <= EXACT and j <= EXACT and k <= WHOLE then
    generation, entitled_now, entitled_before, demand_now, demand_before = a, b, c, d, e
    called_in, called_now, called_before, charged_until, late_until, fitted = f, g, h, i, j, k
  else
    bad, damaged = bad or {}, true
    bad[#bad + 1] = aside_field
  end
end
if part_text then
  local a, b, c, d, e
  if #part_text == PART_BYTES then a, b, c, d, e = numbers_of(PART, part_text) end
  if a and b <= EXACT and c <= EXACT and d <= EXACT and e <= EXACT then
    part_of, part_held, part_given, part_demand, part_called = a, b, c, d, e
  else
    bad, damaged = bad or {}, true
    bad[#bad + 1] = own_part
  end
end
local this_generation = (now - now % GENERATION) / GENERATION
local generation_is_new = generation < this_generation
-- Whether somebody had a part already when this was stored: then the hash is kept until that lapses.
local was_kept = not generation_is_new and entitled_now + entitled_before > 0
-- A node whose part lapses is silent, and may have spent all that its share held: the next acquire is charged that.
local lapsed_parts = 0
if generation_is_new then
  local follows = generation + 1 == this_generation
  lapsed_parts = entitled_before + (follows and 0 or entitled_now)
  entitled_before, demand_before = follows and entitled_now or 0, follows and demand_now or 0
  entitled_now, demand_now, generation = 0, 0, this_generation
end
if part_of ~= generation and part_of + 1 ~= generation then
  part_of, part_held, part_given, part_demand = 0, 0, 0, 0
end
if called_in ~= lent_period then
  local follows = called_in + 1 == lent_period
  local called = follows and called_now + called_before or called_in + 2 == lent_period and called_now or 0
  -- Who was not silent when the period before ended has a share that is empty until this one ends. If that is so of all nodes, this
  -- period is charged to nobody.
  if charged_until > 0 and called >= entitled_now + entitled_before then charged_until = (lent_period + 1) * UNIT end
  called_before = follows and called_now or 0
  called_now, called_in = 0, lent_period
end

-- `tokens_of` are so many millionths of the burst, rounded up, and never more than all of it.
--<burst_of millionths
tokens_of = millionths > WHOLE and WHOLE or millionths
tokens_of = tokens_of * limit.burst + WHOLE - 1
tokens_of = (tokens_of - tokens_of % WHOLE) / WHOLE
-->
-- `over` is what is charged and lent at that time, and what silent nodes may hold, as the time that it costs; rounded down.
--<over_at at
over = lent_now + lent_before + tokens_of
if over > 2 * limit.burst then over = 2 * limit.burst end
over = over * limit.whole
if limit.at > at then over = over + limit.at - at end
-->
-- `silent` are the parts of all silent nodes.
--<count_silent none
silent = entitled_now + entitled_before - called_now - called_before
if silent < 0 then silent = 0 elseif silent > WHOLE then silent = WHOLE end
-->
--<bucket
local silent, tokens_of, not_kept, over = 0, 0, 0, 0
--=count_silent 0
-- While silent nodes are charged, the bucket leaks more slowly, so it has not forgotten as much of what was spent some time ago
-- as its whole rate would say: what is reported as spent counts as spent now.
local is_charged = silent > 0 and charged_until <= now
local is_late = is_charged or now < late_until
local calls_in_time = part_called == lent_period or part_called + 1 == lent_period
-- What silent nodes may have spent since then.
local charge = 0
if silent > 0 and charged_until > 0 and charged_until < now then
  charge = now - charged_until
  if charge > 2 * GENERATION then charge = 2 * GENERATION end
  local passed = charge
  charge = charge * silent + WHOLE - 1
  charge = (charge - charge % WHOLE) / WHOLE
  -- A bucket in which more is charged and lent than leaves room for nodes that have just fallen silent lends nothing. It leaks
  -- faster than their shares fill, so until it has made that room they are not charged (docs/decisions/0013-entitlements.md,
  -- "Why it is sound").
  if fitted < silent then
    --=burst_of silent
    --=over_at charged_until
    over = over - limit.depth
    local began = limit.at > charged_until and limit.at - charged_until or 0
    if over > began then over = began end
    if over > passed then over = passed end
    if over > 0 then
      over = over * (silent - fitted)
      charge = charge - (over - over % WHOLE) / WHOLE
    end
  end
end
-->
