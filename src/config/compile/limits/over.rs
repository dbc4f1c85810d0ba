//! Compiles `over`: what happens to requests over a limit. Called by `limits`, and by the routes for what depends on
//! them.

use crate::config::compile::names::Definitions;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::values::invalid_text;
use crate::limiting::algorithm::Rule;
use crate::limiting::limit::over::{Diversion, Over};

/// How the value of `over` begins that names an upstream.
pub const UPSTREAM: &str = "upstream:";
const HELP: &str = "write \"refuse\", \"delay\", \"annotate\" or \"upstream:NAME\"";

/// Compiles `over`. `upstreams`: the index of each upstream.
pub fn compile_over(section: &Section, upstreams: &Definitions<usize>) -> Option<Over> {
    let Some(node) = section.node(&limit::OVER) else { return Some(Over::Refuse) };
    section.parse_string(&limit::OVER, |text| match text {
        "refuse" => Ok(Some(Over::Refuse)),
        "delay" => Ok(Some(Over::Delay)),
        "annotate" => Ok(Some(Over::Annotate)),
        _ => match text.strip_prefix(UPSTREAM) {
            Some(name) => {
                let index = upstreams.find(section.sources, node.place, name);
                Ok(index.map(|index| Over::Divert(Diversion { name: name.to_owned(), index })))
            }
            None => invalid_text(format!("`{text}` is none of the words"), HELP),
        },
    })?
}

/// Reports an `over` that the rule of the limit makes impossible.
pub fn check_over(section: &Section, rule: &Rule, over: &Over) -> Option<()> {
    let node = section.node(&limit::OVER);
    match (over, node, rule.has_queue()) {
        (Over::Delay, Some(node), false) => section.report_fault(
            limit::OVER.name,
            node,
            "only a leaky_bucket with a queue delays requests",
            "use algorithm = \"leaky_bucket\" with queue = \"1s\" and without nodelay",
        ),
        (Over::Annotate | Over::Divert(_), Some(node), true) => section.report_fault(
            limit::OVER.name,
            node,
            "this limit delays requests, and would forward those at once that it delays for too long",
            "set nodelay = true, or use another algorithm",
        ),
        _ => Some(()),
    }
}
