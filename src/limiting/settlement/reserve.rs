//! The reservation of a request whose cost only its response reports: an estimate from the length of its body and from
//! the output that it announces.

use std::fmt;
use std::sync::Arc;

use crate::limiting::integers::{NotInteger, ValueError, units};
use crate::limiting::settlement::api::{LlmApi, only_counts_tokens};
use crate::limiting::settlement::weights::{ModelWeights, Weights, is_comparable};
use crate::limiting::source::{BodyFacts, Facts, JsonPointer, Repeated, Source, has_content_coding};

/// How the cost of a request is estimated. All numbers but the result are tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    pub base: i64,
    /// Bytes of the request body for each token of the input.
    pub bytes_per_token: i64,
    /// Places where the body announces the largest output. If it does so several times, the largest counts.
    pub add: Vec<Source>,
    /// Output of a request that announces none.
    pub default_add: i64,
    /// Largest estimate.
    pub at_most: i64,
    pub weights: Arc<ModelWeights>,
}

/// The estimate for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    /// Tokens of the input; `None` if the length of the body is unknown or that of an encoded body.
    pub input: Option<i64>,
    /// Tokens of the output that the request announces; `None` if it announces none.
    pub announced: Option<i64>,
    /// Tokens after `at_most`.
    pub charged_input: i64,
    pub charged_output: i64,
    /// Tokens of the input if the response does not report them.
    pub input_floor: i64,
    pub weights: Weights,
    pub units: i64,
}

impl Reserve {
    pub const BASE: i64 = 0;
    pub const BYTES_PER_TOKEN: i64 = 4;
    pub const DEFAULT_ADD: i64 = 1000;
    pub const AT_MOST: i64 = 100_000;

    /// Returns whether the estimate depends on the content of the body, and not just on its length.
    pub fn reads_body(&self) -> bool {
        !self.add.is_empty() || self.weights.depend_on_model()
    }

    /// Returns the largest estimate in units.
    pub fn max_units(&self) -> i64 {
        self.weights.most_units_of(self.at_most)
    }

    /// Returns the least units of a request that announces no output, for a model without weights of its own.
    pub fn least_units_unannounced(&self) -> i64 {
        let output = self.default_add.min(self.at_most);
        let input = self.base.min(self.at_most - output);
        let weights = self.weights.default_weights();
        weights.units_of([(input, weights.input), (output, weights.output)])
    }

    /// Estimates the cost of a request.
    ///
    /// # Errors
    /// The request announces its output ambiguously or not as an integer.
    pub fn estimate(
        &self,
        facts: &Facts,
        repeated: Repeated,
        not_integer: NotInteger,
    ) -> Result<CostEstimate, ValueError> {
        let weights = self.weights_for(facts);
        if only_counts_tokens(facts.server_path) {
            // If the server generates something all the same, the response is charged by what it delivers.
            let (input, announced) = (Some(0), Some(0));
            let (charged_input, charged_output, input_floor) = (0, 0, 0);
            return Ok(CostEstimate {
                input,
                announced,
                charged_input,
                charged_output,
                input_floor,
                weights,
                units: 0,
            });
        }
        let api = LlmApi::find(facts.server_path);
        let mut announced = None;
        for source in self.add.iter().filter(|source| api.is_none_or(|api| api.may_announce(source))) {
            let Some(stated) = facts.text(source, repeated)? else { continue };
            announced = announced.max(not_integer.apply_to(units(&stated))?);
        }
        if api.is_none() && LlmApi::is_mixture(&self.add) {
            // The server may ignore the member that announces little.
            announced = announced.map(|tokens| tokens.max(self.default_add));
        }
        let omits_usage = api.is_some_and(|api| api.may_omit_usage(facts.server_query, facts.headers));
        announced = announced.filter(|_| !omits_usage);
        let hides_output = omits_usage || hides_output(facts);
        let default_add = if hides_output { self.default_add.max(self.at_most) } else { self.default_add };
        // The length of a compressed body says nothing about its tokens.
        let plain_length = facts.body_length.filter(|length| *length == 0 || !has_content_coding(facts.headers));
        let length = plain_length.map(|length| i64::try_from(length).unwrap_or(i64::MAX));
        let input = length.map(|length| {
            let tokens = length / self.bytes_per_token + i64::from(length % self.bytes_per_token > 0);
            self.base.saturating_add(tokens)
        });
        // The output is more expensive, so the bound cuts the input first. A body of unknown length costs the most.
        let charged_output = announced.unwrap_or(default_add).min(self.at_most);
        let charged_input = input.unwrap_or(i64::MAX).min(self.at_most - charged_output);
        let units = weights.units_of([(charged_input, weights.input), (charged_output, weights.output)]);
        let input_floor =
            input.unwrap_or_else(|| self.at_most - announced.unwrap_or(self.default_add).min(self.at_most));
        let input_floor = input_floor.min(self.at_most);
        Ok(CostEstimate { input, announced, charged_input, charged_output, input_floor, weights, units })
    }

    /// Returns the weights of the model that the request names. If it cannot be read, the largest of all models count,
    /// or a client could hide an expensive model.
    fn weights_for(&self, facts: &Facts) -> Weights {
        if !self.weights.depend_on_model() {
            return *self.weights.default_weights();
        }
        let BodyFacts::Json(body) = facts.body else { return self.weights.heaviest() };
        match JsonPointer::member("model").find(body, Repeated::Refuse) {
            Ok(Some(model)) if is_comparable(&model) => {
                *self.weights.find(&model).unwrap_or(self.weights.default_weights())
            }
            Ok(_) | Err(_) => self.weights.heaviest(),
        }
    }
}

/// Returns whether the output of a request that announces none may be the largest one:
///
/// - Its body cannot be read, but it goes to an API that generates text. Servers are lenient: they read bodies of another
///   content type or charset, or with `NaN`. The client must gain nothing by that.
/// - The request asks for a response in the background, so that no response to this request reports what it costs.
fn hides_output(facts: &Facts) -> bool {
    match facts.body {
        BodyFacts::None => false,
        BodyFacts::Form(_) | BodyFacts::UnreadableBody(_) => LlmApi::find(facts.server_path).is_some(),
        BodyFacts::Json(body) => is_in_background(facts.server_path, body),
    }
}

/// Returns whether a request may be completed in the background. A member that is ambiguous may have any value.
fn is_in_background(path: &str, body: &[u8]) -> bool {
    let may_be_true = |member: &str| match JsonPointer::member(member).find(body, Repeated::Refuse) {
        Ok(value) => value.is_some_and(|value| *value != *b"false"),
        Err(_) => true,
    };
    LlmApi::find(path).is_some_and(|api| api.may_be_in_background(may_be_true))
}

/// Formats the arithmetic: `10 input x 30 + 300 output x 60`, with what the bounds and the defaults did. Prices are
/// those of a million tokens.
impl fmt::Display for CostEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CostEstimate { charged_input, charged_output, weights, .. } = self;
        write!(f, "{charged_input} input x {} + {charged_output} output x {}", weights.input, weights.output)?;
        if weights.per_tokens > 1 {
            write!(f, ", per {} tokens", weights.per_tokens)?;
        }
        if self.announced.is_none() {
            f.write_str(", none announced")?;
        }
        match self.input {
            None => f.write_str(", length unknown"),
            Some(input) if input.saturating_add(self.announced.unwrap_or(0)) > charged_input + charged_output => {
                f.write_str(", cut by at_most")
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_ENCODING;
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::limiting::integers::COST_MAX;
    use crate::limiting::source::SourceKind;

    fn reserve(at_most: i64, models: &[(&str, i64, i64)]) -> Reserve {
        let add = ["json:/max_tokens", "json:/max_completion_tokens"];
        let weights = models.iter().map(|(name, input, output)| {
            ((*name).to_owned(), Weights { input: *input, output: *output, ..Weights::default() })
        });
        Reserve {
            base: 10,
            bytes_per_token: 4,
            add: add.iter().map(|text| Source::parse(text, SourceKind::ALL).unwrap().unwrap()).collect(),
            default_add: 1000,
            at_most,
            weights: Arc::new(ModelWeights::new(weights.collect(), Weights::default())),
        }
    }

    fn estimate(reserve: &Reserve, body: &str, length: Option<u64>) -> Result<i64, ValueError> {
        let headers = HeaderMap::new();
        let body = if body.is_empty() { BodyFacts::None } else { BodyFacts::Json(body.as_bytes()) };
        let facts = Facts { body, body_length: length, ..Facts::of(&headers) };
        reserve.estimate(&facts, Repeated::Refuse, NotInteger::Refuse).map(|reservation| reservation.units)
    }

    #[test]
    fn an_estimate_adds_input_and_announced_output() {
        let plain = reserve(5000, &[]);
        for (body, length, units) in [
            (r#"{"max_tokens":300}"#, Some(41), Ok(10 + 11 + 300)),
            (r#"{"max_tokens":300,"max_completion_tokens":400}"#, Some(40), Ok(420)),
            (r#"{"max_tokens":null}"#, Some(40), Ok(1020)),
            (r#"{"max_tokens":0}"#, Some(0), Ok(10)),
            ("", Some(0), Ok(1010)),
            (r#"{"max_tokens":300}"#, Some(u64::MAX), Ok(5000)),
            (r#"{"max_tokens":300}"#, None, Ok(5000)),
            (r#"{"max_tokens":9007199254740992}"#, Some(4), Ok(5000)),
            (r#"{"max_tokens":-1}"#, Some(4), Err(ValueError::NotInteger)),
            (r#"{"max_tokens":1.5}"#, Some(4), Err(ValueError::NotInteger)),
            (r#"{"max_tokens":1,"max_tokens":9}"#, Some(4), Err(ValueError::Ambiguous)),
        ] {
            assert_eq!(estimate(&plain, body, length), units, "{body} {length:?}");
        }
        assert_eq!(plain.max_units(), 5000);
        let coded = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        for (length, units) in [(40, 5000), (0, 1010)] {
            let facts = Facts { body_length: Some(length), ..Facts::of(&coded) };
            let estimate = plain.estimate(&facts, Repeated::Refuse, NotInteger::Refuse).unwrap();
            assert_eq!(estimate.units, units, "an encoded body of {length} bytes");
        }
    }

    #[test]
    fn an_unreadable_body_does_not_hide_the_output_of_an_api() {
        use crate::limiting::source::UnreadableBody::{Malformed, TooLong, Type};

        let (plain, headers) = (reserve(5000, &[]), HeaderMap::new());
        for body in
            [Malformed, TooLong, Type].map(BodyFacts::UnreadableBody).into_iter().chain([BodyFacts::Form("a=b")])
        {
            for (path, units) in [
                ("/v1/chat/completions", 5000),
                ("/v1/responses", 5000),
                ("/v1/messages/", 5000),
                ("/api/generate", 5000),
                ("/v1/messages/count_tokens", 0),
                ("/other", 1020),
            ] {
                let facts = Facts { body, server_path: path, body_length: Some(40), ..Facts::of(&headers) };
                let estimate = plain.estimate(&facts, Repeated::Refuse, NotInteger::Refuse).unwrap();
                assert_eq!(estimate.units, units, "{path} {body:?}");
            }
        }
    }

    #[test]
    fn a_model_that_cannot_be_read_costs_as_much_as_the_most_expensive() {
        let priced = reserve(100_000, &[("large", 30, 60), ("small", 2, 5)]);
        for (body, units) in [
            (r#"{"model":"small","max_tokens":100}"#, 20 * 2 + 100 * 5),
            (r#"{"model":"large","max_tokens":100}"#, 20 * 30 + 100 * 60),
            (r#"{"model":"other","max_tokens":100}"#, 120),
            (r#"{"max_tokens":100}"#, 20 * 30 + 100 * 60),
            (r#"{"model":"small","model":"large","max_tokens":100}"#, 20 * 30 + 100 * 60),
            ("", 20 * 30 + 1000 * 60),
        ] {
            assert_eq!(estimate(&priced, body, Some(40)), Ok(units), "{body}");
        }
        assert_eq!(priced.max_units(), 6_000_000);
        assert_eq!(reserve(100_000_000, &[("large", 30, 60)]).max_units(), COST_MAX);
    }
}
