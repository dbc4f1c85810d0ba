//! Pages in a real Chromium read the responses of another origin, refusals included.

use std::path::Path;

use super::app;
use crate::support::app::run;
use crate::support::gateway::Gateway;

#[test]
fn a_page_of_another_origin_reads_refusals() {
    let page = Gateway::start(
        "[[route]]\nrespond = { body = \"<!doctype html><title>page</title>\", content_type = \"text/html\" }\n",
    );
    let page_url = format!("http://{}", page.addr);
    let app = app();
    let url = app.url();
    let api = Gateway::with(
        &format!("cors = {{ origins = [\"{page_url}\"] }}\n"),
        &format!(
            "[[route]]\npath = \"/app\"\nupstream = \"{url}\"\n\
             [[route]]\npath = \"/limited\"\nupstream = \"{url}\"\nlimits = [\"one\"]\n\
             [[route]]\npath = \"/small\"\nupstream = \"{url}\"\nmax_body = 10\n\
             [[route]]\npath = \"/private\"\nupstream = \"{url}\"\nauth = {{ jwt = true }}\n\
             [[route]]\npath = \"/down\"\nupstream = \"http://127.0.0.1:1\"\n\
             [[route]]\npath = \"/own\"\nrespond = {{ body = \"own\" }}\ncors = false\n\
             [limit.one]\nrate = \"1/day\"\nkey = \"ip\"\n\
             [jwt]\nkey = \"0123456789abcdef0123456789abcdef\"\nalgorithms = [\"HS256\"]\n"
        ),
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cors/page.js");
    // The same page has another origin by another name.
    let unlisted = page_url.replace("127.0.0.1", "localhost");
    run("node", "nodejs", &[script.to_str().unwrap(), &page_url, &unlisted, &format!("http://{}", api.addr)]);
}
