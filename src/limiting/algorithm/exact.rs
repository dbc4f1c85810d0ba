//! The range in which integers are exact in the Lua twins, which only have doubles. Algorithms derive their bounds from
//! it; the twins use the same number in `lua/records.lua`.

/// Operands of a division stay below this number. Up to here, the quotient of two doubles, rounded down or up, equals
/// that of the integers.
pub const EXACT: i64 = 1 << 52;

/// Divides and rounds up. Neither number is negative, and `b` is not 0.
pub fn div_ceil(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

/// Returns the greatest common divisor.
pub fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::algorithm::SCRIPT;

    #[test]
    fn the_twins_have_the_same_bound() {
        assert!(SCRIPT.contains(&format!("\nlocal EXACT = {EXACT}\n")));
    }
}
