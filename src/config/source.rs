//! The texts that a config consists of: the file, its includes, and the files of sets and secrets. Collects their
//! contents, their hash and every mistake of the load.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::config::closest;
use crate::config::diagnostics::allow;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::hidden::Substitution;
use crate::config::diagnostics::report::{Diagnostic, Place, Report, SourceText};
use crate::config::expressions::{ExpressionFlags, find_slowness};
use crate::config::texts::TextOverlay;
use crate::config::unreadable;
use crate::config::unreadable::{FILE_SIZE_MAX, Unreadable};
use crate::config::values;
use crate::limiting::limit::when::Pattern;
use crate::names::{TextFault, invalid_text};
use crate::net::Nat64;

/// What the first line of a private key in PEM contains.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// A minimal config, shown in messages for copying.
pub const SMALLEST: &str = "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:3000\"";

/// The kinds of private files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateFile {
    Config,
    Secret,
    Key,
    Passwords,
    State,
}

#[derive(Default)]
pub struct SourceTexts {
    texts: RefCell<Vec<Arc<SourceText>>>,
    files: RefCell<Vec<PathBuf>>,
    /// The main file and its includes: index of the text, and path.
    pub(super) config_files: RefCell<Vec<(usize, PathBuf)>>,
    /// Texts to use instead of files.
    pub(super) overlay: TextOverlay,
    hash: RefCell<Sha256>,
    mistakes: RefCell<Vec<Diagnostic>>,
    /// Values of `${...}` in the files.
    substitutions: RefCell<Vec<Substitution>>,
    /// Statements that load but are probably mistakes.
    warnings: RefCell<Vec<Diagnostic>>,
    /// Patterns for names of routes, in conditions and overrides.
    route_patterns: RefCell<Vec<(Place, Pattern)>>,
    /// Files and directories that no client may fetch.
    pub(in crate::config) private_files: RefCell<Vec<(PathBuf, PrivateFile)>>,
    /// A route has `merge_slashes = false`.
    keeps_slashes: Cell<bool>,
    /// Values with repeated slashes, and how they are written without.
    slashed_values: RefCell<Vec<(Place, String)>>,
    /// Folders that routes serve.
    pub(in crate::config) served_folders: RefCell<Vec<(Place, PathBuf)>>,
    /// `nat64` of the config.
    nat64: OnceCell<Nat64>,
    /// Keys that were read; a test compares them with the reference config.
    seen: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

impl SourceTexts {
    /// Creates the texts of a load that uses those of `overlay` instead of files.
    pub fn with_overlay(overlay: TextOverlay) -> SourceTexts {
        SourceTexts { overlay, ..SourceTexts::default() }
    }

    pub fn add_mistake(&self, mistake: Diagnostic) {
        self.mistakes.borrow_mut().push(mistake);
    }

    pub fn add_warning(&self, code: DiagnosticCode, warning: Diagnostic) {
        self.warnings.borrow_mut().push(warning.with_code(code));
    }

    /// Warns of a regular expression for which a client can choose values that cost much time.
    pub fn warn_if_slow(&self, place: Place, pattern: &str, flags: ExpressionFlags) {
        if let Some(TextFault { what, help }) = find_slowness(pattern, flags) {
            self.add_warning(DiagnosticCode::SlowExpression, Diagnostic::new(place, what).with_help(help));
        }
    }

    /// Remembers a pattern that the name of a route must match.
    pub fn add_route_pattern(&self, place: Place, pattern: Pattern) {
        self.route_patterns.borrow_mut().push((place, pattern));
    }

    /// Reports the patterns that none of the names of routes matches.
    pub fn report_unknown_routes(&self, names: &[&str]) {
        for (place, pattern) in self.route_patterns.take() {
            if names.iter().any(|name| pattern.matches(name.as_bytes())) {
                continue;
            }
            let help = match &pattern {
                Pattern::Text(text) => closest::find_closest(text, names.iter().copied()),
                _ => None,
            };
            let help =
                help.map_or_else(|| "write the `name` of a route".to_owned(), |name| format!("did you mean `{name}`?"));
            self.add_mistake(Diagnostic::new(place, "no route has such a name").with_help(help));
        }
    }

    /// Remembers a value that only requests of a route with `merge_slashes = false` can have. `merged`: how it is written
    /// for other routes; may be empty.
    pub fn add_slashed_value(&self, place: Place, merged: String) {
        self.slashed_values.borrow_mut().push((place, merged));
    }

    /// Accepts values with repeated slashes, because a route keeps them.
    pub fn keep_slashes(&self) {
        self.keeps_slashes.set(true);
    }

    /// Returns whether a route has `merge_slashes = false`.
    pub fn keeps_slashes(&self) -> bool {
        self.keeps_slashes.get()
    }

    /// Reports the values with repeated slashes if every route merges them.
    pub fn report_slashed_values(&self) {
        if self.keeps_slashes() {
            return;
        }
        for (place, merged) in self.slashed_values.take() {
            let what = "no request has such a path, because every route merges repeated slashes".to_owned();
            let written =
                if merged.is_empty() { "write it without `//`".to_owned() } else { format!("write `{merged}`") };
            let help = format!("{written}, or set merge_slashes = false on the route");
            let TextFault { what, help } = self.hide_value(place, TextFault { what, help });
            self.add_mistake(Diagnostic::new(place, what).with_help(help));
        }
    }

    /// Returns all warnings so far that no comment allows, with the texts they refer to.
    pub fn warning_report(&self) -> Option<Report> {
        let texts = self.texts.borrow().clone();
        let mut warnings = allow::apply_allowances(&texts, self.warnings.take());
        hide_values(&texts, &self.substitutions.borrow(), &mut warnings);
        Report::from_warnings(texts, warnings)
    }

    /// Returns all texts so far.
    pub fn texts(&self) -> Vec<Arc<SourceText>> {
        self.texts.borrow().clone()
    }

    pub fn has_mistakes(&self) -> bool {
        !self.mistakes.borrow().is_empty()
    }

    /// Records the value of a `${...}`.
    pub fn add_substitution(&self, substitution: Substitution) {
        let mut substitutions = self.substitutions.borrow_mut();
        if !substitutions.contains(&substitution) {
            substitutions.push(substitution);
        }
    }

    /// Returns what is wrong with the value at `place`, without the value if it contains a `${...}`: a message could show it
    /// in another spelling, which [`Substitution::hide_value`] does not find.
    pub fn hide_value(&self, place: Place, fault: TextFault) -> TextFault {
        match self.source(place.file).text.get(place.start..place.end) {
            Some(written) if written.contains("${") => TextFault {
                what: "the value of `${...}` is not valid here".to_owned(),
                help: "correct the variable or the file".to_owned(),
            },
            _ => fault,
        }
    }

    /// Sets the translators behind which [`SourceTexts::parse_network`] accepts no network.
    pub fn set_nat64(&self, nat64: Nat64) {
        let _ = self.nat64.set(nat64);
    }

    /// Parses an address or a network of clients or proxies.
    ///
    /// # Errors
    /// The text is not one, or no request can come from it.
    pub fn parse_network(&self, text: &str) -> Result<IpNet, TextFault> {
        values::parse_cidr(text).and_then(|net| self.check_network(net, text))
    }

    /// Checks that requests can come from a network that is written as `text`.
    ///
    /// # Errors
    /// The network is behind a translator, so its clients have IPv4 addresses.
    pub fn check_network(&self, net: IpNet, text: &str) -> Result<IpNet, TextFault> {
        if !self.nat64.get().is_some_and(|nat64| nat64.has_translated(&net)) {
            return Ok(net);
        }
        invalid_text(
            format!("no request comes from `{text}`: it is behind NAT64, whose clients have their IPv4 addresses here"),
            "write the IPv4 address or network of the clients (`nat64` in [server] has the prefixes)",
        )
    }

    pub fn mark_key_seen(&self, section: &'static str, key: &'static str) {
        self.seen.borrow_mut().insert((section, key));
    }

    pub fn seen_keys(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.seen.borrow().clone()
    }

    pub fn source(&self, file: usize) -> Arc<SourceText> {
        self.texts.borrow()[file].clone()
    }

    pub fn add_source(&self, name: String, dir: PathBuf, text: String) -> usize {
        let mut texts = self.texts.borrow_mut();
        texts.push(Arc::new(SourceText { name, text, dir }));
        texts.len() - 1
    }

    /// Returns whether there is a text of that name.
    pub fn has_source(&self, name: &str) -> bool {
        self.texts.borrow().iter().any(|text| text.name == name)
    }

    /// Resolves a path that source `file` contains.
    pub fn resolve_path(&self, file: usize, path: &str) -> PathBuf {
        self.source(file).dir.join(path)
    }

    /// Resolves a path that source `file` contains to an absolute one: two ways of writing it are equal then.
    pub fn resolve_absolute(&self, file: usize, path: &str) -> PathBuf {
        let path = self.resolve_path(file, path);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Reads a file that is text, without a byte order mark, and watches it even if it cannot be read.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read_file(&self, path: &Path) -> Result<String, Unreadable> {
        self.read_text(path, |bytes| unreadable::decode_text(path, bytes))
    }

    /// Reads a file with certificates or keys in PEM in the same way. What stands between them is a comment, in any encoding.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read_pem(&self, path: &Path) -> Result<String, Unreadable> {
        let text = self.read_text(path, |bytes| unreadable::decode_pem(path, bytes))?;
        if text.contains(PRIVATE_KEY) {
            self.add_private_file(path, PrivateFile::Key);
        }
        Ok(text)
    }

    fn read_text(
        &self,
        path: &Path,
        decode: impl FnOnce(Vec<u8>) -> Result<String, Unreadable>,
    ) -> Result<String, Unreadable> {
        self.watch_path(path.to_owned());
        if let Some(text) = self.overlay.text(path) {
            self.add_to_digest(text.as_bytes());
            return Ok(unreadable::without_mark(text.to_owned()));
        }
        let bytes = unreadable::read_bytes(path, FILE_SIZE_MAX)?;
        self.add_to_digest(&bytes);
        decode(bytes)
    }

    /// Reads a file of at most `max` bytes that is not text, and watches it.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read_bytes(&self, path: &Path, max: u64) -> Result<Vec<u8>, Unreadable> {
        self.watch_path(path.to_owned());
        let bytes = unreadable::read_bytes(path, max)?;
        self.add_to_digest(&bytes);
        Ok(bytes)
    }

    /// Remembers a file or directory that no client may fetch.
    pub fn add_private_file(&self, path: &Path, kind: PrivateFile) {
        self.private_files.borrow_mut().push((path.to_owned(), kind));
    }

    /// Remembers a folder that a route serves.
    pub fn add_served_folder(&self, place: Place, path: &Path) {
        self.served_folders.borrow_mut().push((place, path.to_owned()));
    }

    /// Watches `path`, which need not be a file.
    pub fn watch_path(&self, path: PathBuf) {
        let mut files = self.files.borrow_mut();
        if !files.contains(&path) {
            files.push(path);
        }
    }

    pub fn add_to_digest(&self, bytes: &[u8]) {
        let mut hash = self.hash.borrow_mut();
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }

    pub fn hash(&self) -> String {
        hex::encode(self.hash.borrow().clone().finalize())
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().clone()
    }

    pub fn into_report(self) -> Report {
        let (texts, mut mistakes) = (self.texts.into_inner(), self.mistakes.into_inner());
        hide_values(&texts, &self.substitutions.borrow(), &mut mistakes);
        Report::new(texts, mistakes, self.files.into_inner())
    }
}

/// Replaces values of `${...}`, which may be secrets, by their expression in all messages.
fn hide_values(texts: &[Arc<SourceText>], substitutions: &[Substitution], messages: &mut [Diagnostic]) {
    for hidden in substitutions.iter().filter_map(|substitution| substitution.if_hideable(texts)) {
        messages.iter_mut().flat_map(Diagnostic::texts_mut).for_each(|text| hidden.hide_value(text));
    }
}
