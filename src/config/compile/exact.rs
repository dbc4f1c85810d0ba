//! Integers that stay exact in the arithmetic of the algorithms. Used by `rule` and its parts.

/// Operands of a division stay below this: up to here the quotient of two doubles, rounded down
/// or up, is that of the integers.
pub const EXACT: i64 = 1 << 52;

/// The greatest common divisor.
pub fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
