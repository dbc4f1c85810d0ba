-- Token bucket, twin of src/limit/algo/token_bucket.rs: see lua/bucket.lua.
-- rule   rate, per, burst, debt, interval, empty, refunds
-- state  used, at, rate, per, lump, marks
return bucket(5)
