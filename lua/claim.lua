-- claim: what an acquire says beside the rest where tokens are set aside. Put before lib.lua.
--
-- ARGV     of the second argument also g believes (one more than the tokens that the node takes to be set aside for it; 0 = this
--          process has not been told of any), h wishes (tokens that
--          it uses in a window), i frees_until (us; 0 = this call only looks whether the store answers: it frees nothing and
--          is lent nothing; so it is after that time, when the node may live on its entitlement again)

--<entitled
-- `until` comes first, which acquire.lua reads by its place.
HEAD, HEAD_BYTES = HEAD .. 'I7I7I7I7', HEAD_BYTES + 21
-->
