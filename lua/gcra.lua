-- GCRA. Twin of src/limiting/algorithm/gcra.rs; implemented in lua/bucket.lua.
-- rule   rate, per, burst, or those of a token bucket
-- state  used, at, rate, per, or those of a token bucket
return bucket(4)
