//! Receipts: describe a charge, so that somebody who is no longer connected can correct it, once.
//!
//! Input: the check and the answer of a charge. Output: a token for the caller, and the correction when the caller
//! returns it. The admin API gives one token per charge (`Receipt`), listeners with `serve = "decide"` one for all
//! charges of a decision (`bundle`).
//!
//! To add a fact about a charge, add a field to [`Receipt`] and a word to its text, with a new version number.

pub(crate) mod bundle;

use std::rc::Rc;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::limiting::Limiter;
use crate::limiting::algorithm::Rule;
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, ErrorKind, Op};
use crate::limiting::integers::EXACT_MAX;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::store::once::{MarkUse, SingleUseMark};

/// One charge of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Random and unique per charge.
    pub id: u128,
    /// Time after which the charge has expired by itself, and a refund would return too much.
    pub expires_ms: i64,
    /// The charge was made in this gateway's memory while the store was unavailable.
    pub local: bool,
    pub cost: i64,
    /// The algorithm's identifier of the charge.
    pub receipt: i64,
    /// The rule that made the charge: for some algorithms no other numbers can refund it, and requests may state the
    /// rate of their key. Empty in receipts of earlier processes that needed none.
    pub encoded_rule: String,
    /// Values of the key, formatted as a field of the overrides.
    pub key_values: String,
    /// The tenant as in a state key, if the limit has `fair`; the value that was counted, if it has `distinct`. Empty
    /// otherwise.
    pub tenant: String,
    /// State key, which ends with limit and algorithm.
    pub key: String,
}

/// Maximum length of a token in bytes; a body with one has at most 64 KiB.
const TOKEN_MAX: usize = 60 * 1024;
const CHECKSUM: usize = 8;

impl Receipt {
    /// Returns the prefix of the keys in Redis. Gateways that share the charge share the mark that it was refunded.
    pub fn key_prefix(&self) -> &str {
        self.key.split_once(":{").map_or("", |(prefix, _)| prefix)
    }

    /// Returns an opaque token; `None` if it would be too long. Its checksum detects truncated and mixed up tokens. It
    /// is not a signature: a client that may send receipts may charge and reset every key anyway.
    pub fn to_token(&self) -> Option<String> {
        let text = self.to_text();
        let token = hex::encode(&Sha256::digest(&text)[..CHECKSUM]) + &hex::encode(&text);
        (token.len() <= TOKEN_MAX).then_some(token)
    }

    pub fn from_token(token: &str) -> Option<Receipt> {
        if !(2 * CHECKSUM..=TOKEN_MAX).contains(&token.len()) {
            return None;
        }
        let bytes = hex::decode(token).ok()?;
        let (sum, text) = bytes.split_at(CHECKSUM);
        if Sha256::digest(text)[..CHECKSUM] != *sum {
            return None;
        }
        Receipt::from_text(str::from_utf8(text).ok()?)
    }

    /// Makes the receipt of a charge, which expires when the charge does. `made_by`: the clock of the store that made
    /// it, and the rule that it used.
    pub fn of_charge(
        check: Check,
        answer: &Answer,
        key_values: String,
        is_local: bool,
        (now_ms, rule): (i64, &Rule),
    ) -> Receipt {
        let of_tenant = rule.for_tenant(check.tag);
        let rule = of_tenant.as_ref().unwrap_or(rule);
        Receipt {
            id: rand::random(),
            expires_ms: now_ms.saturating_add(answer.reset_ms.max(1)),
            local: is_local,
            cost: check.cost,
            receipt: answer.receipt,
            encoded_rule: rule.encode_rule(),
            key_values,
            tenant: check.tenant.map(String::from).unwrap_or_default(),
            key: check.key,
        }
    }

    fn to_text(&self) -> String {
        let Receipt { id, expires_ms, local, cost, receipt, encoded_rule, key_values, tenant, key } = self;
        let local = u8::from(*local);
        format!("5 {id:032x} {expires_ms} {local} {cost} {receipt} {encoded_rule} {key_values} {tenant} {key}")
    }

    fn from_text(text: &str) -> Option<Receipt> {
        // Receipts of version 4, which an earlier process gave, name no tenant.
        let has_tenant = text.starts_with("5 ");
        (has_tenant || text.starts_with("4 ")).then_some(())?;
        let mut words = text.splitn(if has_tenant { 10 } else { 9 }, ' ').skip(1);
        let mut word = || words.next();
        Some(Receipt {
            id: u128::from_str_radix(word()?, 16).ok()?,
            expires_ms: word()?.parse().ok()?,
            local: word()? == "1",
            cost: parse_number(word()?).filter(|cost| *cost > 0)?,
            receipt: parse_number(word()?)?,
            encoded_rule: word()?.to_owned(),
            key_values: word()?.to_owned(),
            tenant: if has_tenant { word()?.to_owned() } else { String::new() },
            key: word()?.to_owned(),
        })
    }

    /// Returns the rule that corrects the charge: that of the charge if the algorithm needs it or the request stated
    /// the rate, or else the key's present one. `None` if the limit has another algorithm now.
    pub fn correcting_rule(&self, limit: &Limit) -> Option<Arc<Rule>> {
        let algorithm = limit.rule.name();
        let of_charge = || Rule::decode_rule(algorithm, &self.encoded_rule).map(Arc::new);
        let present = || match limit.overrides.find(&self.key_values).map(|entry| entry.budget) {
            Some(OverrideBudget::Rule(rule)) => rule,
            _ => limit.rule.clone(),
        };
        let rule = match (limit.rule.corrects_by_own_rule(), &limit.key_rate) {
            (true, _) => of_charge(),
            (false, Some(_)) => Some(of_charge().unwrap_or_else(present)),
            (false, None) => Some(present()),
        };
        rule.filter(|_| self.limit_and_algorithm().is_some_and(|(_, of)| of == algorithm))
    }

    /// Uses the receipt where its charge was made. Returns whether this is its first use.
    ///
    /// # Errors
    /// The store did not respond. The second value is true if the receipt may count as used.
    pub async fn use_once(&self, limiter: &Limiter) -> Result<MarkUse, (ErrorKind, bool)> {
        let mark = SingleUseMark { id: self.id, expires_ms: self.expires_ms };
        if self.local {
            return Ok(limiter.use_mark_in_memory(mark));
        }
        let now_ms = limiter.store().read_clock().await.map_err(|kind| (kind, false))?;
        let mark_use = limiter.store().use_mark(mark, self.key_prefix(), now_ms).await;
        mark_use.map_err(|kind| (kind, kind.is_unsure()))
    }

    /// Adds `units` to the charge, or refunds them if negative. Returns how many were charged or refunded; `None` if
    /// nothing is charged any more. The usage counts what `recorded` makes of that number.
    ///
    /// # Errors
    /// The store did not respond; the correction may have happened.
    pub async fn correct_charge(
        &self,
        limiter: &Limiter,
        limit: &Limit,
        rule: Arc<Rule>,
        units: i64,
        recorded: impl FnOnce(i64) -> i64,
    ) -> Result<Option<i64>, ErrorKind> {
        let mut check = Check::new(limit, self.key.clone(), units);
        (check.tag, check.rule) = (self.receipt, rule);
        // Usage is counted by tenant, or by value.
        check.tenant = Some(self.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(Box::from);
        let answer = if self.local {
            limiter.run_in_memory(Op::Adjust, check.clone())
        } else {
            let store = limiter.store();
            store.end_leases(Op::Adjust, &self.key);
            let outcome = store.adjust(&Rc::new(vec![check.clone()])).await;
            store.end_leases(Op::Adjust, &self.key);
            Some(outcome?.answers.first().copied().ok_or(ErrorKind::Reply)?)
        };
        let changed = answer.filter(|answer| answer.admitted).map(|answer| answer.remaining);
        check.cost = recorded(changed.unwrap_or(0));
        if check.cost != 0 {
            limiter.charges().decisions.ledger.record_correction(&check);
        }
        Ok(changed)
    }

    /// Resets the key of the charge (`clear_on`). A ban of the key stays.
    ///
    /// # Errors
    /// The store did not respond; the reset may have happened.
    pub async fn clear_key(&self, limiter: &Limiter, limit: &Limit) -> Result<(), ErrorKind> {
        let check = Check { ban: None, ..Check::new(limit, self.key.clone(), 0) };
        if self.local {
            limiter.run_in_memory(Op::Reset, check);
            return Ok(());
        }
        limiter.store().reset(&Rc::new(vec![check])).await.map(|_| ())
    }

    /// Returns the parts of the key as the state key has them.
    pub fn key_parts(&self) -> impl Iterator<Item = &str> {
        let (_, rest) = self.key.split_once(":{").unwrap_or_default();
        rest.rsplit_once("}:").map_or("", |(parts, _)| parts).split(',')
    }

    /// Returns limit and algorithm.
    pub fn limit_and_algorithm(&self) -> Option<(&str, &str)> {
        let (rest, algorithm) = self.key.rsplit_once(':')?;
        Some((rest.rsplit_once(':')?.1, algorithm))
    }
}

/// Parses a number of a receipt. No charge has one that the scripts in Redis do not represent exactly.
fn parse_number(word: &str) -> Option<i64> {
    word.parse().ok().filter(|number| (-EXACT_MAX..=EXACT_MAX).contains(number))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::limiting::algorithm::sliding_log::SlidingLog;
    use crate::limiting::answer::BanAnswer;
    use crate::limiting::limit::Mode;
    use crate::limiting::limit::key_rate::{KeyRate, KeyRates};
    use crate::limiting::source::Source;

    fn receipt(id: u128, expires_ms: i64) -> Receipt {
        let key = "sg:{header:x-api-key=a,ip=::1}:daily:token_bucket".to_owned();
        let (encoded_rule, key_values) = ("1,1000,5,0,0,0".to_owned(), "a%20b,*".to_owned());
        let tenant = "header:x-tenant=t".to_owned();
        Receipt { id, expires_ms, local: id % 2 == 1, cost: 3, receipt: -7, encoded_rule, key_values, tenant, key }
    }

    #[test]
    fn a_token_is_read_whole_or_not_at_all() {
        let receipt = receipt(u128::MAX, 1_800_000_000_000);
        let token = receipt.to_token().unwrap();
        assert_eq!(Receipt::from_token(&token), Some(receipt.clone()));
        assert_eq!(receipt.limit_and_algorithm(), Some(("daily", "token_bucket")));
        for i in 0..token.len() {
            assert_eq!(Receipt::from_token(&token[..i]), None, "cut at {i}");
            let mut other = token.clone().into_bytes();
            other[i] = if other[i] == b'0' { b'1' } else { b'0' };
            assert_eq!(Receipt::from_token(str::from_utf8(&other).unwrap()), None, "changed at {i}");
        }
        let without_tenant = Receipt { tenant: String::new(), ..receipt.clone() };
        assert_eq!(Receipt::from_token(&without_tenant.to_token().unwrap()), Some(without_tenant.clone()));
        let of_version_4 = without_tenant.to_text().replacen('5', "4", 1).replace("a%20b,*  sg:", "a%20b,* sg:");
        assert_eq!(Receipt::from_text(&of_version_4), Some(without_tenant));
        for number in [i64::MAX, i64::MIN, EXACT_MAX + 1] {
            for forged in [Receipt { receipt: number, ..receipt.clone() }, Receipt { cost: number, ..receipt.clone() }]
            {
                assert_eq!(Receipt::from_token(&forged.to_token().unwrap()), None, "{forged:?}");
            }
        }
        assert_eq!(Receipt { key_values: "a".repeat(TOKEN_MAX / 2), ..receipt }.to_token(), None);
        assert_eq!(Receipt::from_token(&"\u{e9}".repeat(40)), None);
        assert_eq!(Receipt::from_token(&"+1".repeat(40)), None);
    }

    #[test]
    fn a_charge_at_a_stated_rate_is_corrected_by_that_rate() {
        let rule = |limit: i64| Rule::SlidingLog(SlidingLog { limit, window_ms: 1000, sorted_set: false });
        let source = Source::Header(http::HeaderName::from_static("x-plan"));
        let rates = KeyRates::Plans { plans: HashMap::new(), default: OverrideBudget::Blocked };
        let plain = Limit::bare("daily", rule(100), Mode::Enforce);
        let stated = Limit { key_rate: Some(Box::new(KeyRate { source, rates })), ..Limit::clone(&plain) };
        let key = "sg:{all}:daily:sliding_log".to_owned();
        let of = |encoded_rule: String| Receipt { encoded_rule, key: key.clone(), ..receipt(1, 9) };
        let corrected = |limit: &Limit, encoded: String| of(encoded).correcting_rule(limit).unwrap();
        assert_eq!(*corrected(&stated, rule(5).encode_rule()), rule(5));
        assert_eq!(*corrected(&plain, rule(5).encode_rule()), rule(100));
        // One of an earlier process names no rule.
        assert_eq!(*corrected(&stated, String::new()), rule(100));
        let ban = BanAnswer::None;
        let answer = Answer { admitted: true, remaining: 4, retry_ms: 0, reset_ms: 1000, receipt: 1, ban };
        let charged =
            Receipt::of_charge(Check::new(&plain, key.clone(), 1), &answer, String::new(), false, (0, &rule(5)));
        assert_eq!(*corrected(&stated, charged.encoded_rule), rule(5));
    }
}
