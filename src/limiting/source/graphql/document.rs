//! A GraphQL document, as far as its cost depends on it: fields, the arguments that say how many items are wanted, and
//! fragments. The library bounds tokens and depth, so that no document takes long or much memory.

use std::collections::HashMap;

use apollo_parser::Parser;
use apollo_parser::cst::{Argument, Definition, OperationDefinition, Selection as CstSelection, SelectionSet, Value};

/// Most tokens of the documents in a request, spaces and commas included.
pub const TOKENS_MAX: usize = 20_000;
/// Most nested selections, and most nested values.
const NESTED_MAX: usize = 100;
/// Most operations in a document, of which one is executed.
const OPERATIONS_MAX: usize = 50;

/// A name in a document.
pub type Name = Box<str>;

/// A parsed document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    pub operations: Vec<Operation>,
    pub fragments: HashMap<Name, Vec<Selection>>,
}

/// One operation of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    pub name: Option<Name>,
    pub selections: Vec<Selection>,
    /// Sizes in the default values of variables, by variable.
    pub defaults: HashMap<Name, Vec<(Name, Size)>>,
}

/// The selections of an operation, a field or a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Field {
        name: Name,
        /// The arguments, and the members of those that are objects.
        arguments: Vec<(Name, Size)>,
        selections: Vec<Selection>,
    },
    Fragment(Name),
    Inline(Vec<Selection>),
}

/// The value of an argument that may say how many items are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// An integer, or another number, rounded up.
    Integer(i64),
    Variable(Name),
    /// Neither a number nor a variable.
    Other,
}

impl Size {
    fn read_number(text: &str) -> Size {
        read_items(text).map_or(Size::Other, Size::Integer)
    }
}

/// Reads a number of items as servers do that accept numbers of other types: `1e6` and `"1000000"` are a million. Rounds
/// up. A number that does not fit, or infinity, is as large as one can be.
pub fn read_items(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.parse::<i64>() {
        Ok(integer) => Some(integer),
        Err(_) => text.parse::<f64>().ok().map(round_up),
    }
}

/// Rounds a number up.
pub fn round_up(number: f64) -> i64 {
    format!("{:.0}", number.ceil()).parse().unwrap_or(i64::MAX)
}

impl Document {
    /// Parses a document of at most `tokens_left` tokens, which are then fewer. Returns `None` if it is invalid or too
    /// large, or if servers could find different operations in it.
    pub fn parse(text: &str, tokens_left: &mut usize) -> Option<Document> {
        let tree = Parser::new(text).recursion_limit(NESTED_MAX).token_limit(*tokens_left).parse();
        *tokens_left = tokens_left.checked_sub(tree.token_limit().high)?;
        if tree.errors().next().is_some() {
            return None;
        }
        let mut document = Document::default();
        for definition in tree.document().definitions() {
            match definition {
                Definition::OperationDefinition(operation) => document.operations.push(Operation::read(&operation)?),
                Definition::FragmentDefinition(fragment) => {
                    let name = fragment.fragment_name()?.name()?.text().as_str().into();
                    let selections = read_selections(fragment.selection_set())?;
                    if document.fragments.insert(name, selections).is_some() {
                        return None;
                    }
                }
                // Servers execute no other definitions.
                _ => {}
            }
        }
        if !(1..=OPERATIONS_MAX).contains(&document.operations.len()) {
            return None;
        }
        let names: Vec<_> = document.operations.iter().map(|operation| &operation.name).collect();
        let is_twice = (1..names.len()).any(|at| names[..at].contains(&names[at]));
        (!is_twice).then_some(document)
    }

    /// Returns the operation that a server executes: the one with this name, or the only one.
    pub fn find_operation(&self, name: Option<&str>) -> Option<&Operation> {
        match (name, self.operations.as_slice()) {
            (None, [operation]) => Some(operation),
            (None, _) => None,
            (Some(name), operations) => operations.iter().find(|operation| operation.name.as_deref() == Some(name)),
        }
    }
}

impl Operation {
    fn read(operation: &OperationDefinition) -> Option<Operation> {
        let mut defaults = HashMap::new();
        let definitions = operation.variable_definitions();
        for definition in definitions.iter().flat_map(|definitions| definitions.variable_definitions()) {
            let name: Name = definition.variable()?.name()?.text().as_str().into();
            let mut sizes = Vec::new();
            if let Some(value) = definition.default_value().and_then(|default| default.value()) {
                add_sizes(&mut sizes, "", &value);
            }
            if defaults.insert(name, sizes).is_some() {
                return None;
            }
        }
        Some(Operation {
            name: operation.name().map(|name| name.text().as_str().into()),
            selections: read_selections(operation.selection_set())?,
            defaults,
        })
    }
}

/// Reads what is selected. The parser bounds how deep.
fn read_selections(set: Option<SelectionSet>) -> Option<Vec<Selection>> {
    let mut selections = Vec::new();
    for selection in set.iter().flat_map(|set| set.selections()) {
        selections.push(match selection {
            CstSelection::Field(field) => {
                let mut arguments = Vec::new();
                let list = field.arguments();
                for argument in list.iter().flat_map(|arguments| arguments.arguments()) {
                    add_argument(&mut arguments, &argument)?;
                }
                Selection::Field {
                    name: field.name()?.text().as_str().into(),
                    arguments,
                    selections: read_selections(field.selection_set())?,
                }
            }
            CstSelection::FragmentSpread(spread) => {
                Selection::Fragment(spread.fragment_name()?.name()?.text().as_str().into())
            }
            CstSelection::InlineFragment(inline) => Selection::Inline(read_selections(inline.selection_set())?),
        });
    }
    Some(selections)
}

fn add_argument(arguments: &mut Vec<(Name, Size)>, argument: &Argument) -> Option<()> {
    add_sizes(arguments, argument.name()?.text().as_str(), &argument.value()?);
    Some(())
}

/// Adds a value, the elements of a list and the members of an object, each under its name. An object and an empty list are
/// [`Size::Other`].
fn add_sizes(sizes: &mut Vec<(Name, Size)>, name: &str, value: &Value) {
    let size = match value {
        Value::IntValue(value) => {
            Size::read_number(value.int_token().map(|token| token.text().to_owned()).as_deref().unwrap_or(""))
        }
        Value::FloatValue(value) => {
            Size::read_number(value.float_token().map(|token| token.text().to_owned()).as_deref().unwrap_or(""))
        }
        Value::StringValue(value) => Size::read_number(&String::from(value)),
        Value::Variable(variable) => match variable.name() {
            Some(name) => Size::Variable(name.text().as_str().into()),
            None => Size::Other,
        },
        Value::ObjectValue(object) => {
            for field in object.object_fields() {
                if let (Some(name), Some(value)) = (field.name(), field.value()) {
                    add_sizes(sizes, name.text().as_str(), &value);
                }
            }
            Size::Other
        }
        Value::ListValue(list) if list.values().next().is_some() => {
            list.values().for_each(|value| add_sizes(sizes, name, &value));
            return;
        }
        _ => Size::Other,
    };
    sizes.push((name.into(), size));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<Document> {
        Document::parse(text, &mut { TOKENS_MAX })
    }

    #[test]
    fn fields_and_sizes_are_read() {
        let text = "query Q($n: Int = 5, $p: Page = { first: 7 }) { a: users(first: $n, where: { limit: 3 }) { id ...F ... on X { y } } } fragment F on U { z }";
        let document = parse(text).unwrap();
        let operation = document.find_operation(None).unwrap();
        assert_eq!(operation.name.as_deref(), Some("Q"));
        assert_eq!(operation.defaults["n"], [("".into(), Size::Integer(5))]);
        assert_eq!(operation.defaults["p"], [("first".into(), Size::Integer(7)), ("".into(), Size::Other)]);
        let Selection::Field { name, arguments, selections } = &operation.selections[0] else { panic!() };
        assert_eq!(&**name, "users", "an alias is not the field");
        let expected = [
            ("first".into(), Size::Variable("n".into())),
            ("limit".into(), Size::Integer(3)),
            ("where".into(), Size::Other),
        ];
        assert_eq!(arguments[..], expected);
        assert_eq!(selections.len(), 3);
        assert!(document.find_operation(Some("R")).is_none() && document.fragments.contains_key("F"));
    }

    #[test]
    fn documents_that_servers_read_differently_are_refused() {
        let deep = format!("{}a{}", "{a".repeat(NESTED_MAX + 1), "}".repeat(NESTED_MAX + 1));
        let nested = format!("{{a(x: {}{})}}", "[".repeat(20_000), "]".repeat(20_000));
        let wide = format!("{{{}}}", "a ".repeat(TOKENS_MAX));
        let many: String = (0..=OPERATIONS_MAX).map(|number| format!("query q{number} {{ a }} ")).collect();
        for text in [
            "",
            "{",
            "{ a",
            "{ a } }",
            "query Q { a } query Q { b }",
            "{ a } { b }",
            "{ ...F } fragment F on X { a } fragment F on X { b }",
            "query ($n: Int, $n: Int) { a }",
            "fragment F on X { a }",
            "type X { a: Int }",
            "{ a(first: ) }",
            &deep,
            &nested,
            &wide,
            &many,
        ] {
            assert!(parse(text).is_none(), "{text:.60}");
        }
        assert!(parse("query Q { a } query R { b }").unwrap().find_operation(None).is_none());
        assert_eq!(parse("{ a(first: 99999999999999999999) }").map(|document| document.operations.len()), Some(1));
    }

    proptest! {
        /// No document makes the parser fail in another way than with an error.
        #[test]
        fn no_document_breaks_the_parser(text in "([{}()$:!.,@\"\\[\\]=#a-c0-9 -]|on |query |fragment |type |\\.\\.\\.|\"\"\"|\\PC){0,60}") {
            let _ = parse(&text);
        }
    }
}
