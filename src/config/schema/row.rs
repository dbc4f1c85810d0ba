//! A row of the table of options: everything that the program and its documents say about one option.
//!
//! A section file declares its rows with `rows!`, each as a constant with the type that `compile` reads it as. All
//! other readers go over the rows of [`Schema`]s: the JSON Schema, the manual and `sluicegate help`, remedies, the
//! effective config, anonymized configs, and the diff with its marks.

use std::marker::PhantomData;
use std::ops::Deref;

use crate::config::schema::Schema;
use crate::config::schema::value_type::{self, ValueType};
use crate::ends::End;

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct ConfigOption {
    pub name: &'static str,
    written_type: ValueType,
    /// Markdown for the type in the manual, if the type itself says too little.
    pub type_text: &'static str,
    pub default: DefaultValue,
    /// Markdown after the default, such as the cases in which it does not apply.
    pub default_note: &'static str,
    /// Description of the option for its reference page, in Markdown.
    pub meaning: &'static str,
    /// Link to the part of the manual that explains it, relative to `docs/reference/`; empty if there is none.
    pub guide: &'static str,
    pub live_change: LiveChange,
    /// The metric that shows its effect; empty if there is none.
    pub metric: &'static str,
    /// The end of requests that the option refuses. If several ends have the same label, it is one of them.
    pub end: Option<End>,
    /// The remedy for a value of a wrong type; empty if the type says enough.
    pub example: &'static str,
    /// A value that somebody might choose, as TOML; empty if the option is seldom changed.
    pub sample: &'static str,
    /// The readers who change the option, and their reason, in Markdown without the period at the end; has a sample
    /// with it.
    pub change_when: &'static str,
    /// Names of the option in other programs: nginx, HAProxy, Caddy, Traefik, Envoy, Kong.
    pub aliases: &'static [&'static str],
    pub secrecy: Secrecy,
    pub clients: ClientData,
    pub weaker: Weaker,
    /// The amount for which a missing value counts when changes are compared, if the default does not give it: a
    /// number, or `inf`.
    pub unset: &'static str,
    /// Other sections have the option too, and inherit this value if they do not set theirs.
    pub is_inherited: bool,
    /// The order of its items has no meaning.
    pub is_unordered: bool,
    /// The option of its table that a value without a table is; empty if there is none.
    pub shorthand: &'static str,
    /// Texts with a meaning of their own, beside the words of its type.
    pub keywords: &'static [&'static str],
}

/// Meaning of a missing option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// The table needs the option.
    Required,
    /// Nothing.
    Absent,
    /// The option has this value, which is valid TOML and JSON.
    Value(&'static str),
    /// A value that depends on others, in Markdown.
    Described(&'static str),
}

/// Effect of a changed value on the running gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveChange {
    NextRequest,
    NewConnections,
    NextStart,
}

/// The readers that may see the value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Everybody who may see the effective config.
    Public,
    /// Nobody.
    Secret,
    /// Nobody, if the key within its table sounds like that of a secret; else everybody.
    SecretByKey,
    /// Everybody sees the URL, but without its query.
    SecretQuery,
    /// Those who may change the config, because the value is the body of a response that perhaps only some clients may
    /// read.
    Body,
}

/// The parts of an option that are about single clients, which no anonymized config shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientData {
    None,
    /// Its values, also those of tables within it, are values of clients or of their requests: a number is an
    /// identifier, and no word has a meaning.
    Values,
    /// The keys of its table are.
    Keys,
}

/// The changes of an option that weaken protection: more requests pass, more clients are trusted, or more is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weaker {
    /// None.
    Never,
    /// A change to more: a larger number, from `false` to `true`, to a later word of its type. A missing bound is
    /// infinite.
    More,
    /// A change to less.
    Less,
    /// A change to a later one of these values.
    Later(&'static [&'static str]),
    /// A further item in the list.
    NewItem,
    Removed,
    Added,
    /// Any change that weakens a compiled route or limit; `reload::diff::weaker` compares these.
    Compiled,
}

/// Declares an option that applies to the next request.
pub(super) const fn option(
    name: &'static str,
    written_type: ValueType,
    default: DefaultValue,
    meaning: &'static str,
) -> ConfigOption {
    ConfigOption {
        name,
        written_type,
        type_text: "",
        default,
        default_note: "",
        meaning,
        guide: "",
        live_change: LiveChange::NextRequest,
        metric: "",
        end: None,
        example: "",
        sample: "",
        change_when: "",
        aliases: &[],
        secrecy: Secrecy::Public,
        clients: ClientData::None,
        weaker: Weaker::Never,
        unset: "",
        is_inherited: false,
        is_unordered: false,
        shorthand: "",
        keywords: &[],
    }
}

impl ConfigOption {
    /// Returns the type, which algorithms declare for their own options.
    pub fn value_type(&self) -> ValueType {
        match self.written_type {
            ValueType::OfAlgorithm => value_type::type_of_param(self.name),
            other => other,
        }
    }

    /// Returns whether only some algorithms have the option.
    pub fn is_of_algorithm(&self) -> bool {
        matches!(self.written_type, ValueType::OfAlgorithm)
    }

    /// Returns the type in Markdown.
    pub fn describe_type(&self) -> String {
        if self.type_text.is_empty() { self.value_type().describe() } else { self.type_text.to_owned() }
    }

    /// Returns the default in Markdown; empty if the option is a section.
    pub fn describe_default(&self) -> String {
        let value = match self.default {
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Absent => "none".to_owned(),
            DefaultValue::Value(value) => format!("`{value}`"),
            DefaultValue::Described(text) => text.to_owned(),
        };
        value + self.default_note
    }

    /// Returns the default of an option that is a string, or a list of one.
    pub fn default_str(&self) -> &'static str {
        match self.default {
            DefaultValue::Value(text) => text.trim_matches(['[', ']', '"']),
            _ => "",
        }
    }

    /// Declares the option of another section that inherits this one if it is missing there.
    pub(super) const fn inherit(self, default: &'static str, meaning: &'static str) -> ConfigOption {
        ConfigOption {
            default: DefaultValue::Described(default),
            default_note: "",
            meaning,
            guide: "",
            sample: "",
            change_when: "",
            is_inherited: false,
            ..self
        }
    }

    /// Sets the text for the type, in Markdown.
    pub(super) const fn shown_as(mut self, text: &'static str) -> ConfigOption {
        self.type_text = text;
        self
    }

    /// Sets the text after the default, in Markdown.
    pub(super) const fn note(mut self, text: &'static str) -> ConfigOption {
        self.default_note = text;
        self
    }

    pub(super) const fn guide(mut self, link: &'static str) -> ConfigOption {
        self.guide = link;
        self
    }

    /// Open connections keep the old value.
    pub(super) const fn for_new_connections(mut self) -> ConfigOption {
        self.live_change = LiveChange::NewConnections;
        self
    }

    /// The value applies at the next start.
    pub(super) const fn after_restart(mut self) -> ConfigOption {
        self.live_change = LiveChange::NextStart;
        self
    }

    pub(super) const fn metric(mut self, name: &'static str) -> ConfigOption {
        self.metric = name;
        self
    }

    /// Sets what ends the requests that it refuses.
    pub(super) const fn ends(mut self, end: End) -> ConfigOption {
        self.end = Some(end);
        self
    }

    pub(super) const fn example(mut self, remedy: &'static str) -> ConfigOption {
        self.example = remedy;
        self
    }

    /// Sets a value as an example, and who would choose it and why.
    pub(super) const fn teach(mut self, sample: &'static str, change_when: &'static str) -> ConfigOption {
        self.sample = sample;
        self.change_when = change_when;
        self
    }

    /// Sets what other programs call it.
    pub(super) const fn called(mut self, aliases: &'static [&'static str]) -> ConfigOption {
        self.aliases = aliases;
        self
    }

    pub(super) const fn secrecy(mut self, secrecy: Secrecy) -> ConfigOption {
        self.secrecy = secrecy;
        self
    }

    pub(super) const fn of_clients(mut self, data: ClientData) -> ConfigOption {
        self.clients = data;
        self
    }

    /// Sets which change weakens protection.
    pub(super) const fn weaker(mut self, change: Weaker) -> ConfigOption {
        self.weaker = change;
        self
    }

    /// Sets what a missing value counts as when changes are compared.
    pub(super) const fn unset(mut self, value: &'static str) -> ConfigOption {
        self.unset = value;
        self
    }

    pub(super) const fn inherited(mut self) -> ConfigOption {
        self.is_inherited = true;
        self
    }

    pub(super) const fn unordered(mut self) -> ConfigOption {
        self.is_unordered = true;
        self
    }

    /// Sets the option of its table that a value without a table is.
    pub(super) const fn shorthand(mut self, key: &'static str) -> ConfigOption {
        self.shorthand = key;
        self
    }

    pub(super) const fn keywords(mut self, words: &'static [&'static str]) -> ConfigOption {
        self.keywords = words;
        self
    }
}

impl LiveChange {
    /// Returns a sentence about a change of the option.
    pub const fn describe(self) -> &'static str {
        match self {
            LiveChange::NextRequest => "applies to the next request",
            LiveChange::NewConnections => "applies to new connections; open ones keep the old value",
            LiveChange::NextStart => "applies at the next start; until then the log warns about it",
        }
    }
}

/// An option that `compile` reads as a `T`: an `Option` if it has no default.
pub struct Row<T> {
    pub option: ConfigOption,
    value: PhantomData<fn() -> T>,
}

/// The type of options that `compile` reads with a function of its own.
pub enum Custom {}

impl<T> Row<T> {
    pub(super) const fn of(option: ConfigOption) -> Row<T> {
        Row { option, value: PhantomData }
    }

    pub(super) const fn inherit(&self, default: &'static str, meaning: &'static str) -> ConfigOption {
        self.option.inherit(default, meaning)
    }
}

impl<T> Deref for Row<T> {
    type Target = ConfigOption;

    fn deref(&self) -> &ConfigOption {
        &self.option
    }
}

/// Starts the declaration of a table, by its path.
pub(super) const fn table(name: &'static str) -> Schema {
    Schema { name, title: "", intro: "", notes: "", options: &[] }
}

/// Declares the rows of a table, each as a constant, and `TABLE` with all of them.
macro_rules! rows {
    ($table:expr; $($ROW:ident $(: $Type:ty)? = $option:expr;)*) => {
        $(pub const $ROW: Row<rows!(@type $($Type)?)> = Row::of($option);)*
        pub const TABLE: crate::config::schema::Schema = $table.with_options(&[$($ROW.option),*]);
    };
    (@type $Type:ty) => { $Type };
    (@type) => { crate::config::schema::row::Custom };
}

pub(super) use rows;
