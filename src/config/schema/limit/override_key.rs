//! Options of `limit.overrides.key`.

use super::*;

rows! {
    table("limit.overrides.key");

    PERCENT = option(
        "percent",
        Text("string"),
        Absent,
        "a value with `%XX` for bytes that no string can contain, or for a single `*`",
    );
    HASH = option(
        "hash",
        Text("16 hexadecimal digits"),
        Absent,
        "the value that [logs show with this hash](../operating/keys-in-logs.md); needs `keys_secret`",
    );
}
