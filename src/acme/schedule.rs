//! When certificates are renewed, and how long to pause after a failure. Pure: time and randomness are arguments.

use std::time::Duration;

use crate::tls::CertificateValidity;

/// Longest pause between two attempts, unless the first is longer.
const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// Certificates with a shorter life are renewed earlier, so that some days are left to remove the cause of a failure.
const SHORT_LIFE_S: i64 = 10 * 86_400;

/// A certificate is not replaced sooner, whatever the ACME server suggests: one that suggests it for each new
/// certificate would cause an order after another.
const SOONEST_S: i64 = 86_400;

/// Returns when a certificate is due, in seconds of Unix time: after about two thirds of its life, or half of a short
/// one. `chance` (0 to 1) is fixed per certificate, so that all gateways agree and not all certificates of a CA are due
/// at once.
pub fn renewal_s(term: &CertificateValidity, chance: f64) -> i64 {
    let life_s = term.not_after_s.saturating_sub(term.not_before_s).max(0);
    let early_s = life_s / 30 * i64::from(per_mille(chance)) / 1000;
    let used_s = if life_s < SHORT_LIFE_S { life_s / 2 } else { life_s / 3 * 2 };
    (term.not_before_s + used_s).saturating_sub(early_s)
}

/// Returns when the ACME server wants a certificate to be renewed: a time within the suggested window (RFC 9773) that
/// `chance` chooses. It is at least a day, or a tenth of a short life, after the start of the certificate, and a tenth
/// of its life before the end. `None` if the window is not valid.
pub fn suggested_s(term: &CertificateValidity, (start_s, end_s): (i64, i64), chance: f64) -> Option<i64> {
    let life_s = term.not_after_s.saturating_sub(term.not_before_s).max(0);
    let earliest = term.not_before_s.saturating_add(SOONEST_S.min(life_s / 10));
    let latest = term.not_after_s.saturating_sub(life_s / 10);
    let window_s = end_s.checked_sub(start_s).filter(|window_s| *window_s > 0)?;
    let within_s = start_s.saturating_add(window_s / 1000 * i64::from(per_mille(chance)));
    (earliest <= latest).then(|| within_s.clamp(earliest, latest))
}

/// Returns the pause after `failures` failures in a row (at least 1): `first`, doubled each time. `chance` varies it
/// by up to a fifth.
pub fn pause_after(failures: u32, first: Duration, chance: f64) -> Duration {
    let pause = first.saturating_mul(1 << failures.saturating_sub(1).min(20));
    pause.min(LONGEST.max(first)).mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}

fn per_mille(chance: f64) -> u16 {
    (0..1000).take_while(|per_mille| f64::from(*per_mille) < chance * 1000.0).count().try_into().unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_or_a_little_earlier() {
        let day_s = 86_400;
        let term = CertificateValidity { name: String::new(), not_before_s: 0, not_after_s: 90 * day_s };
        assert_eq!(renewal_s(&term, 0.0), 60 * day_s);
        assert_eq!(renewal_s(&term, 1.0), 57 * day_s);
        for chance in [0.0, 0.3, 0.5, 0.999] {
            assert!((57 * day_s..=60 * day_s).contains(&renewal_s(&term, chance)), "{chance}");
        }
        let term = CertificateValidity { not_after_s: 6 * day_s, ..term };
        assert_eq!(renewal_s(&term, 0.0), 3 * day_s);
        // An invalid certificate is due at once.
        let term = CertificateValidity { name: String::new(), not_before_s: 50, not_after_s: 10 };
        assert_eq!(renewal_s(&term, 1.0), 50);
    }

    #[test]
    fn a_suggested_window_is_followed_within_bounds() {
        let day_s = 86_400;
        let term = CertificateValidity { name: String::new(), not_before_s: 0, not_after_s: 90 * day_s };
        let suggested = |from, to, chance| suggested_s(&term, (from * day_s, to * day_s), chance).map(|at| at / day_s);
        for (from, to, chance, at) in [
            (30, 40, 0.0, Some(30)),
            (30, 40, 0.5, Some(35)),
            (30, 40, 1.0, Some(40)),
            (-20, -10, 0.5, Some(1)),
            (80, 100, 0.5, Some(81)),
            (1000, 2000, 0.5, Some(81)),
            (40, 30, 0.5, None),
            (40, 40, 0.5, None),
        ] {
            assert_eq!(suggested(from, to, chance), at, "{from} to {to}");
        }
        assert_eq!(suggested_s(&term, (i64::MIN, i64::MAX), 0.5), None);
        assert_eq!(suggested_s(&term, (i64::MAX - 1, i64::MAX), 1.0), Some(81 * day_s));
        let short = CertificateValidity { not_after_s: 6 * day_s, ..term.clone() };
        assert_eq!(suggested_s(&short, (-20, -10), 0.5), Some(6 * day_s / 10));
        let inverted = CertificateValidity { not_before_s: 50, not_after_s: 10, ..term };
        assert_eq!(suggested_s(&inverted, (0, 100), 0.5), None);
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        let first = Duration::from_secs(300);
        let minutes = |failures| pause_after(failures, first, 0.5).as_secs() / 60;
        assert_eq!([1, 2, 3, 4, 7, 8, 100, u32::MAX].map(minutes), [5, 10, 20, 40, 320, 360, 360, 360]);
        assert_eq!(pause_after(1, first, 0.0), Duration::from_secs(240));
        assert_eq!(pause_after(1, first, 1.0), Duration::from_secs(360));
        let day = Duration::from_secs(86_400);
        assert_eq!(pause_after(9, day, 0.5), day);
    }
}
