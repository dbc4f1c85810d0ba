//! Hostile values in pages, in a real Chromium: none of them is executed, and all of them are shown.

use std::fs;
use std::process::Command;

use super::files::start;
use super::formats::BROWSER;
use crate::support::client::get;

/// A page with a placeholder in every place where a request id may stand.
const PAGE: &str = "<!doctype html><meta charset=\"utf-8\"><title>{status} {request_id}</title>\n\
                    <p id=\"text\">{request_id}</p>\n<p id=\"attributes\" title=\"{request_id}\" data-id='{request_id}'>x</p>\n\
                    <input value=\"{request_id}\"><textarea>{request_id}</textarea>\n\
                    <a href=\"/help?id={request_id}#x\">help</a><style>p{color:red}</style>\n\
                    <script>var status = {status}; if (status) { document.body.dataset.ran = 'own' }</script>\n";

fn payloads() -> Vec<String> {
    let scripts = ["hack()", "hack(1)", "eval('hack()')", "window.hack()", "top.hack()"];
    let mut payloads = Vec::new();
    for script in scripts {
        for pattern in [
            "<script>@</script>",
            "<SCRIPT SRC=data:,@></SCRIPT>",
            "<img src=x onerror=@>",
            "<svg onload=@>",
            "<svg/onload=@>",
            "<body onload=@>",
            "<iframe srcdoc=\"<script>parent.@</script>\">",
            "<iframe src=javascript:parent.@>",
            "\"><script>@</script>",
            "'><script>@</script>",
            "\" onmouseover=@ autofocus onfocus=@ x=\"",
            "' autofocus onfocus=@ x='",
            "` onfocus=@ autofocus x=`",
            "</p><script>@</script>",
            "</title><script>@</script>",
            "</textarea><script>@</script>",
            "</style><script>@</script>",
            "--><script>@</script>",
            "--!><script>@</script>",
            "]]><script>@</script>",
            "javascript:@",
            "data:text/html,<script>parent.@</script>",
            "{{constructor.constructor('@')()}}",
            "${@}",
            "\\\";@;//",
            "\\u003cscript\\u003e@\\u003c/script\\u003e",
            "&lt;script&gt;@&lt;/script&gt;",
            "&#60;script&#62;@&#60;/script&#62;",
            "%3Cscript%3E@%3C/script%3E",
            "<math><mtext><script>@</script>",
            "<template><script>@</script></template>",
            "<details open ontoggle=@>",
            "<video><source onerror=@>",
            "<object data=javascript:@>",
            "<embed src=javascript:@>",
            "<form><button formaction=javascript:@>",
            "<base href=javascript:@//>",
            "<meta http-equiv=refresh content=\"0;url=javascript:@\">",
            "<link rel=stylesheet href=data:text/css,x onload=@>",
            "+ADw-script+AD4-@+ADw-/script+AD4-",
        ] {
            payloads.push(pattern.replace('@', script));
        }
    }
    payloads
}

#[test]
fn two_hundred_hostile_values_are_text() {
    let payloads = payloads();
    assert!(payloads.len() >= 200, "{}", payloads.len());
    let route = "[[route]]\npath = \"/own\"\nupstream = \"http://127.0.0.1:1\"\nerror_pages = { 502 = \"502.html\" }\n\n\
                 [[route]]\npath = \"/builtin\"\nupstream = \"http://127.0.0.1:1\"\n";
    let server = "access_log = true\ntrusted_proxies = [\"127.0.0.1\"]";
    let gateway = start(server, route, &[("502.html", PAGE)]);
    let dir = tempfile::tempdir().unwrap();
    let mut client = gateway.client();
    let (mut frames, mut count) = (String::new(), 0);
    for target in ["/own", "/builtin"] {
        for payload in &payloads {
            let page = client.fetch(&get(target, &format!("x-request-id: {payload}\r\n{BROWSER}")), "");
            assert_eq!(page.status(), 502, "{payload}");
            assert!(page.text().contains("&#"), "{payload}");
            // `hack` exists before the page is parsed. The page itself is as the gateway sent it.
            let hooked = format!("<script>window.hack = () => {{ parent.hacks++ }}</script>{}", page.text());
            fs::write(dir.path().join(format!("{count}.html")), hooked).unwrap();
            frames += &format!("<iframe src=\"{count}.html\" data-own=\"{}\"></iframe>\n", u8::from(target == "/own"));
            count += 1;
        }
    }
    let ids = serde_json::to_string(&[payloads.clone(), payloads.clone()].concat()).unwrap().replace('<', "\\u003c");
    let frame_set = format!(
        "<!doctype html><meta charset=utf-8><body><script>hacks = 0; ids = {ids};</script>\n{frames}<script>\n\
         onload = () => {{ let shown = 0, ran = 0; document.querySelectorAll('iframe').forEach((frame, i) => {{\n\
         const page = frame.contentDocument;\n\
         const id = frame.dataset.own === '1' ? page.querySelector('#text') : page.querySelector('code');\n\
         if (id && id.textContent === ids[i]) shown++;\n\
         if (frame.dataset.own === '1') {{ const p = page.querySelector('#attributes');\n\
         if (p.title === ids[i] && p.dataset.id === ids[i] && page.querySelector('input').value === ids[i]) ran++; }}\n\
         for (const element of page.querySelectorAll('input, a, button')) element.focus();\n\
         }}); setTimeout(() => {{ document.title = `hacks ${{hacks}} shown ${{shown}} whole ${{ran}}`; }}, 1000) }};\n\
         </script>"
    );
    fs::write(dir.path().join("index.html"), frame_set).unwrap();
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--allow-file-access-from-files", "--virtual-time-budget=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}/index.html", dir.path().display()))
        .env("HOME", dir.path())
        .output()
        .unwrap_or_else(|error| panic!("chromium: {error}; install it: apt-get install chromium"));
    let dom = String::from_utf8_lossy(&output.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap_or_default();
    assert_eq!(
        title,
        format!("hacks 0 shown {count} whole {}", payloads.len()),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
