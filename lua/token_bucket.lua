-- Token bucket, twin of src/limit/algo/token_bucket.rs: see lua/bucket.lua.
-- rule   rate, per, burst, debt, interval, empty
-- state  used, at, rate, per, lump
return bucket(5)
