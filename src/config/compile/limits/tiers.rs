//! The key part `ip6tiers`: one limit that counts an IPv6 client in several networks at once. Such a section is
//! compiled several times, as the limit itself and as one limit for each wider network, with multiples of its numbers.
//! All of them are decided together. Called by `limits`.

use crate::config::compile::limits::overrides::has_file;
use crate::config::compile::limits::rule::has_source;
use crate::config::diagnostics::report::Place;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::source::SourceTexts;
use crate::config::substitute::Text;
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::limit::Limit;
use crate::limiting::limit::when::Condition;
use crate::net::IpSet;

/// Name of the key part.
const WORD: &str = "ip6tiers";
const HELP: &str = "write \"ip6tiers\", or the prefix lengths with their multiples, like \"ip6tiers/64/56x4/48x16\"";
const TIERS_MAX: usize = 4;
const TIMES_MAX: i64 = 1_000_000;
const PREFIXES: std::ops::RangeInclusive<u8> = 16..=128;
/// Longest name of a limit with tiers: the tiers' own names are longer by a dot and up to three digits.
const NAME_MAX: usize = 60;
/// Options that are multiplied.
const AMOUNTS: [&str; 4] =
    [limit::RATE.option.name, limit::BURST.option.name, limit::DEBT.option.name, limit::IN_FLIGHT.option.name];

/// One size of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    pub prefix: u8,
    /// The tier's numbers are the numbers of the limit times this factor.
    times: i64,
}

impl Tier {
    /// Returns the key part of the tier.
    fn key_part(self) -> String {
        format!("ip/32/{}", self.prefix)
    }

    /// Returns the name of the tier's limit, for a limit called `name`.
    pub fn limit_name(self, name: &str) -> String {
        format!("{name}.{}", self.prefix)
    }
}

/// The key of a limit has tiers that are wrong. The mistake has been reported.
#[derive(Debug)]
pub struct BrokenTiers;

/// The section of a limit with tiers, written as one section for each tier.
pub struct TieredSection {
    /// The tiers from the narrowest; the first is the limit itself.
    pub tiers: Vec<(Tier, Table)>,
    title: String,
}

impl TieredSection {
    /// Writes the section of each tier. `None` if the key has no tiers.
    ///
    /// # Errors
    /// The tiers are wrong.
    pub fn read(section: &Section, name: &str) -> Result<Option<TieredSection>, BrokenTiers> {
        let Some(node) = section.node(&limit::KEY) else { return Ok(None) };
        let parts = match &node.value {
            Value::Array(parts) => parts.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let is_tiered = |part: &Node| matches!(&part.value, Value::String(text) if text.value.starts_with(WORD));
        let Some(place) = parts.iter().position(is_tiered) else { return Ok(None) };
        let tiers = section.parse_node(limit::KEY.name, &parts[place], parse_tiers).ok_or(BrokenTiers)?;
        if let Some(node) = section.node(&limit::FAIR) {
            let what = "cannot be combined with the key part ip6tiers: tenants share one budget";
            section.report_fault::<()>(limit::FAIR.name, node, what, "write key = \"all\" or \"ip\"");
            return Err(BrokenTiers);
        }
        if name.len() > NAME_MAX {
            let what = format!("the names of its tiers would be too long: `{}`", tiers[1].limit_name(name));
            section.report_fault::<()>(
                limit::KEY.name,
                node,
                &what,
                &format!("use a name of at most {NAME_MAX} bytes"),
            );
            return Err(BrokenTiers);
        }
        let mut overrides = vec![Vec::new(); tiers.len()];
        split_overrides(section, (place, parts.len()), &tiers, &mut overrides).ok_or(BrokenTiers)?;
        let mut overrides = overrides.into_iter();
        let table = section.written_table();
        let tables = tiers.iter().map(|tier| {
            let mut table = table.clone();
            for entry in &mut table.entries {
                match entry.key.as_str() {
                    key if key == limit::KEY.name => set_key_part(&mut entry.node, place, tier.key_part()),
                    key if key == limit::OVERRIDES.name => {
                        entry.node.value = Value::Array(overrides.next().unwrap_or_default());
                    }
                    key if AMOUNTS.contains(&key) => multiply(&mut entry.node.value, tier.times),
                    _ => {}
                }
            }
            (*tier, table)
        });
        Ok(Some(TieredSection { tiers: tables.collect(), title: section.title.clone() }))
    }

    /// Returns the section of the limit itself.
    pub fn first<'a>(&'a self, sources: &'a SourceTexts) -> Section<'a> {
        Section::new(sources, &limit::TABLE, self.title.clone(), &self.tiers[0].1)
    }

    /// Returns the sections of the wider networks.
    pub fn wider<'a>(&'a self, sources: &'a SourceTexts) -> impl Iterator<Item = (Tier, Section<'a>)> {
        self.tiers.iter().skip(1).map(move |(tier, table)| {
            let title = format!("the tier /{} of {}", tier.prefix, self.title);
            (*tier, Section::new(sources, &limit::TABLE, title, table))
        })
    }
}

/// Makes `limit` a wider tier of the limit `name`, which applies to IPv6 clients only.
pub fn restrict_to_ipv6(limit: &mut Limit, name: &str) {
    limit.tier_of = Some(name.to_owned());
    let nets: IpSet = "::/0".parse().into_iter().collect();
    limit.when.0.push(Condition::Client { sets: Vec::new(), nets, inside: true });
}

/// Parses `ip6tiers` or `ip6tiers/64/56x4/48x16`.
fn parse_tiers(text: &str) -> Result<Vec<Tier>, TextFault> {
    let Some(rest) = text.strip_prefix(WORD) else { return invalid_text("it is not a tier", HELP) };
    let rest = if rest.is_empty() { "/64/56x4/48x16" } else { rest };
    let Some(list) = rest.strip_prefix('/') else {
        return invalid_text(format!("unknown key part `{text}`"), HELP);
    };
    let mut tiers: Vec<Tier> = Vec::new();
    for piece in list.split('/') {
        let (prefix, times) = piece.split_once('x').unwrap_or((piece, "1"));
        let (Some(prefix), Some(times)) = (parse_number(prefix), parse_number(times)) else {
            return invalid_text(format!("`{piece}` is not a prefix length with a multiple"), HELP);
        };
        let Some(prefix) = u8::try_from(prefix).ok().filter(|prefix| PREFIXES.contains(prefix)) else {
            let help = format!("prefix lengths go from {} to {}", PREFIXES.start(), PREFIXES.end());
            return invalid_text(format!("/{prefix} is not a valid prefix length here"), help);
        };
        match tiers.last() {
            None if times != 1 => return invalid_text("the first tier has the numbers of the limit itself", HELP),
            None => {}
            Some(last) if prefix >= last.prefix => {
                return invalid_text(
                    format!("/{prefix} is not wider than /{}, which is written before it", last.prefix),
                    "write the narrowest network first",
                );
            }
            Some(last) if !(last.times + 1..=TIMES_MAX).contains(&times) => {
                let what = format!("the multiple of /{prefix} must be more than that of /{}", last.prefix);
                let help = format!("otherwise the narrower network never decides; the largest multiple is {TIMES_MAX}");
                return invalid_text(what, help);
            }
            Some(_) => {}
        }
        tiers.push(Tier { prefix, times });
    }
    match tiers.len() {
        2..=TIERS_MAX => Ok(tiers),
        count => {
            let what = format!("{count} prefix lengths");
            invalid_text(what, format!("write 2 to {TIERS_MAX}; for a single one, write \"ip/32/{}\"", tiers[0].prefix))
        }
    }
}

fn parse_number(digits: &str) -> Option<i64> {
    let is_plain = (1..=7).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
}

fn set_key_part(node: &mut Node, place: usize, part: String) {
    let text = |part| Value::String(Text { value: part, written: None });
    match &mut node.value {
        Value::Array(parts) => parts[place].value = text(part),
        value => *value = text(part),
    }
}

/// Multiplies an amount: an integer, or the count of a rate. Others are left for the compiler of the option to report.
fn multiply(value: &mut Value, times: i64) {
    match value {
        Value::Integer(amount) => *amount = amount.saturating_mul(times),
        Value::String(text) => {
            let Some((count, period)) = text.value.split_once('/') else { return };
            if let Ok(count) = count.trim().parse::<i64>() {
                text.value = format!("{}/{period}", count.saturating_mul(times));
            }
        }
        _ => {}
    }
}

/// Divides the overrides: an entry for `2001:db8::/56` belongs to the tier with that prefix length, one for an address
/// alone to the limit itself. `part`: the index of the address among the parts of the key, and their number.
fn split_overrides(
    section: &Section,
    (part, parts): (usize, usize),
    tiers: &[Tier],
    overrides: &mut [Vec<Node>],
) -> Option<()> {
    if let Some(rate) = section.node(&limit::RATE).filter(|rate| has_source(rate)) {
        let help = "write a rate, or key = \"ip\"";
        return section.report_fault(limit::RATE.name, rate, "requests cannot state the rates of tiers", help);
    }
    let Some(node) = section.node(&limit::OVERRIDES) else { return Some(()) };
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut ok = Some(());
    for item in items {
        if has_file(item) {
            let help = "write key = \"ip\", or list the overrides in the config";
            return section.report_fault(
                limit::OVERRIDES.name,
                item,
                "a limit with tiers has no file of overrides",
                help,
            );
        }
        let mut item = item.clone();
        let key_entry = match &mut item.value {
            Value::Table(table) => table.entries.iter_mut().find(|entry| entry.key == limit::overrides::KEY.name),
            _ => None,
        };
        let tier = match key_entry.and_then(|entry| find_value(entry, part, parts)) {
            None => Some(0),
            Some((place, text)) => take_prefix(section, place, text, tiers),
        };
        match tier {
            Some(tier) => overrides[tier].push(item),
            None => ok = None,
        }
    }
    ok
}

/// Returns the value of the address in the key of an override.
fn find_value(entry: &mut TableEntry, part: usize, parts: usize) -> Option<(Place, &mut Text)> {
    let is_list = matches!(entry.node.value, Value::Array(_));
    let node = match &mut entry.node {
        node if !is_list && parts == 1 => node,
        Node { value: Value::Array(values), .. } if values.len() == parts => values.get_mut(part)?,
        _ => return None,
    };
    match &mut node.value {
        Value::String(text) => Some((node.place, text)),
        _ => None,
    }
}

/// Removes the prefix length of the value, and returns the index of its tier. Without one, it is the tier of the limit.
fn take_prefix(section: &Section, place: Place, text: &mut Text, tiers: &[Tier]) -> Option<usize> {
    let Some((address, prefix)) = text.value.split_once('/') else { return Some(0) };
    let tier = tiers.iter().position(|tier| Some(i64::from(tier.prefix)) == parse_number(prefix));
    let Some(tier) = tier else {
        let sizes: Vec<String> = tiers.iter().map(|tier| format!("/{}", tier.prefix)).collect();
        let what = format!("no tier of the limit has networks of the size /{prefix}");
        return section.report_fault_at(limit::OVERRIDES.name, place, &what, &format!("it has {}", sizes.join(", ")));
    };
    text.value = address.to_owned();
    Some(tier)
}
