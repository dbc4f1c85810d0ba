//! `redirect` of a route, and that no client chooses where it leads.

mod maps;
mod open_redirects;
mod targets;
