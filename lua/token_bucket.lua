-- Token bucket. Twin of src/limiting/algorithm/token_bucket.rs; implemented in lua/bucket.lua.
-- rule   rate, per, burst, debt, interval, empty, refunds
-- state  used, at, rate, per, lump, marks
return bucket(5)
