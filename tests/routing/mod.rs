//! Which route serves a request, and what a route does without an upstream server.

mod locations;
mod methods;
mod mirror;
mod rewrites;
mod routes;
mod slashes;
mod spellings;
