//! The process: command line, startup, systemd, socket files and file descriptors.

mod command_line;
mod file_descriptors;
mod socket_files;
mod startup;
mod systemd;
mod trust;
