//! Codes of mistakes and warnings: stable names for tools, for `docs/reference/diagnostics.md` and for comments that
//! allow a warning at one place (`allow`).
//!
//! To add a warning, add its code here, report it with `SourceTexts::add_warning`, describe it in
//! `docs/reference/diagnostics.md`, and add a config that causes it to `tests/config/codes.rs`.

use crate::labels::labels;

labels! {
    /// Code of a diagnostic. A code never gets another meaning, and the code of a removed warning stays unused.
    DiagnosticCode:
    /// A value or name is wrong.
    WrongValue = "SG0101",
    /// Something required is missing.
    MissingPart = "SG0102",
    InvalidToml = "SG0103",
    UnreadableFile = "SG0104",
    UnusedLimit = "SG0201",
    UnusedUpstream = "SG0202",
    /// Limits without `max_keys` get few keys in memory.
    FewKeys = "SG0203",
    /// A key has parts of two types of bodies.
    TwoBodyTypes = "SG0204",
    UnusedAcme = "SG0205",
    /// `hsts` on a listener for development.
    DevelopmentHsts = "SG0206",
    CertificateTerm = "SG0207",
    UncoveredHost = "SG0208",
    UnverifiedServers = "SG0209",
    /// No limit bounds guesses of passwords.
    UnlimitedGuesses = "SG0210",
    NoUsers = "SG0211",
    /// A route redirects to itself over one scheme.
    RedirectLoop = "SG0212",
    /// All requests share the budget of a limit by user.
    SharedByAll = "SG0213",
    /// A token of the admin API expires soon, or has expired.
    TokenExpires = "SG0214",
    /// A `[decide.NAME]` that nobody can ask about.
    UnusedDecide = "SG0215",
    /// A header that the gateway never states, because nothing verifies its value.
    NeverStated = "SG0216",
    /// Rows with errors in a file of overrides.
    SkippedRows = "SG0217",
    /// A receive buffer that cannot hold a packet.
    SmallReceiveBuffer = "SG0219",
    /// A route sets headers of CORS, and the gateway's own responses do not get them.
    CorsWithoutRefusals = "SG0231",
    /// Pages of strangers can act on behalf of a user, because a pattern of `cors` with `credentials` matches their
    /// origins.
    WideOrigins = "SG0233",
    /// `files` of a route has no files, or not one that `try` names.
    MissingFiles = "SG0232",
    /// `dns_program` of `[acme]` cannot be started.
    DnsProgram = "SG0241",
    /// The ACME server issues no certificate for a name.
    UnissuedName = "SG0242",
    /// `files` of a route serves a folder that is not made for that, or a file that the config uses.
    ExposedFolder = "SG0243",
    /// `owner` or `group` of a listener is unknown here.
    UnknownOwner = "SG0251",
    /// A long value can keep a regular expression busy for a long time.
    SlowExpression = "SG0252",
    /// A bound of 0, which is not "no bound".
    ZeroBound = "SG0253",
    /// A key that clients choose.
    ForgeableKey = "SG0301",
    /// A limit that never decides.
    IdleLimit = "SG0302",
    /// A route for logins whose limit admits everything without the store.
    OpenLogin = "SG0303",
    /// The admin listener is open to other machines.
    OpenAdmin = "SG0304",
    /// Limits that leave equivalent methods unlimited.
    UnlimitedMethods = "SG0305",
    /// A listener requires client certificates, and another one serves the same routes without.
    OpenBesideCertificates = "SG0306",
    /// A source or a condition reads a header that only trusted proxies may send, and there are none.
    RemovedHeader = "SG0307",
    /// A limit settles costs that it cannot carry over.
    ForgottenCosts = "SG0311",
    /// A limit refuses every request that announces no output.
    EstimateNeverFits = "SG0312",
    /// A success clears what the address of a client has failed at.
    ClearsByAddress = "SG0313",
    /// A name with `*` in the sources of a limit.
    WildcardName = "SG0321",
    /// A comment allows a warning that does not occur there.
    UnusedAllowance = "SG0901",
    /// A comment allows a code that does not exist or is not a warning.
    UnknownAllowance = "SG0902",
}

impl DiagnosticCode {
    /// Returns the code with a text; `None` if there is none.
    pub fn find(text: &str) -> Option<DiagnosticCode> {
        DiagnosticCode::ALL.iter().copied().find(|code| code.label() == text)
    }

    /// Returns whether a comment can allow it: not a mistake, and not a warning about such comments.
    pub fn can_be_allowed(self) -> bool {
        self.label() >= "SG0200" && self.label() < "SG0900"
    }
}

/// Returns all codes, for the test of the manual.
pub fn all_codes() -> impl Iterator<Item = &'static str> {
    DiagnosticCode::ALL.iter().map(|code| code.label())
}
