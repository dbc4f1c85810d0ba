//! Which route serves a request, and what a route does without an upstream server.

mod methods;
mod routes;
mod spellings;
