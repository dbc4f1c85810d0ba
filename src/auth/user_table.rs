//! The users in an htpasswd file: `NAME:HASH` per line. Parsed by the config compiler, which reports the faults with
//! their lines. No fault contains a hash.

use std::collections::HashMap;
use std::fmt;

use crate::auth::is_valid_user;
use crate::auth::password_hash::{HashFault, PasswordHash};

/// Users with the hashes of their passwords.
#[derive(Default, PartialEq)]
pub struct UserTable {
    hashes: Vec<PasswordHash>,
    /// Index of each user's hash.
    by_name: HashMap<Box<str>, u32>,
}

/// The hash to try a password against.
#[derive(Clone, Copy)]
pub struct Candidate<'t> {
    pub hash: &'t PasswordHash,
    /// The user exists. Otherwise the hash is that of another user: the password is tried nevertheless, so that the
    /// time of the response does not reveal which users exist.
    pub is_known: bool,
}

/// A faulty line.
#[derive(Debug, PartialEq)]
pub struct LineFault {
    /// Number of the line, from 1.
    pub line: usize,
    pub what: String,
    pub help: String,
}

/// Maximum number of users in a file.
const USERS_MAX: usize = 100_000;
/// Maximum number of faults that are reported.
const FAULTS_MAX: usize = 10;
const LINE_HELP: &str = "write one user per line, NAME:HASH, as htpasswd -B does";

impl UserTable {
    /// Parses the text of a file. Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// The first faults, in the order of their lines.
    pub fn parse(text: &str) -> Result<UserTable, Vec<LineFault>> {
        let (mut table, mut faults) = (UserTable::default(), Vec::new());
        let mut lines: HashMap<&str, usize> = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.trim_end(), index + 1);
            if line.trim_start().is_empty() || line.starts_with('#') {
                continue;
            }
            match parse_line(line) {
                Ok((name, hash)) => match lines.insert(name, number) {
                    None => {
                        let index = u32::try_from(table.hashes.len()).unwrap_or(u32::MAX);
                        table.hashes.push(hash);
                        table.by_name.insert(name.into(), index);
                    }
                    Some(first) => faults.push(LineFault {
                        line: number,
                        what: format!("the user `{name}` is in line {first} already"),
                        help: "remove one of the two lines".to_owned(),
                    }),
                },
                Err(HashFault { what, help }) => faults.push(LineFault { line: number, what, help: help.to_owned() }),
            }
            if table.hashes.len() > USERS_MAX {
                let (what, help) =
                    (format!("the file has more than {USERS_MAX} users"), "divide it, or authenticate otherwise");
                faults.push(LineFault { line: number, what, help: help.to_owned() });
            }
            if faults.len() >= FAULTS_MAX || table.hashes.len() > USERS_MAX {
                break;
            }
        }
        if faults.is_empty() { Ok(table) } else { Err(faults) }
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the hash of the user. An unknown user gets the hash of another one, always the same for `seed`: so that
    /// the response takes as long as for a known user, even if the file contains hashes of different costs. Returns
    /// `None` if there is no user.
    pub fn find(&self, name: &str, seed: u64) -> Option<Candidate<'_>> {
        if let Some(index) = self.by_name.get(name) {
            return self.hashes.get(*index as usize).map(|hash| Candidate { hash, is_known: true });
        }
        let count = u64::try_from(self.hashes.len()).ok().filter(|count| *count > 0)?;
        let index = usize::try_from(seed % count).unwrap_or(0);
        self.hashes.get(index).map(|hash| Candidate { hash, is_known: false })
    }
}

/// Shows the number of users only.
impl fmt::Debug for UserTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserTable").field("users", &self.hashes.len()).finish_non_exhaustive()
    }
}

fn parse_line(line: &str) -> Result<(&str, PasswordHash), HashFault> {
    // The text before a colon may be shown. Without a colon, the line may be a hash.
    let Some((name, hash)) = line.split_once(':') else {
        return Err(HashFault { what: "the line has no colon".to_owned(), help: LINE_HELP });
    };
    if !is_valid_user(name) || name.starts_with('$') {
        let what = "the name of the user is empty, too long, or has spaces around it or control characters".to_owned();
        return Err(HashFault { what, help: LINE_HELP });
    }
    // Other programs store more fields after a second colon.
    let hash = hash.split(':').next().unwrap_or_default();
    match PasswordHash::parse(hash) {
        Ok(hash) => Ok((name, hash)),
        Err(HashFault { what, help }) => Err(HashFault { what: format!("the user `{name}`: {what}"), help }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    fn fault(text: &str) -> Vec<(usize, String)> {
        UserTable::parse(text).unwrap_err().into_iter().map(|fault| (fault.line, fault.what)).collect()
    }

    #[test]
    fn lines_may_end_and_start_in_different_ways() {
        let text = format!("# users\r\nalice:{BCRYPT}\r\n\r\n  \n#bob:x\njos\u{e9}:{BCRYPT}:comment  \n");
        let table = UserTable::parse(&text).unwrap();
        assert!(table.find("alice", 0).unwrap().is_known && table.find("jos\u{e9}", 0).unwrap().is_known);
        assert!(!table.find("bob", 7).unwrap().is_known && !table.find("", 8).unwrap().is_known);
        assert!(UserTable::parse("# nobody\n").unwrap().find("alice", 1).is_none());
    }

    #[test]
    fn unknown_users_get_each_hash_of_the_file() {
        let text = format!("a:{BCRYPT}\nb:{}\n", BCRYPT.replace("$2y$05", "$2y$06"));
        let table = UserTable::parse(&text).unwrap();
        let found = |seed| table.find("nobody", seed).unwrap().hash.text()[..6].to_owned();
        assert_eq!([found(0), found(1), found(2)], ["$2y$05", "$2y$06", "$2y$05"]);
    }

    #[test]
    fn faults_name_the_line_and_never_the_hash() {
        let text = format!("alice:{BCRYPT}\nbob:$apr1$abc$defdefdef\n{BCRYPT}\nalice:{BCRYPT}\n carol:{BCRYPT}\n");
        let faults = fault(&text);
        assert_eq!(faults.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(faults[0].1, "the user `bob`: it is an MD5 hash, which is quick to guess");
        assert_eq!(faults[2].1, "the user `alice` is in line 1 already");
        assert!(faults.iter().all(|(_, what)| !what.contains("defdef") && !what.contains("bvIG")));
        assert_eq!(fault(&"x\n".repeat(50)).len(), FAULTS_MAX);
        let many: String = (0..=USERS_MAX).map(|user| format!("u{user}:{BCRYPT}\n")).collect();
        assert_eq!(fault(&many), [(USERS_MAX + 1, "the file has more than 100000 users".to_owned())]);
    }
}
