//! Options of `limit.overrides`.

use super::*;

rows! {
    table("limit.overrides");

    KEY = option(
        "key",
        List { item: &Either(&[Text("string"), Table(&override_key::TABLE)]), least: 1, most: usize::MAX },
        Described("required, unless the entry has a `file`"),
        "one value for each key part; `\"*\"` matches any",
    )
    .shown_as("list of strings")
    .of_clients(ClientData::Values)
    .teach("\"192.0.2.7\"", "Write the value that the limit counts by, as clients send it: an address, a user, an API key. A key of several parts is a list");
    RATE = option(
        "rate",
        Either(&[Rate, CalendarRate, Words(&["unlimited", "0"]), Integers(&[0])]),
        Described("the limit's"),
        "the `rate` of this key",
    )
    .shown_as("as the option, `\"unlimited\"` or 0")
    .called(super::RATE.option.aliases)
    .teach("\"1000/s\"", "Use `0` to block a key, and `unlimited` for your own monitoring");
    BURST = option("burst", OfAlgorithm, Described("the limit's"), "the `burst` of this key").shown_as("as the option")
        .called(super::BURST.option.aliases);
    DEBT = option("debt", OfAlgorithm, Described("the limit's"), "the `debt` of this key").shown_as("as the option");
    QUEUE = option("queue", OfAlgorithm, Described("the limit's"), "the `queue` of this key").shown_as("as the option");
    RESETS_ON = option("resets_on", Integer { least: 1, most: 31 }, Described("the limit's"), "the `resets_on` of this key")
        .shown_as("1 to 31")
        .teach("15", "Set it to the day on which this customer pays");
    IN_FLIGHT = option(
        "in_flight",
        Either(&[Integer { least: 0, most: 100_000 }, Words(&["unlimited", "0"])]),
        Described("the limit's"),
        "the `in_flight` of this key",
    )
    .shown_as("as the option, `\"unlimited\"` or 0");
    UNTIL = option("until", Text("time"), Absent, "when the entry ends; from then on, the next one that matches applies, or the limit's own numbers")
        .shown_as("`\"2026-12-31T00:00:00Z\"`")
        .teach("\"2026-12-31T00:00:00Z\"", "Set it for an exception that should end by itself, such as a launch or a trial");
    FILE = option("file", Path("file"), Absent, "a file with further overrides, one per line: `acme rate=100/s;note=launch`. Bad rows are skipped")
        .guide("overrides.md#overrides-in-a-file")
        .metric("sluicegate_override_file_rejected");
    NOTE = option("note", Text("string"), Absent, "what `explain` shows about the entry, up to 200 bytes")
        .teach("\"launch in March, asked by Ann\"", "Write down why the exception exists, for the colleague who finds it next year");
}
