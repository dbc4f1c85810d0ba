//! `sluicegate man` and `sluicegate completions`: the man page and shell completions, generated from the definition of
//! `--help`. Also called when a package is built.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::reference::list_names;

/// Example commands with their purpose.
const EXAMPLES: &[(&str, &str)] = &[
    ("sluicegate demo", "see it work; nothing else is needed"),
    ("sluicegate proxy --to http://127.0.0.1:3000 --limit '10/s burst 100 by ip'", ""),
    ("sluicegate check -c sluicegate.toml", "every error, with line and column"),
    ("sluicegate run -c sluicegate.toml", "edits of the file apply while it runs"),
    ("sluicegate replay -c sluicegate.toml access.log.gz", "what its limits would have done"),
    ("sluicegate reload -c sluicegate.toml", "load it again, and report the result"),
];

const SIGNALS: &[(&str, &str)] = &[
    ("HUP", "reloads the config"),
    ("USR1", "opens the access log again, after a rotation"),
    ("TERM, INT", "drain: readiness fails, requests end, then the process; a second one stops it at once"),
];

const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "ok"),
    ("1", "failed while running"),
    ("2", "bad config or usage"),
    ("3", "import: parts of the input could not be translated"),
];

const FILES: &[(&str, &str)] = &[
    ("sluicegate.toml", "the config, in the current directory, unless -c or SLUICEGATE_CONFIG names another file"),
    ("/etc/sluicegate/sluicegate.toml", "the config of the service that the Debian package installs"),
    ("/var/lib/sluicegate", "state of that service, such as the certificates that it orders"),
    ("~/.local/state/sluicegate/ca", "the CA of development certificates, unless the config names another directory"),
    ("/usr/share/sluicegate/schema.json", "the JSON Schema of the config, for editors"),
    ("/usr/share/doc/sluicegate/full.toml", "every option with its default; conf/full.toml in the source"),
];

/// Returns the text below the options of `--help`.
pub fn help_text() -> String {
    let lines = |table: &[(&str, &str)], width: usize, indent: &str| {
        let line = |(term, text): &(&str, &str)| format!("{indent}{term:width$}  {text}").trim_end().to_owned() + "\n";
        table.iter().map(line).collect::<String>()
    };
    let examples = lines(EXAMPLES, 51, "  ");
    let signals = lines(SIGNALS, 9, "  ");
    let codes = lines(EXIT_STATUS, 9, "  ");
    format!("Examples:\n{examples}\nSignals:\n{signals}\nExit codes:\n{}", codes.trim_end())
}

/// Returns the man page: the program, then each command with its options.
pub fn render_man(mut command: Command) -> io::Result<Vec<u8>> {
    command.build();
    let mut page = Vec::new();
    let whole = Man::new(command.clone()).manual("Sluicegate");
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_description_section(&mut page)?;
    whole.render_options_section(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        // The title is the command as it is typed.
        let title = format!("{} {}", command.get_name(), sub.get_name()).to_uppercase();
        writeln!(page, ".SH \"{title}\"")?;
        let mut part = Vec::new();
        // The global options are described once at the top.
        let own = Man::new(sub.clone().mut_args(|argument| {
            let general = argument.is_global_set() || argument.get_id() == "help";
            argument.hide(general)
        }));
        own.render_description_section(&mut part)?;
        own.render_synopsis_section(&mut part)?;
        if sub.get_arguments().any(|argument| !argument.is_global_set() && argument.get_id() != "help") {
            own.render_options_section(&mut part)?;
        }
        // Its sections become subsections of the command.
        page.write_all(String::from_utf8_lossy(&part).replace(".SH ", ".SS ").as_bytes())?;
        if let Some(notes) = sub.get_after_help() {
            writeln!(page, ".PP\n.nf")?;
            for line in notes.to_string().lines() {
                writeln!(page, "{}", escape_roff(line))?;
            }
            writeln!(page, ".fi")?;
        }
    }
    for (title, table) in [("SIGNALS", SIGNALS), ("EXIT STATUS", EXIT_STATUS), ("FILES", FILES), ("EXAMPLES", EXAMPLES)]
    {
        writeln!(page, ".SH \"{title}\"")?;
        for (term, text) in table {
            writeln!(page, ".TP\n\\fB{}\\fR\n{}", escape_roff(term), escape_roff(text))?;
        }
    }
    Ok(page)
}

/// Escapes a line of text for roff.
fn escape_roff(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    // roff would read a leading `.` or `'` as a command.
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{line}")
}

pub fn render_completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    // `sluicegate help` accepts other spellings too, so only completions list the names.
    command = command.mut_subcommand("help", |help| {
        help.mut_arg("key", |key| key.value_parser(clap::builder::PossibleValuesParser::new(list_names())))
    });
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}
