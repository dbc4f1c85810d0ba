//! Text for the numbers of rules, as messages and the replay show them.

/// Formats a duration in the largest unit that divides it: `90 s`, `2 min`.
pub fn format_duration(ms: i64) -> String {
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms >= unit && ms % unit == 0 {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}
