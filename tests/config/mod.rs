//! The config loader: the config that it builds from a good file, and the report that it writes for a bad one.

mod codes;
mod diff;
mod diff_options;
mod effective;
mod exposed_files;
mod hostile_text;
mod json_schema;
mod limit_tables;
mod loading;
mod option_frames;
mod option_table;
mod options_page;
mod reasons_page;
mod secrets;
mod warnings;
mod weaker_marks;
