//! `sluicegate usage`: exports what each key of a limit used on each day.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use percent_encoding::utf8_percent_encode;
use serde_json::{Value, json};

use crate::cli::gateway::{GatewayContact, GatewayOptions};
use crate::cli::operate::key::NOT_IN_PATH;
use crate::cli::operate::table::Table;
use crate::cli::operate::{Call, CommandFault, fetch_json, format_json, run_command, text_of};

pub const HELP: &str = "\
Examples:
  sluicegate usage daily --from 2026-11-01 --to 2026-11-30 --format csv > november.csv
  sluicegate usage daily

The limit needs `usage`, such as usage = \"90d\". Days are in UTC, and both ends are included.";

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum UsageFormat {
    Table,
    Csv,
    Json,
}

#[derive(Args)]
pub struct UsageOptions {
    /// Name of the limit
    #[arg(value_name = "LIMIT")]
    limit: String,
    /// First day, such as 2026-11-01 or yesterday [default: the first of this month]
    #[arg(long, value_name = "DATE", value_parser = parse_day)]
    from: Option<Date>,
    /// Last day [default: today]
    #[arg(long, value_name = "DATE", value_parser = parse_day)]
    to: Option<Date>,
    /// Format of the report
    #[arg(long, default_value = "table")]
    format: UsageFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

/// Maximum number of days in a report.
const DAYS_MAX: usize = 732;

/// The usage of a key on a day: admitted, refused, units.
type Numbers = [i64; 3];

pub fn run_usage(options: &UsageOptions) -> ExitCode {
    run_command(&options.gateway, options.format == UsageFormat::Json, |gateway| {
        let today = find_today();
        let (from, to) = (options.from.unwrap_or(today.first_of_month()), options.to.unwrap_or(today));
        if from > to {
            return Err(CommandFault::usage(format!("--from {from} is after --to {to}")));
        }
        let days: Vec<Date> = from.series(1.day()).take_while(|day| *day <= to).take(DAYS_MAX + 1).collect();
        if days.len() > DAYS_MAX {
            return Err(CommandFault::usage(format!("a report has {DAYS_MAX} days at most")));
        }
        let mut report = Vec::with_capacity(days.len());
        for day in days {
            report.push((day.to_string(), fetch_day(options, gateway, day)?));
        }
        Ok(match options.format {
            UsageFormat::Table => format_table(&report),
            UsageFormat::Csv => format_csv(&options.limit, &report),
            UsageFormat::Json => format_report(&options.limit, &report),
        })
    })
}

fn find_today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

fn parse_day(text: &str) -> Result<Date, String> {
    match text {
        "today" => Ok(find_today()),
        "yesterday" => find_today().yesterday().map_err(|error| error.to_string()),
        _ => text.parse().map_err(|_| "it is not a day; write for example 2026-11-01, today or yesterday".to_owned()),
    }
}

/// Fetches all pages of a day. A key that changes meanwhile may be on two pages: the later one is newer.
fn fetch_day(
    options: &UsageOptions,
    gateway: &GatewayContact,
    day: Date,
) -> Result<BTreeMap<String, Numbers>, CommandFault> {
    let (mut keys, mut cursor) = (BTreeMap::new(), "0".to_owned());
    loop {
        let limit = utf8_percent_encode(&options.limit, NOT_IN_PATH);
        let path = format!("/-/limits/{limit}/usage?day={day}&cursor={cursor}");
        let page = fetch_json(gateway, Call::get(&path, "keys"))?;
        for item in page["keys"].as_array().into_iter().flatten() {
            let number = |name: &str| item[name].as_i64().unwrap_or(0);
            keys.insert(text_of(&item["key"]), ["admitted", "refused", "units"].map(number));
        }
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return Ok(keys),
        }
    }
}

type Report = [(String, BTreeMap<String, Numbers>)];

fn format_table(report: &Report) -> String {
    let mut sums: BTreeMap<&str, Numbers> = BTreeMap::new();
    for (key, numbers) in report.iter().flat_map(|(_, keys)| keys) {
        let sum = sums.entry(key).or_default();
        for (sum, number) in sum.iter_mut().zip(numbers) {
            *sum += number;
        }
    }
    let mut sorted: Vec<_> = sums.into_iter().collect();
    sorted.sort_by_key(|(_, numbers)| std::cmp::Reverse(numbers[2]));
    let mut table = Table::new(&["KEY", "ADMITTED", "REFUSED", "UNITS"]);
    for (key, numbers) in sorted {
        table.add_row([key.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())).collect());
    }
    match table.is_empty() {
        true => "no key used anything on these days\n".to_owned(),
        false => table.render(),
    }
}

fn format_csv(limit: &str, report: &Report) -> String {
    let mut text = "day,limit,key,admitted,refused,units\n".to_owned();
    for (day, keys) in report {
        for (key, [admitted, refused, units]) in keys {
            text.push_str(&format!("{day},{limit},{},{admitted},{refused},{units}\n", quote_cell(key)));
        }
    }
    text
}

/// Quotes a cell of CSV if it needs that.
fn quote_cell(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn format_report(limit: &str, report: &Report) -> String {
    let of_day = |(day, keys): &(String, BTreeMap<String, Numbers>)| {
        let keys = keys.iter().map(|(key, [admitted, refused, units])| {
            json!({ "key": key, "admitted": admitted, "refused": refused, "units": units })
        });
        json!({ "day": day, "keys": keys.collect::<Vec<Value>>() })
    };
    format_json(&json!({ "limit": limit, "days": report.iter().map(of_day).collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_a_line_for_each_day_and_key() {
        let keys = |numbers| BTreeMap::from([("header:a=x,ip=::1".to_owned(), numbers)]);
        let report = [("2026-11-29".to_owned(), keys([1, 2, 3])), ("2026-11-30".to_owned(), keys([10, 0, -1]))];
        assert_eq!(
            format_csv("daily", &report),
            "day,limit,key,admitted,refused,units\n2026-11-29,daily,\"header:a=x,ip=::1\",1,2,3\n\
             2026-11-30,daily,\"header:a=x,ip=::1\",10,0,-1\n"
        );
        assert!(format_table(&report).ends_with("header:a=x,ip=::1  11        2        2\n"));
        assert_eq!(quote_cell("a\"b"), "\"a\"\"b\"");
    }
}
