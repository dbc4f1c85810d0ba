//! A config file is not loaded while a program has it open for writing.

use std::fs;
use std::io::Write;
use std::time::Duration;

use super::program::{Program, version};

/// Events do not tell that these files are open: another program closes the file, it is renamed while it is open, or it is
/// written under another name.
#[test]
fn an_open_file_is_not_loaded_under_any_name() {
    let gateway = Program::start();
    std::thread::sleep(Duration::from_millis(700));
    let dir = gateway.config.parent().unwrap();
    for (number, how) in (2..).zip(["close", "rename", "link"]) {
        let path = match how {
            "close" => gateway.config.clone(),
            "rename" => dir.join("next"),
            _ => dir.parent().unwrap().join("link"),
        };
        if how == "link" {
            fs::hard_link(&gateway.config, &path).unwrap();
        }
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(version(number).as_bytes()).unwrap();
        match how {
            "close" => drop(fs::OpenOptions::new().append(true).open(&path).unwrap()),
            "rename" => fs::rename(&path, &gateway.config).unwrap(),
            _ => {}
        }
        // Writes through the link are noticed by polling.
        std::thread::sleep(Duration::from_secs(if how == "link" { 9 } else { 1 }));
        assert_eq!(gateway.generation() as usize, number - 1, "{how}");
        file.write_all(b"# end\n").unwrap();
        drop(file);
        gateway.until_in_force(number, how);
    }
}
