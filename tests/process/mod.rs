//! The process: command line, reference of options, startup, systemd, socket files and file descriptors.

mod command_line;
mod demo;
mod file_descriptors;
mod json_log;
mod other_users;
mod reference;
mod socket_files;
mod startup;
mod systemd;
mod trust;
mod wrong_input;
