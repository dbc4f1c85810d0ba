//! How a response states what its request cost: in headers and trailers, in the usage that its body reports, in its
//! bytes or by its status.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::grpc::GrpcCode;
use crate::limiting::integers::{COST_MAX, units};
use crate::limiting::limit::bytes::CountedBytes;
use crate::limiting::limit::cost::StatusPrices;
use crate::limiting::limit::request_end::ResponseTail;
use crate::limiting::settlement::readings::UsageField;
use crate::limiting::settlement::scan::UsageScan;
use crate::limiting::settlement::sources::{UsageSource, UsageSources};
use crate::limiting::settlement::weights::ModelWeights;

/// Places where a response reports the true cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settle {
    pub fields: Vec<SettleField>,
    /// The usage that the body reports.
    pub usage: Option<UsageRules>,
    /// The bytes that the request costs, whatever else the response states.
    pub bytes: CountedBytes,
    /// The cost of the status.
    pub statuses: Option<Arc<StatusPrices>>,
}

/// Header or trailer of the response that states the true cost.
#[derive(Clone, Debug, PartialEq)]
pub enum SettleField {
    Header(HeaderName),
    /// A trailer. A gRPC response without messages has its trailers among the headers.
    Trailer(HeaderName),
}

/// How a limit settles by the usage that the body of a response reports.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageRules {
    pub sources: Arc<UsageSources>,
    pub weights: Arc<ModelWeights>,
    /// Bytes of content for each token, where a response does not report its usage.
    pub bytes_per_token: u64,
    /// The gateway asks servers to report the usage of streams.
    pub requests_usage: bool,
}

/// Usage in the body of a response, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum BodyUsage {
    /// There is no body, or the limit reads none.
    #[default]
    Unread,
    /// The body is being read.
    Awaited,
    /// The units of the usage that was read. Unless `is_proven`, there may have been more.
    Read { units: i64, is_proven: bool },
}

impl Settle {
    /// Returns whether the response states the cost, or has it in its body.
    pub fn has_sources(&self) -> bool {
        !self.fields.is_empty() || self.usage.is_some() || self.bytes.is_any()
    }

    /// Returns whether a response can cost more than was charged before.
    pub fn may_add(&self) -> bool {
        self.has_sources() || self.statuses.as_ref().is_some_and(|prices| prices.may_add())
    }

    /// Returns the cost that headers and trailers state, the largest of several. The outer `None` means that trailers
    /// have not arrived yet.
    pub fn stated_cost(&self, head: &HeaderMap, tail: ResponseTail) -> Option<Option<i64>> {
        let mut limit_value = None;
        for field in &self.fields {
            limit_value = limit_value.max(field.values(head, tail)?.filter_map(|line| units(line.as_bytes())).max());
        }
        Some(limit_value)
    }
}

impl SettleField {
    /// Returns the values that state the cost; `None` if the trailers have not arrived yet.
    fn values<'a>(&self, head: &'a HeaderMap, tail: ResponseTail<'a>) -> Option<impl Iterator<Item = &'a HeaderValue>> {
        let (name, fields) = match (self, tail) {
            (SettleField::Header(name), _) => (name, Some(head)),
            (SettleField::Trailer(name), _) if GrpcCode::from_headers(head).is_some() => (name, Some(head)),
            (SettleField::Trailer(_), ResponseTail::Awaited) => return None,
            (SettleField::Trailer(name), ResponseTail::Whole(trailers)) => (name, Some(trailers)),
            (SettleField::Trailer(name), ResponseTail::Cut) => (name, None),
        };
        Some(fields.into_iter().flat_map(move |fields| fields.get_all(name)))
    }
}

/// Formats the sources as in the config.
impl fmt::Display for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sources: Vec<String> = Vec::new();
        sources.extend(self.fields.iter().map(|field| match field {
            SettleField::Header(name) => format!("header:{name}"),
            SettleField::Trailer(name) => format!("trailer:{name}"),
        }));
        sources.extend(self.bytes.sources().map(str::to_owned));
        sources.extend(self.usage.iter().flat_map(|usage| usage.sources.listed()).map(ToString::to_string));
        f.write_str(&sources.join(", "))
    }
}

impl UsageRules {
    /// Returns whether the usage is that of a language model: by the dialect of its API, or as tokens have weights or
    /// prices. Other APIs state a cost as well, and their batches are ordinary requests.
    pub fn is_of_model(&self) -> bool {
        let has_dialect = self.sources.listed().iter().any(|source| matches!(source, UsageSource::Dialect(_)));
        has_dialect || self.requests_usage || *self.weights != ModelWeights::default()
    }

    /// Returns the tokens of a request with a body of at least this length. A compressed one may have more.
    pub fn input_tokens(&self, body_length: u64) -> i64 {
        i64::try_from(body_length.div_ceil(self.bytes_per_token.max(1))).unwrap_or(i64::MAX).min(COST_MAX)
    }

    /// Returns the usage that the scanner of the response has read, and whether the model has no weights of its own. If
    /// the response does not report its usage completely, it has at least the output that it delivered. Where no report
    /// contains the input, it has `input_tokens`.
    pub fn read_usage(&self, scan: Option<&UsageScan>, input_tokens: i64) -> (BodyUsage, bool) {
        let Some((scan, readings)) = scan.and_then(|scan| Some((scan, scan.readings(&self.sources)?))) else {
            return (BodyUsage::Unread, false);
        };
        // Some servers report zeros where they do not count.
        let is_proven = readings.is_proven() && !readings.denies_content();
        if !is_proven && !scan.is_over() {
            return (BodyUsage::Awaited, false);
        }
        let least_output = if is_proven { 0 } else { scan.least_tokens(readings, self.bytes_per_token) };
        // Without any output, the server may have done nothing.
        let lacks_input = !readings.has_input() && (least_output > 0 || readings.has_output());
        let (units, has_unknown_model) = if least_output > 0 || lacks_input {
            let mut raised = readings.clone();
            raised.raise(UsageField::Output, least_output);
            if lacks_input {
                raised.raise(UsageField::Input, u64::try_from(input_tokens).unwrap_or(0));
            }
            self.weights.units(&raised)
        } else {
            self.weights.units(readings)
        };
        (BodyUsage::Read { units, is_proven }, has_unknown_model && units > 0)
    }
}

impl BodyUsage {
    /// Adds the cost that headers or trailers state. The larger value counts.
    pub fn or_stated(self, stated: Option<i64>) -> BodyUsage {
        match (self, stated) {
            (_, None) => self,
            (BodyUsage::Read { units, .. }, Some(stated)) => {
                BodyUsage::Read { units: units.max(stated), is_proven: true }
            }
            (_, Some(units)) => BodyUsage::Read { units, is_proven: true },
        }
    }

    /// Returns the units to charge on top of `cost`. Unproven usage is not refunded.
    pub fn correction(self, cost: i64) -> i64 {
        match self {
            BodyUsage::Read { units, is_proven: true } => units - cost,
            BodyUsage::Read { units, is_proven: false } => (units - cost).max(0),
            BodyUsage::Unread | BodyUsage::Awaited => 0,
        }
    }
}
