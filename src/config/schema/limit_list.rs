//! Lists of limits, and the options of a limit in a list.

use crate::config::schema::limit;
use crate::config::schema::row::DefaultValue::Required;
use crate::config::schema::row::{Row, Weaker, option, rows, table};
use crate::config::schema::value_type::ValueType::{self, *};

/// Limits by name, or tables with a name and a price.
pub(super) const LIMIT_NAMES: ValueType = List { item: &LISTED_LIMIT, least: 0, most: 16 };
pub(super) const LISTED_LIMIT: ValueType = Either(&[Text("name"), Table(&TABLE)]);

rows! {
    table("route.limits");

    NAME = option("name", Text("name of a limit"), Required, "the limit");
    COST = limit::COST.inherit("that of the limit", "units of one of the requests that this list is for").guide("charges.md#prices")
        .weaker(Weaker::Compiled);
}
