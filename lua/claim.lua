-- claim: what an acquire says beside the rest where tokens are set aside. Put before lib.lua.
--
-- ARGV     of the second argument, behind until, also believes (one more than the tokens that the node takes to be set aside for it; 0 = this
--          process has not been told of any), wishes (tokens that
--          it uses in a window), frees_until (us; 0 = this call only looks whether the store answers: it frees nothing and
--          is lent nothing; so it is after that time, when the node may live on its entitlement again)
--          Of a bucket, believes and wishes are parts and tokens of a period (silent.lua), and a last number is owes (what
--          this node has admitted on its part, and the bucket has not forgotten)

--<entitled
HEAD_BYTES = HEAD_BYTES + 21
--<bucket
HEAD_BYTES = HEAD_BYTES + 28
-->
