//! The config loader: the config that it builds from a good file, and the report that it writes for a bad one.

mod diff;
mod effective;
mod limit_tables;
mod loading;
mod reference;
mod secrets;
mod warnings;
