//! Pages of other origins (CORS): what browsers let them read, and preflights.

mod browser;
mod preflights;
mod responses;

use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

const PAGE: &str = "https://app.test";

/// An application that sends headers of its own, each twice, and switches protocols if the client asks for it.
fn app() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let status = match request.get("upgrade") {
                Some(_) => "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket",
                None => "200 OK\r\ncontent-length: 2",
            };
            let mut head = format!("HTTP/1.1 {status}\r\nvary: accept\r\n");
            for value in ["https://app.test", "*"] {
                head +=
                    &format!("access-control-allow-origin: {value}\r\naccess-control-allow-credentials: {value}\r\n");
                head += &format!("access-control-allow-methods: {value}\r\naccess-control-expose-headers: {value}\r\n");
            }
            peer.send(head + "\r\n")?;
            if request.get("upgrade").is_some() {
                return peer.finish();
            }
            peer.send("ok")?;
        }
        Ok(())
    })
}

/// A gateway with a route for each kind of response. `cors` of `[server]` is for all but `/own` and `/admin`.
fn start(app: &Upstream, silent: &Upstream) -> Gateway {
    let (url, silent) = (app.url(), silent.url());
    let routes = format!(
        "[[route]]\nname = \"app\"\npath = \"/app\"\nupstream = \"{url}\"\n\
         [[route]]\nname = \"limited\"\npath = \"/limited\"\nupstream = \"{url}\"\nlimits = [\"one\"]\n\
         [[route]]\nname = \"small\"\npath = \"/small\"\nupstream = \"{url}\"\nmax_body = 10\n\
         [[route]]\nname = \"private\"\npath = \"/private\"\nupstream = \"{url}\"\nauth = {{ jwt = true }}\n\
         limits = [\"by-user\"]\n\
         [[route]]\nname = \"denied\"\npath = \"/denied\"\nupstream = \"{url}\"\ndeny = [\"127.0.0.0/8\"]\n\
         [[route]]\nname = \"down\"\npath = \"/down\"\nupstream = \"http://127.0.0.1:1\"\n\
         [[route]]\nname = \"slow\"\npath = \"/slow\"\nupstream = \"{silent}\"\nresponse_timeout = \"50ms\"\n\
         [[route]]\nname = \"held\"\npath = \"/held\"\nupstream = \"{silent}\"\nmax_in_flight = 1\n\
         [[route]]\nname = \"fixed\"\npath = \"/fixed\"\nrespond = {{ body = \"fixed\" }}\n\
         [[route]]\nname = \"moved\"\npath = \"/moved\"\nredirect = \"/fixed\"\n\
         [[route]]\nname = \"edited\"\npath = \"/edited\"\nupstream = \"http://127.0.0.1:1\"\n\
         response_headers = {{ set = {{ vary = \"cookie\" }}, default = {{ x-default = \"d\" }}, add = {{ x-added = \"a\" }}, on = \"all\" }}\n\
         [[route]]\nname = \"reader\"\npath = \"/methods\"\nmethods = [\"GET\"]\nrespond = {{ body = \"read\" }}\n\
         cors = {{ origins = [\"*\"] }}\n\
         [[route]]\nname = \"writer\"\npath = \"/methods\"\nmethods = [\"PUT\", \"PURGE\"]\nrespond = {{ body = \"written\" }}\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nupstream = \"{url}\"\ncors = false\n\
         [[route]]\nname = \"admin\"\npath = \"/admin\"\nupstream = \"{url}\"\nratelimit_headers = [\"legacy\", \"draft-03\"]\n\
         cors = {{ origins = [\"https://admin.test\", \"https://*.staff.test\", \"~ http://localhost:[0-9]+\", \"null\"], \
         methods = \"*\", headers = \"*\", expose = [\"x-total\", \"retry-after\"], max_age = \"1h\" }}\n\
         [limit.one]\nrate = \"1/day\"\nkey = \"ip\"\n[limit.by-user]\nrate = \"1/day\"\nkey = \"user\"\n\
         [jwt]\nkey = \"0123456789abcdef0123456789abcdef\"\nalgorithms = [\"HS256\"]\n"
    );
    let server =
        "access_log = true\ncors = { origins = [\"https://app.test\", \"https://other.test\"], credentials = true }\n";
    Gateway::with(server, &routes)
}
