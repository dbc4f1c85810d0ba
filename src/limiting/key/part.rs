//! One part of a key: the source of its value, alternatives of one, or a source whose values are normalized.

use std::borrow::Cow;
use std::fmt;

use crate::limiting::key::SourceValues;
use crate::limiting::key::normalize::{Normalization, normalize};
use crate::limiting::source::{Ambiguous, Repeated, Source, SourceValue};

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// One budget for all requests.
    All,
    Source(Source),
    /// Two or more sources of the same value, such as a header and a cookie. The first that the request contains
    /// counts; further ones must have the same value.
    Alternatives(Vec<Source>),
    /// A source or alternatives whose values are normalized, so that several spellings are one value.
    Normalized(Box<NormalizedPart>),
}

/// A part whose values are normalized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalizedPart {
    /// The part without the steps; neither `All` nor `Normalized`.
    pub part: KeyPart,
    /// The steps in config order; never empty.
    pub steps: Vec<Normalization>,
}

impl NormalizedPart {
    fn normalize_value<'v>(&self, value: SourceValue<'v>) -> SourceValue<'v> {
        match value {
            SourceValue::Bytes(value) => SourceValue::Bytes(normalize(value, &self.steps)),
            other => other,
        }
    }
}

impl KeyPart {
    /// Name of [`KeyPart::All`].
    pub const ALL: &str = "all";
    /// Separator of alternatives.
    pub const OR: &str = " | ";

    pub fn sources(&self) -> &[Source] {
        match self {
            KeyPart::All => &[],
            KeyPart::Source(source) => std::slice::from_ref(source),
            KeyPart::Alternatives(sources) => sources,
            KeyPart::Normalized(normalized) => normalized.part.sources(),
        }
    }

    /// Returns the part without its normalization.
    fn unnormalized(&self) -> &KeyPart {
        if let KeyPart::Normalized(normalized) = self { &normalized.part } else { self }
    }

    /// Finds the source called `name`. The name of the whole part selects the first alternative.
    pub fn find_source(&self, name: &str) -> Option<&Source> {
        let own = self.sources().iter().find(|source| source.is_called(name));
        own.or_else(|| self.sources().first().filter(|_| self.unnormalized().to_string() == name))
    }

    /// Returns the value of the request that selects the budget, in canonical form; `None` if there is none.
    ///
    /// # Errors
    /// The request has several values, and `repeated` does not choose one.
    pub fn value<'v>(
        &self,
        facts: &'v impl SourceValues,
        repeated: Repeated,
    ) -> Result<Option<SourceValue<'v>>, Ambiguous> {
        match self {
            KeyPart::All => Ok(None),
            KeyPart::Source(source) => Ok(facts.value(source, repeated)?.map(|value| match value {
                SourceValue::Ip(ip) => SourceValue::Ip(source.network_of(ip)),
                SourceValue::Bytes(value) => SourceValue::Bytes(source.canonicalize_value(value)),
                digest @ SourceValue::Digest(_) => digest,
            })),
            KeyPart::Alternatives(sources) => {
                let mut first_value: Option<Cow<[u8]>> = None;
                for source in sources {
                    let Some(value) = facts.value(source, repeated)? else { continue };
                    let value = self.canonicalize_value(source.value_text(value));
                    match (&first_value, repeated) {
                        (Some(first), Repeated::Refuse) if *first != value => return Err(Ambiguous),
                        (Some(_), Repeated::Refuse) => {}
                        (None | Some(_), _) => first_value = Some(value),
                    }
                    if repeated == Repeated::First {
                        break;
                    }
                }
                Ok(first_value.map(SourceValue::Bytes))
            }
            KeyPart::Normalized(normalized) => {
                let value = normalized.part.value(facts, repeated)?;
                Ok(value.map(|value| normalized.normalize_value(value)))
            }
        }
    }

    /// Canonicalizes a value as each of the sources does ([`Source::canonicalize_value`]), so that all alternatives
    /// have one canonical form.
    fn canonicalize_value<'v>(&self, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        self.sources().iter().fold(value, |value, source| source.canonicalize_value(value))
    }

    /// Appends the name that the part has in state keys.
    pub fn write_name(&self, text: &mut String) {
        if *self == KeyPart::All {
            text.push_str(KeyPart::ALL);
        }
        for (place, source) in self.sources().iter().enumerate() {
            if place > 0 {
                text.push('|');
            }
            source.write_name(text);
        }
        if let KeyPart::Normalized(normalized) = self {
            // A value that is not normalized is not a value of this part, so the two have different names.
            normalized.steps.iter().for_each(|step| text.extend(["~", step.label()]));
        }
    }

    /// Returns the name that the part has in state keys.
    pub fn state_name(&self) -> String {
        let mut name = String::new();
        self.write_name(&mut name);
        name
    }

    /// Returns the value that a state key contains for the part; `written` is the text after the name.
    pub fn value_from_state(&self, written: &str) -> Option<SourceValue<'static>> {
        match (written.strip_prefix('='), written.strip_prefix('#'), self) {
            (Some(ip), _, KeyPart::Source(Source::Ip(_))) => ip.parse().ok().map(SourceValue::Ip),
            (Some(value), ..) => Some(SourceValue::Bytes(value.as_bytes().to_vec().into())),
            (_, Some(digits), _) => Some(SourceValue::Digest(digits.to_owned().into())),
            (None, None, _) => None,
        }
    }

    /// Returns the name that the part has in messages to clients.
    pub fn display_name(&self) -> String {
        match self {
            KeyPart::All => KeyPart::ALL.to_owned(),
            KeyPart::Source(source) => source.display_name(),
            KeyPart::Alternatives(sources) => sources.iter().map(Source::display_name).collect::<Vec<_>>().join(" or "),
            KeyPart::Normalized(normalized) => normalized.part.display_name(),
        }
    }

    /// Canonicalizes a value from an override or the admin API, as requests have it.
    ///
    /// # Errors
    /// The part cannot have such a value.
    pub fn canonicalize_written(&self, written: Vec<u8>) -> Result<Vec<u8>, String> {
        match self {
            KeyPart::All => Ok(written),
            KeyPart::Source(source) => read_written(source, written),
            // The value is of one of them: the first that can have it.
            KeyPart::Alternatives(sources) => {
                let of = |source: &Source| read_written(source, written.clone());
                let source_value =
                    sources.iter().find_map(|source| of(source).ok()).map_or_else(|| of(&sources[0]), Ok)?;
                Ok(self.canonicalize_value(source_value.into()).into_owned())
            }
            KeyPart::Normalized(normalized) => {
                let value = normalized.part.canonicalize_written(written)?;
                Ok(normalize(value.into(), &normalized.steps).into_owned())
            }
        }
    }
}

fn read_written(source: &Source, written: Vec<u8>) -> Result<Vec<u8>, String> {
    let value = source.parse_written(written).map_err(|fault| fault.to_string())?;
    Ok(source.value_text(value).into_owned())
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::All => f.write_str(KeyPart::ALL),
            KeyPart::Source(source) => source.fmt(f),
            KeyPart::Alternatives(sources) => {
                f.write_str(&sources.iter().map(Source::to_string).collect::<Vec<_>>().join(KeyPart::OR))
            }
            KeyPart::Normalized(normalized) => {
                let steps: Vec<&str> = normalized.steps.iter().map(|step| step.label()).collect();
                write!(f, "{} ({})", normalized.part, steps.join(", "))
            }
        }
    }
}
