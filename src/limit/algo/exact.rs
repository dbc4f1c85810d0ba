//! Up to where integers are exact in the twins, which have only doubles. What an algorithm may hold
//! at most it derives from here, as its twin does from the same number in `lua/records.lua`.

/// Operands of a division stay below this: up to here the quotient of two doubles, rounded down or
/// up, is that of the integers.
pub const EXACT: i64 = 1 << 52;

/// Division that rounds up; `a` and `b` are not negative, `b` is not 0.
pub fn div_ceil(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

/// The greatest common divisor.
pub fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::algo::SCRIPT;

    #[test]
    fn the_twins_have_the_same_bound() {
        assert!(SCRIPT.contains(&format!("\nlocal EXACT = {EXACT}\n")));
    }
}
