//! `sluicegate man` and `sluicegate completions`: the manual page and the completions of shells, from the
//! source of `--help`. Called by the command line, and when a package is made.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// The manual page: the program, then each of its commands with its options.
pub fn man(mut command: Command) -> io::Result<Vec<u8>> {
    command.build();
    let mut page = Vec::new();
    let whole = Man::new(command.clone()).manual("Sluicegate");
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_description_section(&mut page)?;
    whole.render_options_section(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        // Its own name is the one that is typed.
        let title = format!("{} {}", command.get_name(), sub.get_name()).to_uppercase();
        writeln!(page, ".SH \"{title}\"")?;
        let mut part = Vec::new();
        let own = Man::new(own_options(sub));
        own.render_description_section(&mut part)?;
        own.render_synopsis_section(&mut part)?;
        if sub.get_arguments().any(|argument| !argument.is_global_set() && argument.get_id() != "help") {
            own.render_options_section(&mut part)?;
        }
        // Below the section of the command.
        page.write_all(String::from_utf8_lossy(&part).replace(".SH ", ".SS ").as_bytes())?;
        notes(&mut page, sub)?;
    }
    writeln!(page, ".SH NOTES")?;
    notes(&mut page, &command)?;
    Ok(page)
}

/// What stands below the options of `--help`, line by line as it stands there.
fn notes(page: &mut Vec<u8>, command: &Command) -> io::Result<()> {
    let Some(text) = command.get_after_help() else { return Ok(()) };
    writeln!(page, ".PP\n.nf")?;
    for line in text.to_string().lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these is a command to roff.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(page, "{guard}{line}")?;
    }
    writeln!(page, ".fi")
}

/// What holds for every command stands once, above.
fn own_options(command: &Command) -> Command {
    let own = command.clone();
    own.mut_args(|argument| {
        let general = argument.is_global_set() || argument.get_id() == "help";
        argument.hide(general)
    })
}

pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}
