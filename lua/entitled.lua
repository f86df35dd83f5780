-- Entitlements: what the store sets aside of a window for each node, to admit when the node has lost the store.
-- Put after lib.lua. Only scripts for one limit of which tokens are set aside have it, so it costs the others nothing.
--
-- Of a window the store lends what is left beside the entitlements of all nodes that have not called in it. The first call
-- of a node in the window, or its call ahead of it, frees the node's own, because from then on it spends what it is lent. So what
-- nodes without the store admit and what the others are lent come to no more than the limit together, whoever is cut off.
--
-- Of a sliding window a silent node may admit by the part of the window that has passed, as the one before weighs less by that.
-- When a window is the one before, what was set aside of it for those that had not called in it counts as used.
--
-- A window from the first request opens when the store lends the first of it. What is set aside of it is not counted before: a silent
-- node does not know when that was, and admits no more than its entitlement in any time as long as a window.
--
-- Fields   a        generation, entitled in this generation, in the one before, demand of this one, of the one before,
--                   the window (its `at`), entitled of those who have called in it, and ahead in the next one
--          a:NODE   generation, tokens that the node may believe in, tokens that it was given last, its demand, and the
--                   last window in which it has called (its `at`; or one more than that where its part stays set aside all the
--                   same, because another process under its name may have spent it)
--          d, d:NODE  the same of a sliding window, except that windows go by their start, which is their `at`, and that the last
--                   number of the former is what was set aside of the window before for those that had not called in it
--          h, h:NODE  the same of a window from the first request, except that while none is open the window is 0, and that the last
--                   number of the former is always 0
-- An entitlement that no call renews lapses two generations after its own has begun. All other numbers are tokens of one
-- window.

--<entitled
local GENERATION = 300 * SECOND
local ASIDE, ASIDE_BYTES = '<I4I7I7I7I7I7I7I7', 53
local PART, PART_BYTES = '<I4I7I7I7I7', 32

local generation, entitled_now, entitled_before, demand_now, demand_before = 0, 0, 0, 0, 0
--<fixed
local called_in, called, called_ahead = 0, 0, 0
--<opened
local called_in, called = 0, 0
--<sliding
local called_in, called, aside_before = 0, 0, 0
--<entitled
local part_of, part_held, part_given, part_demand, part_called = 0, 0, 0, 0, 0
local part_is_new, part_is_stored = false, false
local aside_text, part_text = values[7], values[8]
if aside_text then
  local a, b, c, d, e, f, g, h
  if #aside_text == ASIDE_BYTES then a, b, c, d, e, f, g, h = numbers_of(ASIDE, aside_text) end
  if a and b + c <= EXACT and d + e <= EXACT and f <= EXACT and g + h <= EXACT then
    generation, entitled_now, entitled_before, demand_now, demand_before = a, b, c, d, e
--<fixed
    called_in, called, called_ahead = f, g, h
--<opened
    called_in, called = f, g
--<sliding
    called_in, called, aside_before = f, g, h
--<entitled
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
-- Whether something was set aside already when this was stored: then the hash is kept until that lapses.
local was_kept = not generation_is_new and entitled_now + entitled_before > 0
--<sliding
-- Reckoned from what is stored, before any of that lapses: nodes may have spent all that was in force until the window before was over.
if called_in ~= limit_at then
  local ended = limit_at - 1
  ended = (ended - ended % GENERATION) / GENERATION
  aside_before = (generation + 1 >= ended and entitled_now or 0) + (generation >= ended and entitled_before or 0)
  if called_in + limit_period == limit_at then
    aside_before = aside_before > called and aside_before - called or 0
  end
  called, called_in = 0, limit_at
end
--<entitled
if generation_is_new then
  local follows = generation + 1 == this_generation
  entitled_before, demand_before = follows and entitled_now or 0, follows and demand_now or 0
  entitled_now, demand_now, generation = 0, 0, this_generation
end
if part_of ~= generation and part_of + 1 ~= generation then
  part_of, part_held, part_given, part_demand = 0, 0, 0, 0
end
--<fixed
if called_in ~= limit_at then
  called = called_in + limit_period == limit_at and called_ahead or 0
  called_ahead, called_in = 0, limit_at
end
--<opened
if called_in ~= limit_at then called, called_in = 0, limit_at end
-->
