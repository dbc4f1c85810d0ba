//! Error pages: their formats, the files of `error_pages`, replaced responses of servers, hostile values in them,
//! and headers of all responses that the gateway makes.

mod browser;
mod files;
mod formats;
mod hsts;
mod intercept;
mod own_headers;
