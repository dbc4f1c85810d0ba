//! What an import does with a setting of another proxy.

/// What an import does with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The written config does the same. Values for which it cannot become a comment, or close the route.
    Translated,
    /// No client and no server can tell whether the setting is there.
    NoEffect,
    /// The written config behaves differently, which a comment says.
    Differs,
    /// The setting may decide which clients are served. The routes in its scope answer 501.
    Protects,
}

impl Translation {
    /// Returns the verdict in the words of the manual.
    pub fn label(self) -> &'static str {
        match self {
            Translation::Translated => "translated",
            Translation::NoEffect => "no effect here",
            Translation::Differs => "a comment",
            Translation::Protects => "closes the route",
        }
    }
}
