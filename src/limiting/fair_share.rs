//! The tenants of a limit with `fair`: which tenant a request belongs to, and with which weight. The algorithm `fair`
//! decides how they share a budget.

use std::borrow::Cow;
use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::limiting::algorithm::fair::BUCKETS;
use crate::limiting::decision::Check;
use crate::limiting::key::SourceValues;
use crate::limiting::key::state_key::{DIGEST_MARK, KeyError, StateKeyFrame, state_key_parts, write_value};
use crate::limiting::key::{Key, Missing};
use crate::limiting::overrides::table::{OverrideValue, parse_field};
use crate::limiting::source::Repeated;

/// The `fair` table of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct FairShare {
    /// The values that identify the tenant. Requests without one are a tenant of their own.
    pub key: Key,
    /// The key of the limit, and then the key of the tenant. Usage is counted by both.
    pub counted_key: Key,
    /// Weight of tenants that `weights` does not list.
    pub weight: i64,
    /// Weights of tenants, by their values as fields of overrides have them.
    pub weights: HashMap<Box<str>, i64>,
}

/// The tenant of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct TenantId {
    /// A hash of the name. The numbers below [`BUCKETS`] are not used.
    pub id: i64,
    pub weight: i64,
    /// Name and value of each part, as in a state key.
    pub name: Box<str>,
}

impl FairShare {
    /// Returns the tenant of a request.
    ///
    /// # Errors
    /// The request has several values, and `repeated` does not choose one.
    pub fn find_tenant(&self, facts: &impl SourceValues, repeated: Repeated) -> Result<TenantId, KeyError> {
        let frame = StateKeyFrame { prefix: "", limit: "", algorithm: "" };
        let is_listed = !self.weights.is_empty();
        let names = self.key.budget_names(frame, facts, Missing::Shared, repeated, is_listed)?;
        let name = state_key_parts(&names.state);
        let weight = names.values.and_then(|values| self.find_weight(&values, name));
        Ok(TenantId { id: hash_tenant(name), weight: weight.unwrap_or(self.weight), name: name.into() })
    }

    /// Finds the weight of a tenant. For a long value, the admin API may know only the digest, which is then in `name`.
    fn find_weight(&self, values: &str, name: &str) -> Option<i64> {
        match self.weights.get(values) {
            None if values.contains(DIGEST_MARK) => {
                self.listed_tenants().find(|(listed, _)| listed == name).map(|(_, weight)| weight)
            }
            weight => weight.copied(),
        }
    }

    /// Returns the name of each tenant that `weights` lists, with its weight.
    pub fn listed_tenants(&self) -> impl Iterator<Item = (String, i64)> {
        self.weights.iter().map(|(field, weight)| {
            let parts = self.key.0.iter().zip(parse_field(field.as_bytes())).map(|(part, value)| {
                let mut state = part.state_name();
                match value {
                    OverrideValue::Bytes(bytes) => write_value(&mut state, &bytes),
                    OverrideValue::Any | OverrideValue::Hash(_) => state.push('!'),
                }
                state
            });
            (parts.collect::<Vec<_>>().join(","), *weight)
        })
    }
}

/// Hashes a name to 52 bits. Two of a thousand tenants have the same hash with a probability of 10^-10.
fn hash_tenant(name: &str) -> i64 {
    const NUMBERS: i64 = (1 << 52) - BUCKETS;
    let digest = Sha256::digest(name.as_bytes());
    let number = digest[..7].iter().fold(0, |number, byte| number << 8 | i64::from(*byte));
    number % NUMBERS + BUCKETS
}

impl Check {
    /// Returns the key by which usage is counted: the state key, with the tenant among its parts if there is one.
    pub fn counted_key(&self) -> Cow<'_, str> {
        let Some(tenant) = &self.tenant else { return Cow::Borrowed(&self.key) };
        match self.key.rsplit_once('}') {
            Some((parts, frame)) => Cow::Owned(format!("{parts},{tenant}}}{frame}")),
            None => Cow::Borrowed(&self.key),
        }
    }

    /// Takes the key by which usage is counted.
    pub fn take_counted_key(&mut self) -> String {
        match self.counted_key() {
            Cow::Owned(key) => key,
            Cow::Borrowed(_) => std::mem::take(&mut self.key),
        }
    }

    /// Sets the tenant that the check is for.
    pub fn set_tenant(&mut self, tenant: TenantId) {
        if let Some(rule) = self.rule.for_weight(tenant.weight) {
            self.rule = rule.into();
        }
        (self.tag, self.tenant) = (tenant.id, Some(tenant.name));
    }

    /// Returns the check that adds `delta` to the charge with this receipt.
    pub fn correction(mut self, delta: i64, receipt: i64) -> Check {
        self.cost = delta;
        self.hold_receipt(receipt);
        self
    }

    /// Keeps the receipt of the charge instead of the tag. The rule then names the tenant.
    pub fn hold_receipt(&mut self, receipt: i64) {
        if let Some(rule) = self.rule.for_tenant(self.tag) {
            self.rule = rule.into();
        }
        self.tag = receipt;
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::limiting::key::KeyPart;
    use crate::limiting::source::{Facts, Source};

    #[test]
    fn tenants_are_distinguished_by_their_values() {
        let header = HeaderName::from_static("x-tenant");
        let key = Key(vec![KeyPart::Source(Source::Header(header.clone()))]);
        let weights = HashMap::from([("a%2Cb".into(), 3)]);
        let fair = FairShare { counted_key: key.clone(), key, weight: 1, weights };
        let find = |value: Option<&[u8]>| {
            let mut headers = HeaderMap::new();
            headers.extend(value.map(|value| (header.clone(), HeaderValue::from_bytes(value).unwrap())));
            fair.find_tenant(&Facts::of(&headers), Repeated::Refuse).unwrap()
        };
        let huge = vec![b'x'; 60_000];
        let values = [None, Some(&b""[..]), Some(b"a"), Some(b"a,b"), Some(b"!"), Some(b"\xff"), Some(&huge)];
        let tenants = values.map(find);
        for (place, tenant) in tenants.iter().enumerate() {
            assert!((BUCKETS..1 << 52).contains(&tenant.id) && tenant.name.len() < 80, "{tenant:?}");
            assert_eq!(tenant.weight, if values[place] == Some(b"a,b") { 3 } else { 1 });
            assert!(tenants[..place].iter().all(|other| other.id != tenant.id && other.name != tenant.name));
        }
        // Gateways of all versions have to find the same tenant.
        assert_eq!((tenants[2].id, &*tenants[2].name), (hash_tenant("header:x-tenant=a"), "header:x-tenant=a"));
    }
}
