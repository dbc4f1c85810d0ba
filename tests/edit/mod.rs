//! The config over HTTP: reading and editing its files, the history, rollbacks, and the list of routes.

mod attacks;
mod conditions;
mod edits;
mod history;
mod routes;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::http::Message;

/// A gateway whose config is alone in the directory `etc`, with its token.
struct Editor {
    gateway: Gateway,
    etc: PathBuf,
}

const TOKEN: &str = "authorization: Bearer s3cret-of-the-operator\r\n";
const MAIN: &str = "/-/config/files/sluicegate.toml";

/// A config whose route has this name. `admin` adds lines to `[admin]`.
fn named(name: &str, admin: &str) -> String {
    format!(
        "include = \"conf.d/*.toml\"\n\n[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 2\n\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret-of-the-operator\"\n{admin}\n\n\
         [[route]]\nname = \"{name}\"\npath = \"/\"\nrespond = {{ status = 200, body = \"{name}\" }}\n"
    )
}

/// The same with `edit = true`.
fn version(name: &str) -> String {
    named(name, "edit = true")
}

impl Editor {
    fn start() -> Editor {
        Editor::with(&version("one"))
    }

    fn with(config: &str) -> Editor {
        Editor::config_arguments(|dir| {
            fs::write(dir.join("sluicegate.toml"), config).unwrap();
            fs::create_dir(dir.join("conf.d")).unwrap();
        })
    }

    /// `lay_out` writes `sluicegate.toml` into a directory.
    fn config_arguments(lay_out: impl FnOnce(&Path)) -> Editor {
        let mut etc = PathBuf::new();
        let gateway = Gateway::launch(&[], |dir| {
            etc = dir.join("etc");
            fs::create_dir(&etc).unwrap();
            lay_out(&etc);
            vec!["run".to_owned(), "-c".to_owned(), etc.join("sluicegate.toml").display().to_string()]
        });
        Editor { gateway, etc }
    }

    fn main(&self) -> PathBuf {
        self.etc.join("sluicegate.toml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.main()).unwrap()
    }

    #[track_caller]
    fn get(&self, path: &str) -> Message {
        self.gateway.admin_request("GET", path, TOKEN, "")
    }

    #[track_caller]
    fn tag(&self, path: &str) -> String {
        let response = self.get(path);
        assert_eq!(response.status(), 200, "{}", response.text());
        response.get("etag").unwrap().to_owned()
    }

    /// Sends a new text of the main file, with the tag that it has now.
    #[track_caller]
    fn put(&self, text: impl AsRef<[u8]>) -> Message {
        self.put_to(MAIN, &self.tag(MAIN), text)
    }

    #[track_caller]
    fn put_to(&self, path: &str, tag: &str, text: impl AsRef<[u8]>) -> Message {
        let fields = format!("{TOKEN}content-type: application/toml\r\nif-match: {tag}\r\n");
        self.gateway.admin_request("PUT", path, &fields, text)
    }

    #[track_caller]
    fn roll_back(&self, generation: u64) -> Message {
        let tag = self.tag("/-/config/history");
        let fields = format!("{TOKEN}content-type: application/json\r\nif-match: {tag}\r\n");
        self.gateway.admin_request("POST", "/-/rollback", &fields, format!("{{\"generation\": {generation}}}"))
    }

    /// Returns the response to clients, which is the name of the config in force.
    #[track_caller]
    fn served(&self) -> String {
        self.gateway.get("/").text()
    }

    fn generation(&self) -> u64 {
        self.get("/-/status").json()["generation"].as_u64().unwrap()
    }

    /// Number of config loads since the start, by all triggers and with all results.
    fn loads(&self) -> f64 {
        let metrics = self.gateway.metrics();
        let loads = metrics.lines().filter(|line| line.starts_with("sluicegate_config_reloads_total"));
        loads.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Names in the directory of the config, without `conf.d`.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.etc).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "conf.d").collect()
    }
}

/// Sends the head of a request with a body of `length` bytes, but no body.
fn start_body(editor: &Editor, fields: &str, length: usize) -> Client {
    let mut client = Client::connect(editor.gateway.admin);
    client.send(crate::support::client::call("PUT", MAIN, fields, length));
    client
}
