//! Cost of the usage of a response: integer weights by model and kind of tokens, or prices in money.

use crate::limiting::integers::COST_MAX;
use crate::limiting::settlement::readings::{TEXT_MAX, UsageField, UsageReadings};

/// Units of one token, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    pub input: i64,
    /// Input read from a cache.
    pub cached: i64,
    /// Input written to a cache.
    pub cache_write: i64,
    pub output: i64,
    /// Number of tokens that cost this: 1, or a million for prices.
    pub per_tokens: i64,
}

/// Each token costs one unit.
impl Default for Weights {
    fn default() -> Weights {
        Weights { input: 1, cached: 1, cache_write: 1, output: 1, per_tokens: 1 }
    }
}

/// The weights of all models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelWeights {
    /// Name of a model, or the start of names with a `*` at its end.
    models: Vec<(String, Weights)>,
    /// Weights of other models.
    default: Weights,
}

impl Weights {
    /// Returns the units of tokens with their weights, rounded up.
    pub fn units_of<const N: usize>(&self, costs: [(i64, i64); N]) -> i64 {
        let products = costs.into_iter().map(|(tokens, weight)| i128::from(tokens) * i128::from(weight));
        let per_tokens = i128::from(self.per_tokens.max(1));
        let units = (products.sum::<i128>() + per_tokens - 1) / per_tokens;
        i64::try_from(units).unwrap_or(i64::MAX).min(COST_MAX)
    }

    /// Returns the most that so many tokens can cost.
    fn most_units_of(&self, tokens: i64) -> i64 {
        self.units_of([(tokens, self.input.max(self.cached).max(self.cache_write).max(self.output))])
    }

    /// Returns the units of the usage. A total that exceeds its parts, or that is not split into parts, costs as much
    /// as its most expensive part could.
    fn units(&self, readings: &UsageReadings) -> i64 {
        let number = |field| i64::try_from(readings.number(field)).unwrap_or(i64::MAX);
        let input = number(UsageField::Input).saturating_add(number(UsageField::MoreInput));
        let (cached, read) = (number(UsageField::CachedInput), number(UsageField::CacheRead));
        let cache_writes = number(UsageField::CacheWrite);
        let output = number(UsageField::Output).saturating_add(number(UsageField::MoreOutput));
        let parts = [input, read, cache_writes, output].into_iter().fold(0, i64::saturating_add);
        let rest = number(UsageField::Total).saturating_sub(parts).max(0);
        self.units_of([
            (input.saturating_sub(cached).max(0), self.input),
            (cached.saturating_add(read), self.cached),
            (cache_writes, self.cache_write),
            (output, self.output),
            (rest, self.input.max(self.output)),
        ])
    }
}

impl ModelWeights {
    pub fn new(models: Vec<(String, Weights)>, default: Weights) -> ModelWeights {
        ModelWeights { models, default }
    }

    /// Returns whether the weights depend on the model.
    pub fn depend_on_model(&self) -> bool {
        !self.models.is_empty()
    }

    /// Returns the weights of a model; `None` if none are listed for it. An exact name precedes the start of a name,
    /// and a longer start a shorter one.
    pub fn find(&self, model: &[u8]) -> Option<&Weights> {
        if !is_comparable(model) {
            return None;
        }
        let matches = |name: &str| match name.strip_suffix('*') {
            Some(start) => model.starts_with(start.as_bytes()),
            None => model == name.as_bytes(),
        };
        let rank = |name: &str| (!name.ends_with('*'), name.len());
        let candidates = self.models.iter().filter(|(name, _)| matches(name)).max_by_key(|(name, _)| rank(name));
        candidates.map(|(_, weights)| weights)
    }

    pub fn default_weights(&self) -> &Weights {
        &self.default
    }

    /// Returns the largest weights of all models, kind by kind.
    pub fn heaviest(&self) -> Weights {
        self.models.iter().map(|(_, weights)| weights).fold(self.default, |most, one| Weights {
            input: most.input.max(one.input),
            cached: most.cached.max(one.cached),
            cache_write: most.cache_write.max(one.cache_write),
            output: most.output.max(one.output),
            per_tokens: most.per_tokens,
        })
    }

    /// Returns the most that so many tokens can cost.
    pub fn most_units_of(&self, tokens: i64) -> i64 {
        self.heaviest().most_units_of(tokens)
    }

    /// Returns the units of the usage that was read, and whether the model had no weights of its own although others
    /// have. Without a model, or with one whose name is too long to be compared, the largest weights of all models
    /// count: what the request names proves nothing, as the server may go by the path.
    pub fn units(&self, readings: &UsageReadings) -> (i64, bool) {
        let Some(model) = readings.model().filter(|model| is_comparable(model)) else {
            return (self.heaviest().units(readings), self.depend_on_model());
        };
        let weight = self.find(model);
        (weight.unwrap_or(&self.default).units(readings), weight.is_none() && self.depend_on_model())
    }
}

/// Returns whether the name of a model is short enough to be compared with those that have weights.
pub fn is_comparable(model: &[u8]) -> bool {
    model.len() <= TEXT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(numbers: &[(UsageField, u64)], model: &str) -> UsageReadings {
        let mut readings = UsageReadings::default();
        numbers.iter().for_each(|(field, number)| readings.add_number(*field, true, *number));
        readings.set_model(model.as_bytes());
        readings
    }

    fn prices() -> ModelWeights {
        let large = Weights { input: 30, cached: 3, cache_write: 40, output: 60, per_tokens: 1 };
        let small = Weights { input: 2, cached: 1, cache_write: 2, output: 4, per_tokens: 1 };
        let models =
            vec![("gpt-large".to_owned(), large), ("gpt-*".to_owned(), small), ("gpt-large-2*".to_owned(), large)];
        ModelWeights::new(models, Weights::default())
    }

    #[test]
    fn each_kind_of_tokens_has_its_weight() {
        use UsageField::*;
        for (numbers, model, units) in [
            (&[(Input, 100), (CachedInput, 40), (Output, 10), (Total, 110)][..], "gpt-large", 60 * 30 + 40 * 3 + 600),
            // The input of Anthropic excludes what its cache holds.
            (&[(Input, 100), (CacheRead, 40), (CacheWrite, 5), (Output, 10)], "gpt-large", 3000 + 120 + 200 + 600),
            (&[(Input, 100), (Output, 10), (MoreOutput, 7), (MoreInput, 1)], "gpt-large-2026", 101 * 30 + 17 * 60),
            (&[(Input, 100), (Output, 10)], "gpt-small", 240),
            (&[(Input, 100), (Output, 10)], "claude", 110),
            // Tokens that only the total contains cost as much as the most expensive.
            (&[(Total, 100)], "gpt-large", 6000),
            (&[(Input, 60), (Output, 10), (Total, 100)], "gpt-large", 1800 + 600 + 1800),
            (&[(Input, 10), (CachedInput, 500)], "gpt-large", 1500),
            (&[(Input, 1 << 53), (Output, 1 << 53), (Total, 1 << 53), (MoreInput, 1 << 53)], "gpt-large", COST_MAX),
            (&[], "gpt-large", 0),
        ] {
            assert_eq!(prices().units(&readings(numbers, model)).0, units, "{numbers:?} {model}");
        }
    }

    /// A server that leaves the model out, or a client that finds such an endpoint, must not get a lower price.
    #[test]
    fn usage_without_a_model_has_the_largest_weights() {
        let mut readings = UsageReadings::default();
        readings.add_number(UsageField::Input, true, 10);
        readings.add_number(UsageField::Output, true, 10);
        assert_eq!(prices().units(&readings), (10 * 30 + 10 * 60, true));
        assert_eq!(ModelWeights::default().units(&readings), (20, false));
        readings.set_model(format!("gpt-large-{}", "x".repeat(TEXT_MAX)).as_bytes());
        assert_eq!(prices().units(&readings), (10 * 30 + 10 * 60, true));
    }

    /// Micro-dollars for each million tokens: $0.15 and $0.60.
    #[test]
    fn prices_are_exact_and_rounded_up_once() {
        use UsageField::*;
        let price =
            Weights { input: 150_000, cached: 75_000, cache_write: 150_000, output: 600_000, per_tokens: 1_000_000 };
        let prices = ModelWeights::new(vec![("mini".to_owned(), price)], price);
        for (numbers, units) in [
            (&[(Input, 1_000_000), (Output, 1_000_000)][..], 750_000),
            (&[(Input, 1)], 1),
            (&[(Input, 3), (Output, 1)], 2),
            (&[(Input, 1000), (CachedInput, 400), (Output, 10)], 90 + 30 + 6),
            (&[(Input, 1 << 53), (Output, 1 << 53)], COST_MAX),
            (&[], 0),
        ] {
            assert_eq!(prices.units(&readings(numbers, "mini")).0, units, "{numbers:?}");
        }
        assert_eq!([prices.most_units_of(100_000), prices.most_units_of(i64::MAX)], [60_000, COST_MAX]);
    }

    #[test]
    fn an_unknown_model_is_reported_if_others_are_known() {
        assert!(prices().units(&readings(&[], "claude")).1);
        assert!(prices().units(&UsageReadings::default()).1);
        assert!(!prices().units(&readings(&[], "gpt-x")).1);
        assert!(!ModelWeights::default().units(&readings(&[], "claude")).1);
        assert!(prices().find(format!("gpt-{}", "x".repeat(125)).as_bytes()).is_none(), "too long to be compared");
        assert_eq!(prices().heaviest(), Weights { input: 30, cached: 3, cache_write: 40, output: 60, per_tokens: 1 });
    }
}
