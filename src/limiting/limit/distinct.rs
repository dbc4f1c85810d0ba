//! The option `distinct` of a limit: it counts different values of a source, not requests. The algorithm `distinct`
//! decides which of them count.

use crate::limiting::algorithm::distinct::hash_value;
use crate::limiting::decision::Check;
use crate::limiting::key::state_key::{KeyError, StateKeyFrame, state_key_parts};
use crate::limiting::key::{Key, Missing, SourceValues};
use crate::limiting::source::Repeated;

/// The values that a limit counts.
#[derive(Clone, Debug, PartialEq)]
pub struct DistinctValues {
    /// The source of the value. All requests without it count as one value.
    pub key: Key,
    /// The key of the limit, and then the key of the value. Usage is shown by both.
    pub counted_key: Key,
}

impl DistinctValues {
    /// Sets the value that the check is for.
    ///
    /// # Errors
    /// The request has several values, and `repeated` does not choose one.
    pub fn set_value(&self, check: &mut Check, facts: &impl SourceValues, repeated: Repeated) -> Result<(), KeyError> {
        let frame = StateKeyFrame { prefix: "", limit: "", algorithm: "" };
        let names = self.key.budget_names(frame, facts, Missing::Shared, repeated, false)?;
        let name = state_key_parts(&names.state);
        (check.tag, check.tenant) = (hash_value(&check.key, name), Some(name.into()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::limiting::algorithm::distinct::VALUES;
    use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
    use crate::limiting::algorithm::{Rule, SPECS};
    use crate::limiting::key::KeyPart;
    use crate::limiting::limit::{Limit, Mode};
    use crate::limiting::source::{Facts, Source};

    fn rule() -> Rule {
        let spec = SPECS.iter().find(|spec| spec.name == "sliding_log").unwrap();
        let rate = ParamValue::Rate(Rate { count: 2, per_ms: 1000 });
        let values = spec.params().map(|param| (param.name, (param.name == "rate").then(|| rate.clone()))).collect();
        (spec.build)(&OptionValues::new(values, false)).unwrap().counting_distinct().unwrap()
    }

    #[test]
    fn values_are_distinguished_and_none_is_one() {
        let header = HeaderName::from_static("x-device");
        let key = Key(vec![KeyPart::Source(Source::Header(header.clone()))]);
        let distinct = DistinctValues { counted_key: key.clone(), key };
        let limit = Limit::bare("l", rule(), Mode::Enforce);
        let find = |state_key: &str, value: Option<&[u8]>| {
            let mut headers = HeaderMap::new();
            headers.extend(value.map(|value| (header.clone(), HeaderValue::from_bytes(value).unwrap())));
            let mut check = Check::new(&limit, state_key.to_owned(), 1);
            distinct.set_value(&mut check, &Facts::of(&headers), Repeated::Refuse).unwrap();
            check.tag
        };
        let huge = vec![b'x'; 60_000];
        let values = [None, Some(&b""[..]), Some(b"a"), Some(b"a,b"), Some(b"!"), Some(b"\xff"), Some(&huge)];
        let tags = values.map(|value| find("sg:{ip=1}:l:distinct", value));
        for (place, tag) in tags.iter().enumerate() {
            assert!(VALUES.contains(tag) && !tags[..place].contains(tag), "{tags:?}");
            // Values that collide for one key do not collide for another.
            assert!(*tag != find("sg:{ip=2}:l:distinct", values[place]));
        }
        assert_eq!(tags[0], find("sg:{ip=1}:l:distinct", None));
    }
}
