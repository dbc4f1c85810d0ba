//! The screen of `top`: a list of keys, one of them selected, a filter, and a question before a key is reset. It
//! handles keys and makes frames; `top` talks to the gateway.

use serde_json::Value;

use crate::cli::live::terminal::PressedKey;
use crate::cli::visible::make_visible;
use crate::limiting::key::shown_key::{ShownValue, parse_shown_key};

/// State of the screen of `top`: the selected interval, order and filter, and the input in progress.
#[derive(Default)]
pub struct TopScreen {
    list: TopList,
    /// Limit and key of the selected row, which stays selected when the order changes.
    selected: Option<(String, String)>,
    filter: String,
    mode: InputMode,
    /// The result of the last action, until the next key.
    message: String,
    /// Why the list is not refreshed.
    failure: String,
}

/// A response of `/-/top`.
#[derive(Default)]
pub struct TopList {
    title: String,
    sums: Vec<String>,
    rows: Vec<TopRow>,
}

/// A key of the list, as the gateway shows it.
struct TopRow {
    limit: String,
    key: String,
    /// The numbers of the row, formatted.
    numbers: String,
    /// The columns that narrow terminals show.
    main_numbers: String,
}

/// How wide the lines of the list may be.
#[derive(Clone, Copy)]
enum ListWidth {
    Wide,
    /// Fewer numbers and less of the limit, so that the key has space.
    Narrow,
}

/// Mode that determines the meaning of the next key.
#[derive(Default, PartialEq, Eq)]
enum InputMode {
    #[default]
    List,
    Filter,
    /// Asks whether to reset this key of this limit.
    Confirm {
        limit: String,
        key: String,
    },
}

/// Action that the operator's key requests.
#[derive(Debug, PartialEq, Eq)]
pub enum TopAction {
    Quit,
    /// Reset the usage of this key of this limit.
    Reset {
        limit: String,
        key: String,
    },
}

const HEADING: &str = "        COUNT   SHARE     LEFT   PASSES IN   SEEN  LIMIT            KEY";
const NARROW_HEADING: &str = "      COUNT     LEFT   PASSES IN  LIMIT      KEY";
/// Number of columns from which a terminal shows all numbers.
const WIDE_MIN: usize = 110;
/// Number of characters of a limit in a narrow terminal.
const NARROW_LIMIT: usize = 10;
const HELP: &str = "arrows: select   r: reset the key   /: filter   q: quit";
/// Lines besides the rows of keys and the sums of limits.
const FIXED_LINES: usize = 4;
const FILTER_MAX: usize = 100;

impl TopList {
    pub fn new(answer: &Value) -> TopList {
        let list = |name: &str| answer[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let by = match text(answer, "by") {
            "would_refuse" => "that would be refused",
            "would_admit" => "that would be admitted",
            "admitted" => "admitted (estimated from one request in 16)",
            by => by,
        };
        let format_sum = |sum: &Value| {
            let about = if sum["distinct_is_exact"] == true { "" } else { "about " };
            format!("limit {}: {} in all, {about}{} keys", text(sum, "limit"), sum["total"], sum["distinct"])
        };
        TopList {
            title: format!("keys {by} most, last {}", text(answer, "window")),
            sums: list("limits").iter().map(format_sum).collect(),
            rows: list("keys").iter().map(TopRow::new).collect(),
        }
    }

    /// Returns the list as lines of text, for a pipe or a file.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let heading = (!self.rows.is_empty()).then(|| HEADING.to_owned());
        let all = [self.title.clone()].into_iter().chain(self.sums.iter().cloned()).chain(heading);
        all.chain(self.rows.iter().map(|row| row.format(ListWidth::Wide))).map(|line| make_visible(&line).into_owned())
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

impl TopRow {
    fn new(value: &Value) -> TopRow {
        let (least, most) = (value["count_min"].as_u64().unwrap_or(0), value["count_max"].as_u64().unwrap_or(0));
        let count = if least == most { least.to_string() } else { format!("{least}-{most}") };
        let left = value["remaining"].as_i64().map_or_else(|| "-".to_owned(), |left| left.to_string());
        let wait = match value["retry_after_ms"].as_i64() {
            Some(0) => "now".to_owned(),
            Some(wait_ms) if wait_ms > 0 => format_wait(wait_ms),
            Some(_) => "never".to_owned(),
            None => "-".to_owned(),
        };
        let age = value["last_seen_seconds"].as_u64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds}s"));
        let share = value["share"].as_f64().unwrap_or(0.0) * 100.0;
        let limit = text(value, "limit").to_owned();
        let numbers = format!("{count:>13} {share:>6.1}% {left:>8} {wait:>11} {age:>6}");
        let main_numbers = format!("{count:>11} {left:>8} {wait:>11}");
        TopRow { limit, key: text(value, "key").to_owned(), numbers, main_numbers }
    }

    fn format(&self, width: ListWidth) -> String {
        match width {
            ListWidth::Wide => format!("{}  {:<16} {}", self.numbers, self.limit, self.key),
            ListWidth::Narrow => {
                let is_long = self.limit.chars().count() > NARROW_LIMIT;
                let start: String = self.limit.chars().take(NARROW_LIMIT - usize::from(is_long)).collect();
                let limit = format!("{start}{}", if is_long { "\u{2026}" } else { "" });
                format!("{}  {limit:<NARROW_LIMIT$} {}", self.main_numbers, self.key)
            }
        }
    }

    fn is(&self, (limit, key): &(String, String)) -> bool {
        self.limit == *limit && self.key == *key
    }
}

/// Formats a wait, in a unit that leaves two digits or more.
pub fn format_wait(wait_ms: i64) -> String {
    match wait_ms {
        ..10_000 => format!("{wait_ms} ms"),
        10_000..600_000 => format!("{} s", wait_ms / 1000),
        600_000..36_000_000 => format!("{} min", wait_ms / 60_000),
        _ => format!("{} h", wait_ms / 3_600_000),
    }
}

impl TopScreen {
    pub fn show_list(&mut self, list: TopList) {
        self.list = list;
        self.failure.clear();
    }

    pub fn show_failure(&mut self, failure: &str) {
        failure.clone_into(&mut self.failure);
    }

    pub fn show_message(&mut self, message: &str) {
        message.clone_into(&mut self.message);
    }

    /// Returns the rows that match the filter.
    fn rows(&self) -> Vec<&TopRow> {
        let matches = |row: &&TopRow| format!("{} {}", row.limit, row.key).contains(&self.filter);
        self.list.rows.iter().filter(matches).collect()
    }

    fn selected_index(&self, rows: &[&TopRow]) -> usize {
        self.selected.as_ref().and_then(|selected| rows.iter().position(|row| row.is(selected))).unwrap_or(0)
    }

    fn select_row(&mut self, step: isize) {
        let rows = self.rows();
        let index = self.selected_index(&rows).saturating_add_signed(step).min(rows.len().saturating_sub(1));
        self.selected = rows.get(index).map(|row| (row.limit.clone(), row.key.clone()));
    }

    /// Handles a key; returns what the operator wants beyond the screen.
    pub fn press(&mut self, key: PressedKey) -> Option<TopAction> {
        if key == PressedKey::Interrupt {
            return Some(TopAction::Quit);
        }
        self.message.clear();
        match std::mem::take(&mut self.mode) {
            InputMode::List => return self.press_in_list(key),
            InputMode::Filter => self.press_in_filter(key),
            InputMode::Confirm { limit, key: shown } if key == PressedKey::Char('y') => {
                return Some(TopAction::Reset { limit, key: shown });
            }
            InputMode::Confirm { .. } => self.show_message("not reset"),
        }
        None
    }

    fn press_in_list(&mut self, key: PressedKey) -> Option<TopAction> {
        match key {
            PressedKey::Char('q') => return Some(TopAction::Quit),
            PressedKey::Up => self.select_row(-1),
            PressedKey::Down => self.select_row(1),
            PressedKey::Char('/') => self.mode = InputMode::Filter,
            PressedKey::Escape => self.filter.clear(),
            PressedKey::Char('r') => {
                // From here on, the selection follows the key, not its place.
                self.select_row(0);
                if let Some((limit, key)) = self.selected.clone() {
                    self.mode = InputMode::Confirm { limit, key };
                }
            }
            _ => {}
        }
        None
    }

    fn press_in_filter(&mut self, key: PressedKey) {
        match key {
            PressedKey::Enter => return,
            PressedKey::Escape => return self.filter.clear(),
            PressedKey::Backspace => drop(self.filter.pop()),
            PressedKey::Char(char) if self.filter.len() < FILTER_MAX => self.filter.push(char),
            _ => {}
        }
        self.mode = InputMode::Filter;
    }

    /// Returns the bytes that show the screen on a terminal of this size.
    pub fn frame(&self, (columns, rows): (usize, usize)) -> String {
        let visible_rows = self.rows();
        let sums = self.list.sums.len().min(rows.saturating_sub(FIXED_LINES) / 3);
        let fits = rows.saturating_sub(FIXED_LINES + sums).max(1);
        let selection = self.selected_index(&visible_rows);
        let first = (selection + 1).saturating_sub(fits);
        let mut frame = "\x1b[H".to_owned();
        let mut add_line = |line: &str, is_selected: bool| {
            let line: String = make_visible(line).chars().take(columns).collect();
            let (start, end) = if is_selected { ("\x1b[7m", "\x1b[0m") } else { ("", "") };
            frame.extend([start, &line, end, "\x1b[K\r\n"]);
        };
        let note = match self.filter.as_str() {
            "" => String::new(),
            filter => format!(", with `{filter}` (Escape: all)"),
        };
        add_line(&format!("sluicegate top: {}{note}", self.list.title), false);
        self.list.sums.iter().take(sums).for_each(|sum| add_line(sum, false));
        let (width, heading) =
            if columns < WIDE_MIN { (ListWidth::Narrow, NARROW_HEADING) } else { (ListWidth::Wide, HEADING) };
        add_line(heading, false);
        for (place, row) in visible_rows.iter().enumerate().skip(first).take(fits) {
            add_line(&row.format(width), place == selection);
        }
        // Without news, the line has what the selected row has no space for.
        let cut = visible_rows.get(selection).filter(|row| row.format(width).chars().count() > columns);
        let selected = cut.map(|row| format!("{}: {}", row.limit, row.key)).unwrap_or_default();
        let notes = [&self.message, &self.failure, &selected];
        add_line(notes.into_iter().find(|note| !note.is_empty()).map_or("", String::as_str), false);
        let footer: String = make_visible(&self.footer()).chars().take(columns).collect();
        frame.extend([footer.as_str(), "\x1b[K\x1b[J"]);
        frame
    }

    fn footer(&self) -> String {
        match &self.mode {
            InputMode::List => HELP.to_owned(),
            InputMode::Filter => format!("filter: {}_   Enter: keep   Escape: all", self.filter),
            InputMode::Confirm { limit, key } => format!("reset the usage of {key} at limit {limit}? y/n"),
        }
    }
}

/// Returns the parameters that name a key for the admin API: `(key, VALUE)` or `(hash, DIGITS)` for each part.
///
/// # Errors
/// Why the key cannot be named.
pub fn name_shown_key(key: &str) -> Result<Vec<(&'static str, Vec<u8>)>, &'static str> {
    let parts: Vec<_> = parse_shown_key(key).collect();
    if parts.len() != key.split(',').filter(|part| *part != "all").count() {
        return Err("a part of the key is hidden ([admin] keys)");
    }
    parts
        .into_iter()
        .map(|part| match part.value {
            ShownValue::Plain(value) => Ok(("key", value)),
            ShownValue::Hash(hash) => Ok(("hash", hash.to_string().into_bytes())),
            ShownValue::Absent => Err("the key is that of requests without a value"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(limit: &str, key: &str) -> Value {
        json!({ "limit": limit, "key": key, "count_min": 3, "count_max": 5, "share": 0.25, "last_seen_seconds": 1,
            "remaining": 0, "retry_after_ms": 800 })
    }

    fn screen(keys: &[&str]) -> TopScreen {
        let keys: Vec<Value> = keys.iter().map(|shown| key("hard", shown)).collect();
        let mut screen = TopScreen::default();
        screen.show_list(TopList::new(&json!({ "by": "refused", "window": "1m", "limits": [], "keys": keys })));
        screen
    }

    fn press(screen: &mut TopScreen, keys: &str) -> Option<TopAction> {
        keys.chars()
            .fold(None, |_, char| screen.press(if char == '\n' { PressedKey::Enter } else { PressedKey::Char(char) }))
    }

    #[test]
    fn a_key_is_reset_after_one_question() {
        let mut screen = screen(&["ip=192.0.2.1", "ip=192.0.2.2"]);
        screen.press(PressedKey::Down);
        assert_eq!(press(&mut screen, "rn"), None);
        assert_eq!(press(&mut screen, "y"), None, "the question was answered");
        let wanted = Some(TopAction::Reset { limit: "hard".to_owned(), key: "ip=192.0.2.2".to_owned() });
        assert_eq!(press(&mut screen, "r"), None);
        assert!(screen.frame((80, 24)).contains("reset the usage of ip=192.0.2.2 at limit hard? y/n"));
        assert_eq!(press(&mut screen, "y"), wanted);
        // The order changes: the key stays selected.
        let keys = [key("hard", "ip=192.0.2.2"), key("hard", "ip=192.0.2.1")];
        screen.show_list(TopList::new(&json!({ "keys": keys })));
        assert_eq!(press(&mut screen, "ry"), wanted);
    }

    #[test]
    fn the_filter_is_text_of_the_list() {
        let mut screen = screen(&["ip=192.0.2.1", "ip=192.0.2.22"]);
        assert_eq!(press(&mut screen, "/2.22q\n"), None);
        assert!(screen.rows().is_empty());
        assert_eq!(press(&mut screen, "r"), None, "there is nothing to reset");
        screen.press(PressedKey::Char('/'));
        screen.press(PressedKey::Backspace);
        assert_eq!(screen.rows().len(), 1);
        screen.press(PressedKey::Escape);
        assert_eq!(screen.rows().len(), 2);
        assert_eq!(press(&mut screen, "q"), Some(TopAction::Quit));
    }

    #[test]
    fn keys_of_attackers_control_no_terminal() {
        let mut screen = screen(&["header:x=\u{1b}]0;owned\u{7}\u{202e}\n\u{9b}31m"]);
        for keys in ["", "r", "n/\u{e9}"] {
            press(&mut screen, keys);
            let frame = screen.frame((200, 24));
            let own = ["\x1b[H", "\x1b[K\r\n", "\x1b[K", "\x1b[J", "\x1b[7m", "\x1b[0m"];
            let rest = own.iter().fold(frame.clone(), |rest, sequence| rest.replace(sequence, ""));
            assert!(!rest.chars().any(|char| char.is_control() || char == '\u{202e}'), "{frame:?}");
            // The filter hides the row.
            let is_shown = frame.contains("\\u{1b}]0;owned\\u{7}\\u{202e}\\u{a}\\u{9b}31m");
            assert_eq!(is_shown, !keys.contains('/'), "{frame:?}");
        }
    }

    #[test]
    fn a_frame_fits_the_terminal_and_shows_the_selected_row() {
        let keys: Vec<String> = (0..50).map(|n| format!("ip=192.0.2.{n}")).collect();
        let mut screen = screen(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        (0..40).for_each(|_| drop(screen.press(PressedKey::Down)));
        for (columns, rows) in [(80, 24), (20, 10), (1, 1), (200, 100)] {
            let frame = screen.frame((columns, rows));
            let lines: Vec<&str> = frame.split("\r\n").collect();
            assert!(lines.len() <= rows.max(FIXED_LINES + 1), "{columns}x{rows}: {}", lines.len());
            assert!(frame.contains("\x1b[7m"), "{columns}x{rows}");
        }
        assert!(screen.frame((100, 24)).contains("ip=192.0.2.40\x1b[0m"));
    }

    #[test]
    fn a_narrow_terminal_has_space_for_the_key() {
        let key = "header:x-api-key=customer-12345";
        let screen = screen(&[key, "ip=192.0.2.1"]);
        for columns in [80, 100, 200] {
            assert!(screen.frame((columns, 24)).contains(&format!("{key}\x1b[0m")), "{columns} columns");
        }
        // The part that is cut off is below the list.
        assert!(screen.frame((60, 24)).contains(&format!("hard: {key}")));
        assert!(!screen.frame((80, 24)).contains("hard: "));
    }

    #[test]
    fn a_shown_key_is_named_part_by_part() {
        assert_eq!(name_shown_key("all"), Ok(vec![]));
        assert_eq!(
            name_shown_key("ip=192.0.2.1,header:x#0123456789abcdef,path=/a%2Cb"),
            Ok(vec![("key", b"192.0.2.1".to_vec()), ("hash", b"0123456789abcdef".to_vec()), ("key", b"/a,b".to_vec())])
        );
        assert!(name_shown_key("ip=1.2.3.4,header:x=***").is_err() && name_shown_key("header:x!").is_err());
    }
}
