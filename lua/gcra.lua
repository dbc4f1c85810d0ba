-- GCRA, twin of src/limit/algo/gcra.rs: see lua/bucket.lua.
-- rule   rate, per, burst, or those of a token bucket
-- state  used, at, rate, per, or those of a token bucket
return bucket(4)
