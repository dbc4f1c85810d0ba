//! The Lua files as the tests load them: the built ones, or those in the directory `LUA_DIR`, which `make mutants`
//! sets.

use std::path::{Path, PathBuf};

use redis::{Arg, Cmd};
use sluicegate::limiting::algorithm::SCRIPT;

/// Returns the text of `lua/NAME.lua`.
pub fn file(name: &str) -> String {
    read(&other_dir().unwrap_or_else(own_dir), name)
}

/// Returns the decision script.
pub fn script() -> String {
    let Some(other) = other_dir() else { return SCRIPT.to_owned() };
    let names = ["", "shapes/"].into_iter().flat_map(|folder| {
        let entries = std::fs::read_dir(own_dir().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "lua"));
        files.map(move |path| format!("{folder}{}", path.file_stem().unwrap().to_str().unwrap()))
    });
    names.fold(SCRIPT.to_owned(), |script, name| script.replace(&read(&own_dir(), &name), &read(&other, &name)))
}

/// Returns the EVAL command `cmd` with this script in place of the built one.
pub fn with_script(cmd: Cmd) -> Cmd {
    let script = script();
    let mut new = Cmd::new();
    for arg in cmd.args_iter() {
        match arg {
            Arg::Simple(bytes) if bytes == SCRIPT.as_bytes() => new.arg(&script),
            Arg::Simple(bytes) => new.arg(bytes),
            _ => panic!("only plain arguments"),
        };
    }
    new
}

fn own_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn other_dir() -> Option<PathBuf> {
    std::env::var_os("LUA_DIR").map(PathBuf::from)
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name).with_extension("lua")).unwrap()
}
