-- GCRA, twin of src/limit/algo/gcra.rs: see lua/bucket.lua.
-- rule   rate, per, burst
-- state  used, at, rate, per
return bucket(4)
