-- claim: what an acquire says of entitlements, where tokens are set aside. Put before lib.lua.
--
-- ARGV     in the second argument, behind held:
--          believes     one more than the tokens that the node takes to be set aside for it; 0 = the store has told this process of
--                       none, and another one under the node's name may have spent them. Of a bucket its part, in millionths
--          demand       tokens that the node uses in a window; of a bucket, in a period of accounts. 0 = nothing need be set aside
--          frees_until  us. Until then the call frees what is set aside for its node, which spends what it is lent from then on. A
--                       call that comes later frees nothing and is lent nothing, because the node may live on its entitlement
--                       again. 0 = it frees nothing whenever it comes: the node only looks whether the store answers
--          owes         of a bucket alone: tokens that the node has admitted on its part, and the bucket has not forgotten

-- An acquire of one limit reads what stands behind these numbers only where it needs that: acquire.lua.
--<single
ALL = '<c1I7I7I7I7I7I7I7I7I7I7'
--<entitled
ALL, ALL_BYTES = '<c1I7I7I7I7I7I7I7I7I7I7I7I7I7', ALL_BYTES + 21
--<bucket
ALL, ALL_BYTES = '<c1I7I7I7I7I7I7I7I7I7I7I7I7I7I7', ALL_BYTES + 28
-->
