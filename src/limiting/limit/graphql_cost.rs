//! The estimated cost of a GraphQL query: each field has a weight, and what is selected of the items of a list counts
//! as often as the query asks for items. Estimates read nothing but the request, and no query takes long: a fragment is
//! estimated once, however often it is used.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use crate::limiting::integers::COST_MAX;
use crate::limiting::source::graphql::GraphqlRequest;
use crate::limiting::source::graphql::document::{Document, Operation, Selection, Size, read_items, round_up};
use crate::limiting::unreadable_body::UnreadableBody;

/// Most selections within each other, with those of fragments.
const NESTED_MAX: usize = 100;

/// The option `cost.graphql`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphqlPrices {
    /// Units of a field, by its name.
    pub weights: HashMap<String, i64>,
    /// Units of all other fields.
    pub default_weight: i64,
    /// Arguments that say how many items are wanted.
    pub lists: Vec<String>,
    /// Number of items if such an argument is not an integer from 1.
    pub list_size: i64,
    /// Most fields within each other.
    pub max_depth: usize,
    /// Cost of a request that names a query which the server has stored. Without it, such requests are refused.
    pub stored: Option<i64>,
}

impl GraphqlPrices {
    /// Arguments that say how many items are wanted, unless `lists` names others.
    pub const LISTS: [&str; 3] = ["first", "last", "limit"];

    /// Returns whether an argument or a member with this name says how many items are wanted.
    fn is_list(&self, name: &str) -> bool {
        self.lists.iter().any(|list| list == name)
    }

    /// Returns how many items a number stands for. `None` stands for a value of another type.
    fn items_of_number(&self, number: Option<i64>) -> i64 {
        number.filter(|items| *items >= 1).unwrap_or(self.list_size)
    }

    /// Returns how many items a value in the query stands for.
    fn items_of_size(&self, size: &Size) -> i64 {
        self.items_of_number(match size {
            Size::Integer(items) => Some(*items),
            Size::Variable(_) | Size::Other => None,
        })
    }

    /// Returns the most items that a JSON value says: by itself if `is_named`, and by members of objects in it. `None`
    /// if it says none.
    fn find_items(&self, json: &str, is_named: bool) -> Option<i64> {
        let mut reader = serde_json::Deserializer::from_str(json);
        ItemSearch { prices: self, is_named }.deserialize(&mut reader).unwrap_or(Some(self.list_size))
    }

    /// Returns the estimated cost of a request.
    ///
    /// # Errors
    /// The query uses fragments that do not exist or contain themselves, or is too deep; or only the server knows the
    /// query, and its cost is not configured.
    pub fn cost_of(&self, request: &GraphqlRequest) -> Result<i64, UnreadableBody> {
        let stored = || self.stored.ok_or(UnreadableBody::StoredQuery);
        let Some(document) = &request.document else { return stored() };
        let operation = document.find_operation(request.operation_name.as_deref()).ok_or(UnreadableBody::NotGraphql)?;
        let (fragments, variables) = (HashMap::new(), HashMap::new());
        let mut estimate = Estimate { prices: self, request, document, operation, fragments, variables };
        let total = estimate.estimate_all(&operation.selections, 0)?;
        if total.depth > self.max_depth {
            return Err(UnreadableBody::TooDeep);
        }
        // Some servers execute the stored query instead of the one in the request.
        let least = if request.names_stored { stored()? } else { 0 };
        Ok(total.units.max(least).min(COST_MAX))
    }
}

/// The cost of selections.
#[derive(Clone, Copy, Default)]
struct Estimated {
    units: i64,
    /// Fields within each other.
    depth: usize,
    /// Selections within each other.
    nested: usize,
}

/// The estimate of one request.
struct Estimate<'r> {
    prices: &'r GraphqlPrices,
    request: &'r GraphqlRequest,
    document: &'r Document,
    operation: &'r Operation,
    /// `None` while the fragment is being estimated.
    fragments: HashMap<&'r str, Option<Estimated>>,
    /// The variables that were used so far. Each is read once, because its value may be as large as the body.
    variables: HashMap<&'r str, VariableItems>,
}

/// Numbers of items that the value of a variable says.
#[derive(Clone, Copy)]
struct VariableItems {
    /// The argument says how many items are wanted.
    of_list: i64,
    /// The argument is another one. `None` if no member of the value says a number.
    of_members: Option<i64>,
}

impl<'r> Estimate<'r> {
    /// Estimates selections that are within `above` others.
    fn estimate_all(&mut self, selections: &'r [Selection], above: usize) -> Result<Estimated, UnreadableBody> {
        if above > NESTED_MAX {
            return Err(UnreadableBody::TooDeep);
        }
        let mut all = Estimated::default();
        for selection in selections {
            let one = match selection {
                Selection::Field { name, arguments, selections } => {
                    let within = self.estimate_all(selections, above + 1)?;
                    let weight = self.prices.weights.get(&**name).copied().unwrap_or(self.prices.default_weight);
                    let items = if selections.is_empty() { 1 } else { self.count_items(arguments) };
                    let units = weight.saturating_add(within.units.saturating_mul(items));
                    Estimated { units, depth: within.depth + 1, nested: within.nested + 1 }
                }
                Selection::Inline(selections) => {
                    let within = self.estimate_all(selections, above + 1)?;
                    Estimated { nested: within.nested + 1, ..within }
                }
                Selection::Fragment(name) => {
                    let within = self.estimate_fragment(name, above + 1)?;
                    Estimated { nested: within.nested + 1, ..within }
                }
            };
            if above + one.nested > NESTED_MAX {
                return Err(UnreadableBody::TooDeep);
            }
            all.units = all.units.saturating_add(one.units).min(COST_MAX);
            all.depth = all.depth.max(one.depth);
            all.nested = all.nested.max(one.nested);
        }
        Ok(all)
    }

    fn estimate_fragment(&mut self, name: &'r str, above: usize) -> Result<Estimated, UnreadableBody> {
        match self.fragments.get(name) {
            Some(Some(known)) => return Ok(*known),
            // The fragment contains itself.
            Some(None) => return Err(UnreadableBody::NotGraphql),
            None => {}
        }
        let Some(selections) = self.document.fragments.get(name) else { return Err(UnreadableBody::NotGraphql) };
        self.fragments.insert(name, None);
        let inner = self.estimate_all(selections, above)?;
        self.fragments.insert(name, Some(inner));
        Ok(inner)
    }

    /// Returns how many items a field with these arguments may have: the most that one of them says.
    fn count_items(&mut self, arguments: &'r [(Box<str>, Size)]) -> i64 {
        arguments.iter().filter_map(|(name, size)| self.items_of(name, size)).max().unwrap_or(1)
    }

    /// Returns the number of items that an argument says. `None` if it says none.
    fn items_of(&mut self, name: &str, size: &'r Size) -> Option<i64> {
        let is_list = self.prices.is_list(name);
        match size {
            Size::Variable(variable) => {
                let VariableItems { of_list, of_members } = self.read_variable(variable);
                if is_list { Some(of_list) } else { of_members }
            }
            size => is_list.then(|| self.prices.items_of_size(size)),
        }
    }

    fn read_variable(&mut self, variable: &'r str) -> VariableItems {
        if let Some(items) = self.variables.get(variable) {
            return *items;
        }
        let items = match self.request.variables.get(variable) {
            Some(value) => VariableItems {
                of_list: self.prices.find_items(value, true).unwrap_or(self.prices.list_size),
                of_members: self.prices.find_items(value, false),
            },
            None => self.read_default(variable),
        };
        self.variables.insert(variable, items);
        items
    }

    /// Reads the default value of a variable.
    fn read_default(&self, variable: &str) -> VariableItems {
        let (mut own, mut of_members) = (None, None);
        for (name, size) in self.operation.defaults.get(variable).into_iter().flatten() {
            let items = Some(self.prices.items_of_size(size));
            if name.is_empty() {
                own = own.max(items);
            } else if self.prices.is_list(name) {
                of_members = of_members.max(items);
            }
        }
        VariableItems { of_list: own.max(of_members).unwrap_or(self.prices.list_size), of_members }
    }
}

/// Searches a JSON value for numbers of items. It reads what a value in the query reads, too.
#[derive(Clone, Copy)]
struct ItemSearch<'p> {
    prices: &'p GraphqlPrices,
    /// The value is that of an argument or a member that says how many items are wanted.
    is_named: bool,
}

impl ItemSearch<'_> {
    /// Returns what a number says; `None` stands for another value.
    fn say(self, number: Option<i64>) -> Option<i64> {
        self.is_named.then(|| self.prices.items_of_number(number))
    }
}

impl<'de> DeserializeSeed<'de> for ItemSearch<'_> {
    type Value = Option<i64>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Option<i64>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSearch<'_> {
    type Value = Option<i64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<i64>, E> {
        Ok(self.say(read_items(text)))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Option<i64>, E> {
        Ok(self.say(None))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<i64>, E> {
        Ok(self.say(Some(i64::try_from(number).unwrap_or(i64::MAX))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<i64>, E> {
        Ok(self.say(Some(number)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<i64>, E> {
        Ok(self.say(Some(round_up(number))))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<i64>, E> {
        Ok(self.say(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<i64>, A::Error> {
        let (mut most, mut is_empty) = (None, true);
        while let Some(found) = items.next_element_seed(self)? {
            (most, is_empty) = (most.max(found), false);
        }
        Ok(if is_empty { self.say(None) } else { most })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Option<i64>, A::Error> {
        let mut most = self.say(None);
        while let Some(name) = members.next_key::<String>()? {
            let is_named = self.prices.is_list(&name);
            most = most.max(members.next_value_seed(ItemSearch { is_named, ..self })?);
        }
        Ok(most)
    }
}

impl fmt::Display for GraphqlPrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by GraphQL field: ")?;
        let mut weights: Vec<_> = self.weights.iter().collect();
        weights.sort();
        weights.iter().try_for_each(|(name, weight)| write!(f, "{name} {weight}, "))?;
        write!(f, "others {}", self.default_weight)?;
        self.stored.map_or(Ok(()), |stored| write!(f, "; stored queries {stored}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::*;
    use crate::limiting::source::BodyFacts;
    use crate::limiting::source::graphql::read_requests;

    fn prices() -> GraphqlPrices {
        GraphqlPrices {
            weights: HashMap::from([("search".to_owned(), 10), ("free".to_owned(), 0)]),
            default_weight: 1,
            lists: ["first", "limit"].map(str::to_owned).to_vec(),
            list_size: 50,
            max_depth: 6,
            stored: None,
        }
    }

    fn read(target: &str) -> Result<GraphqlRequest, UnreadableBody> {
        Ok(read_requests(&BodyFacts::None, Some(target))?.remove(0))
    }

    fn cost(query: &str, variables: Value) -> Result<i64, UnreadableBody> {
        let target = format!(
            "query={}&variables={}",
            percent_encoding::utf8_percent_encode(query, percent_encoding::NON_ALPHANUMERIC),
            percent_encoding::utf8_percent_encode(&variables.to_string(), percent_encoding::NON_ALPHANUMERIC)
        );
        prices().cost_of(&read(&target)?)
    }

    #[test]
    fn lists_multiply_what_is_selected_of_their_items() {
        for (query, variables, expected) in [
            ("{ a }", json!({}), 1),
            ("{ a { b c { d } } }", json!({}), 4),
            ("{ search { id } free }", json!({}), 11),
            ("{ users(first: 10) { id name } }", json!({}), 21),
            ("{ users(first: 10) { posts(limit: 5) { id } } }", json!({}), 1 + 10 * (1 + 5)),
            ("{ users(first: 10) }", json!({}), 1),
            // Aliases are fields of their own.
            ("{ a: search b: search c: search { id } }", json!({}), 31),
            ("{ users(first: 0) { id } }", json!({}), 51),
            ("{ users(first: -1) { id } }", json!({}), 51),
            ("{ users(first: null) { id } }", json!({}), 51),
            ("{ users(first: 2, limit: 7) { id } }", json!({}), 8),
            ("{ users(page: { first: 9 }) { id } }", json!({}), 10),
            // A number costs the same in the query, in a variable and as its default, in all spellings.
            ("{ users(first: 8.0) { id } }", json!({}), 9),
            ("{ users(first: 1e1) { id } }", json!({}), 11),
            ("{ users(first: \"8\") { id } }", json!({}), 9),
            ("{ users(first: \"\\u0038\") { id } }", json!({}), 9),
            ("{ users(page: { first: 7.5 }) { id } }", json!({}), 9),
            ("{ users(first: FEW) { id } }", json!({}), 51),
            ("query($n: Float = 1e1) { users(first: $n) { id } }", json!({}), 11),
            ("query($n: String = \"8\") { users(first: $n) { id } }", json!({}), 9),
            ("query($n: Float) { users(first: $n) { id } }", json!({ "n": 1e1 }), 11),
            ("query($n: Int) { users(first: $n) { id } }", json!({ "n": 8 }), 9),
            ("query($n: Int) { users(first: $n) { id } }", json!({ "n": "8" }), 9),
            ("query($n: Int) { users(first: $n) { id } }", json!({ "n": 7.5 }), 9),
            ("query($n: Int) { users(first: $n) { id } }", json!({ "n": null }), 51),
            ("query($n: Int) { users(first: $n) { id } }", json!({}), 51),
            ("query($n: Int = 6) { users(first: $n) { id } }", json!({}), 7),
            ("query($n: Int = 6) { users(first: $n) { id } }", json!({ "n": 8 }), 9),
            ("query($p: P) { users(page: $p) { id } }", json!({ "p": { "x": [{ "first": 4 }, { "first": 12 }] } }), 13),
            ("query($p: P = { first: 3 }) { users(page: $p) { id } }", json!({}), 4),
            ("query($p: P) { users(page: $p) { id } }", json!({ "p": "first" }), 2),
            ("{ ...F ...F ... on X { a } } fragment F on X { search }", json!({}), 21),
            ("query A { a }", json!({}), 1),
            ("{ a(first: 99999999999999999999) { a(first: 1000000) { a } } }", json!({}), COST_MAX),
            ("{ a @skip(if: true) }", json!({}), 1),
        ] {
            assert_eq!(cost(query, variables), Ok(expected), "{query}");
        }
    }

    /// Servers accept input objects and lists as arguments.
    #[test]
    fn a_value_says_the_same_in_the_query_in_a_variable_and_as_its_default() {
        for (value, json, items) in [
            ("[40]", json!([40]), 40),
            ("[]", json!([]), 50),
            ("[1, null]", json!([1, null]), 50),
            ("[[60], [7]]", json!([[60], [7]]), 60),
            ("{ first: 90 }", json!({ "first": 90 }), 90),
            ("{ first: 9 }", json!({ "first": 9 }), 50),
            ("{ count: 900000 }", json!({ "count": 900_000 }), 50),
            ("{ a: [{ limit: 70 }, { limit: null }] }", json!({ "a": [{ "limit": 70 }, { "limit": null }] }), 70),
            ("{}", json!({}), 50),
            ("true", json!(true), 50),
            ("0", json!(0), 50),
            ("12", json!(12), 12),
        ] {
            let none = json!({});
            for (query, variables) in [
                (format!("{{ users(first: {value}) {{ id }} }}"), none.clone()),
                ("query($v: V) { users(first: $v) { id } }".to_owned(), json!({ "v": json })),
                (format!("query($v: V = {value}) {{ users(first: $v) {{ id }} }}"), none),
            ] {
                assert_eq!(cost(&query, variables), Ok(1 + items), "{query} {json}");
            }
        }
        // The members of another argument.
        for (value, json, items) in [("{ limit: [] }", json!({ "limit": [] }), 50), ("{ x: 7 }", json!({ "x": 7 }), 1)]
        {
            for (query, variables) in [
                (format!("{{ users(page: {value}) {{ id }} }}"), json!({})),
                ("query($v: V) { users(page: $v) { id } }".to_owned(), json!({ "v": json })),
                (format!("query($v: V = {value}) {{ users(page: $v) {{ id }} }}"), json!({})),
            ] {
                assert_eq!(cost(&query, variables), Ok(1 + items), "{query} {json}");
            }
        }
    }

    #[test]
    fn numbers_in_texts_are_read_without_their_escapes() {
        let variables = [r#"{"n":"1\u0030"}"#, r#"{"n":" 10 "}"#, r#"{"n":1.0e1}"#, r#"{"n":10}"#];
        for variables in variables {
            let body =
                format!(r#"{{"query":"query($n: Int) {{ users(first: $n) {{ id }} }}","variables":{variables}}}"#);
            let request = read_requests(&BodyFacts::Json(body.as_bytes()), None).unwrap().remove(0);
            assert_eq!(prices().cost_of(&request), Ok(11), "{variables}");
        }
    }

    #[test]
    fn fragments_cost_no_time_and_do_not_contain_themselves() {
        // 2^80 uses of the last fragment.
        let mut text = "{ ...f0 }".to_owned();
        for number in 0..80 {
            text += &format!(" fragment f{number} on X {{ ...f{0} ...f{0} }}", number + 1);
        }
        assert_eq!(cost(&format!("{text} fragment f80 on X {{ a }}"), json!({})), Ok(COST_MAX));
        for query in [
            "{ ...F } fragment F on X { ...F }",
            "{ ...F } fragment F on X { a { ...G } } fragment G on X { ...F }",
            "{ ...F }",
        ] {
            assert_eq!(cost(query, json!({})), Err(UnreadableBody::NotGraphql), "{query}");
        }
        let chain: String =
            (0..300).map(|number| format!(" fragment f{number} on X {{ ...f{} }}", number + 1)).collect();
        let chain = format!("{{ ...f0 }}{chain} fragment f300 on X {{ a }}");
        assert_eq!(cost(&chain, json!({})), Err(UnreadableBody::TooDeep));
        // The same must be true if the ends of the chain are known first.
        let known: String = (0..300).rev().map(|number| format!("...f{number} ")).collect();
        assert_eq!(cost(&chain.replacen("...f0", &known, 1), json!({})), Err(UnreadableBody::TooDeep));
        assert_eq!(cost("{ a { a { a { a { a { a } } } } } }", json!({})), Ok(6));
        assert_eq!(cost("{ a { a { a { a { a { a { a } } } } } } }", json!({})), Err(UnreadableBody::TooDeep));
        assert_eq!(
            cost("{ a { a { a { ...F } } } } fragment F on X { a { a { a { a } } } }", json!({})),
            Err(UnreadableBody::TooDeep)
        );
    }

    #[test]
    fn a_large_variable_is_read_once_however_often_it_is_used() {
        let query = format!("query($p: P) {{ {} }}", "a(p: $p, first: $p) { b } ".repeat(600));
        let members = vec![r#"{"x":0}"#; 130_000].join(",");
        let body = format!(r#"{{"query":"{query}","variables":{{"p":[{members},{{"first":2}}]}}}}"#);
        let request = read_requests(&BodyFacts::Json(body.as_bytes()), None).unwrap().remove(0);
        let start = Instant::now();
        // The value is not an integer, so `first` says the size of the list.
        assert_eq!(prices().cost_of(&request), Ok(600 * 51));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }

    #[test]
    fn stored_queries_have_the_cost_that_the_config_states() {
        let stored = read("extensions=%7B%22persistedQuery%22%3A1%7D").unwrap();
        let both = read("id=7&query=%7Ba%7D").unwrap();
        assert_eq!([&stored, &both].map(|request| prices().cost_of(request)), [Err(UnreadableBody::StoredQuery); 2]);
        let priced = GraphqlPrices { stored: Some(30), ..prices() };
        assert_eq!([&stored, &both].map(|request| priced.cost_of(request)), [Ok(30), Ok(30)]);
        assert_eq!(priced.to_string(), "by GraphQL field: free 0, search 10, others 1; stored queries 30");
    }
}
