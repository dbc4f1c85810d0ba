//! Section `[geo]`: the database of countries. Called by `compile`.

use std::sync::Arc;

use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::geo;
use crate::geo::GeoDatabase;

/// Remedy for a limit that reads countries while there is no database.
pub const GEO_HELP: &str = "add one:\n\n[geo]\nfile = \"GeoLite2-Country.mmdb\"";
/// The largest database, in bytes. Those with cities have about 100 MiB.
const DATABASE_SIZE_MAX: u64 = 512 * 1024 * 1024;

/// Reads the database. `is_written`: there is such a section.
pub fn compile_geo(section: &Section, is_written: bool) -> Option<Arc<GeoDatabase>> {
    let node = section.node(&geo::FILE);
    section.report_unknown();
    let Some(node) = node else {
        let remedy = "write file = \"GeoLite2-Country.mmdb\"";
        return is_written.then(|| section.report_missing("[geo] has no `file`".to_owned(), remedy))?;
    };
    let path = section.read_string(&geo::FILE)?;
    let sources = section.sources;
    let path = sources.resolve_path(node.place.file, &path);
    let bytes = match sources.read_bytes(&path, DATABASE_SIZE_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            sources.add_mistake(Diagnostic::new(node.place, message).with_help(error.help()));
            return None;
        }
    };
    const HELP: &str = "download it again, for example GeoLite2-Country.mmdb of MaxMind";
    match GeoDatabase::from_bytes(bytes) {
        Ok(database) if database.has_countries() => Some(Arc::new(database)),
        Ok(database) => {
            let what = format!("the database ({}) lists no countries", database.database_type());
            section.report_fault(geo::FILE.name, node, &what, "give one with countries, like GeoLite2-Country.mmdb")
        }
        Err(error) => section.report_fault(geo::FILE.name, node, &format!("the database is damaged: {error}"), HELP),
    }
}
