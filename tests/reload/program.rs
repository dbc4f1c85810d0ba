//! The program under test and the configs it starts with. Used by `config_files.rs`.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::client::fetch;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::wait_until;

/// A gateway whose config is alone in a directory, so that nothing else changes there.
pub struct Program {
    gateway: Gateway,
    pub config: PathBuf,
}

impl Deref for Program {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Gateway {
        &mut self.gateway
    }
}

impl Program {
    /// Starts the program with version 1 of the standard config.
    pub fn start() -> Program {
        Program::start_with(|dir| {
            let config = dir.join("sluicegate.toml");
            fs::write(&config, version(1)).unwrap();
            config
        })
    }

    /// `lay_out` writes the config under a directory and returns its path.
    pub fn start_with(lay_out: impl FnOnce(&Path) -> PathBuf) -> Program {
        let mut config = PathBuf::new();
        let gateway = Gateway::launch(&[], |dir| {
            let dir = dir.join("etc");
            fs::create_dir(&dir).unwrap();
            config = lay_out(&dir);
            vec!["run".to_owned(), "-c".to_owned(), config.display().to_string()]
        });
        Program { gateway, config }
    }

    /// Reloads the config over the admin listener; `query` is that of the request.
    #[track_caller]
    pub fn reload(&self, query: &str) -> Message {
        self.admin_request("POST", &format!("/-/reload{query}"), "", "")
    }

    /// Requests a reload with these headers, including `host`.
    #[track_caller]
    pub fn reload_as(&self, fields: &str) -> Message {
        fetch(self.admin, &format!("POST /-/reload HTTP/1.1\r\ncontent-length: 0\r\n{fields}\r\n"))
    }

    pub fn status(&self) -> Value {
        self.admin("/-/status").json()
    }

    pub fn generation(&self) -> u64 {
        self.status()["generation"].as_u64().unwrap()
    }

    #[track_caller]
    pub fn reloads(&self, result: &str, trigger: &str) -> f64 {
        let labels = [("result", result), ("trigger", trigger)];
        self.metric("config_reloads_total", &labels).unwrap_or_else(|| panic!("{labels:?} is missing"))
    }

    pub fn last_reload_successful(&self) -> bool {
        self.metric("config_last_reload_successful", &[]) == Some(1.0)
    }

    pub fn in_force(&self, version: usize) -> bool {
        self.metric("requests_in_flight", &[("route", &format!("v{version}"))]).is_some()
    }

    #[track_caller]
    pub fn until_in_force(&self, version: usize, how: &str) {
        wait_until(&format!("version {version} is active after {how}"), || self.in_force(version));
        assert!(self.last_reload_successful(), "{how}");
    }

    pub fn write(&self, text: &str) {
        fs::write(&self.config, text).unwrap();
    }
}

/// Saves this text as the config, in one of several ways.
pub type Save<'a> = &'a dyn Fn(&str);

/// Free ports of 127.0.0.1 for both listeners.
const SERVER: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n";

/// A config whose route is named after its version, so that the metrics show which is in force.
pub fn version(version: usize) -> String {
    format!("{SERVER}[[route]]\nname = \"v{version}\"\npath = \"/\"\nupstream = \"echo:\"\n")
}

/// The same with other addresses for requests and for the admin.
pub fn moved(number: usize, listen: &str, admin: &str) -> String {
    let server = format!("[server]\nlisten = [\"{listen}\"]\n\n[admin]\nlisten = \"{admin}\"\n\n");
    version(number).replace(SERVER, &server)
}

pub fn limited(burst: u32, comment: &str) -> String {
    format!(
        "# {comment}\n{SERVER}[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nrate = \"1/day\"\nburst = {burst}\nkey = \"ip\"\n"
    )
}
