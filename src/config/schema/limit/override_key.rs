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
    )
    .teach("\"9b3d1f6a20c4e857\"", "Use it to block a key that you know only from a log with hashed keys");
}
