//! Shares, times and durations as people read them.

use jiff::Timestamp;

/// With one decimal, rounded.
pub fn percent(part: u64, whole: u64) -> String {
    let thousandths = (u128::from(part) * 2000).checked_div(u128::from(whole)).map_or(0, |twice| twice.div_ceil(2));
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

pub fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}

pub fn duration(ms: i64) -> String {
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms >= unit && ms % unit == 0 {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}
