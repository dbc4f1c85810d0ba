//! Error pages: their formats, the files of `error_pages`, replaced responses of servers, and hostile values in them.

mod browser;
mod files;
mod formats;
mod hsts;
mod intercept;
