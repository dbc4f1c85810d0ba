//! Access logs of other programs: of Caddy, nginx and HAProxy as they write them, of others as they are documented.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::workdir::Dir;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

/// Two requests per hour for each client, and for each `x-key`.
const CONFIG: &str = "[[route]]\nhost = \"a.test\"\nupstream = \"echo:\"\nlimits = [\"per-ip\", \"per-key\"]\n\
                      [limit.per-ip]\nrate = \"2/h\"\nkey = [\"ip\", \"path\", \"query:q\"]\n\
                      [limit.per-key]\nrate = \"2/h\"\nkey = \"header:x-key\"\nmissing = \"skip\"\n";

/// The same without the second limit.
const BY_CLIENT: &str = "[[route]]\nhost = \"a.test\"\nupstream = \"echo:\"\nlimits = \"per-ip\"\n\
                         [limit.per-ip]\nrate = \"2/h\"\nkey = [\"ip\", \"path\", \"query:q\"]\n";

/// A program that ends with the test.
struct Running(Child);

impl Running {
    fn start(program: &str, args: &[&str], dir: &Path, addr: SocketAddr) -> Running {
        let mut command = Command::new(program);
        let child = command.args(args).current_dir(dir).env("HOME", dir).stdin(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().unwrap_or_else(|_| panic!("the tests need {program}: apt-get install {program}"));
        let running = Running(child);
        wait_until(program, || TcpStream::connect(addr).is_ok());
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends three requests with one key, from one client.
fn send_requests(addr: SocketAddr) {
    for _ in 0..3 {
        let mut stream = TcpStream::connect(addr).unwrap();
        let head = "GET /a%20b?q=1&r=\"x\" HTTP/1.1\r\nhost: a.test\r\nuser-agent: probe \"1\"\r\nx-key: k\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut text);
    }
}

/// Replays the log. Returns how many requests each limit has seen and refused.
#[track_caller]
fn replay(dir: &Dir, log: &str, format: &str, more: &[&str]) -> [(u64, u64); 2] {
    let report = dir.json(&[&[log], more].concat(), b"");
    let source = &report["logs"][0];
    assert_eq!(source["format"], format, "{report}");
    let count = |limit: usize, name: &str| report["limits"][limit][name].as_u64().unwrap_or(0);
    [0, 1].map(|limit| (count(limit, "requests"), count(limit, "refused")))
}

#[test]
fn logs_of_caddy_have_all_headers() {
    let dir = Dir::new(CONFIG);
    let port = ReservedPort::new();
    let caddyfile = format!(
        "{{\n admin off\n auto_https off\n}}\nhttp://:{} {{\n bind 127.0.0.1\n log {{\n  output file access.log\n }}\n respond ok\n}}\n",
        port.port()
    );
    dir.write("Caddyfile", caddyfile.as_bytes());
    let args = ["run", "--config", "Caddyfile", "--adapter", "caddyfile"];
    let _caddy = Running::start("caddy", &args, dir.0.path(), port.addr());
    send_requests(port.addr());
    let path = dir.0.path().join("access.log");
    let lines = || std::fs::read_to_string(&path).unwrap_or_default().matches("handled request").count();
    wait_until("Caddy logs", || lines() == 3);
    assert_eq!(replay(&dir, "access.log", "caddy", &[]), [(3, 1), (3, 1)]);
}

#[test]
fn json_of_nginx_has_the_fields_that_its_format_names() {
    let dir = Dir::new(CONFIG);
    let port = ReservedPort::new();
    for (name, fields) in [
        (
            "named",
            r#"{"time_iso8601":"$time_iso8601","msec":"$msec","remote_addr":"$remote_addr","request_method":"$request_method","http_host":"$http_host","request_uri":"$request_uri","status":"$status","request_time":"$request_time","http_x_key":"$http_x_key","http_user_agent":"$http_user_agent"}"#,
        ),
        (
            "short",
            r#"{"ts":$msec,"client":"$remote_addr","request":"$request","host":"$host","status":$status,"http_x_key":"$http_x_key"}"#,
        ),
    ] {
        let conf = format!(
            "daemon off; master_process off; pid p; error_log e; events {{}} http {{ log_format own escape=json '{fields}'; access_log {name}.log own; \
             client_body_temp_path b; proxy_temp_path t; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s; \
             server {{ listen {}; return 204; }} }}",
            port.addr()
        );
        let file = format!("{name}.conf");
        dir.write(&file, conf.as_bytes());
        let prefix = format!("{}/", dir.0.path().display());
        let nginx = Running::start("nginx", &["-p", &prefix, "-c", &file, "-e", "stderr"], dir.0.path(), port.addr());
        send_requests(port.addr());
        let path = dir.0.path().join(format!("{name}.log"));
        let lines = || std::fs::read_to_string(&path).unwrap_or_default().matches("a%20b").count();
        wait_until("nginx logs", || lines() == 3);
        drop(nginx);
        assert_eq!(replay(&dir, &format!("{name}.log"), "nginx json", &[]), [(3, 1), (3, 1)], "{name}");
    }
}

#[test]
fn logs_of_haproxy_have_no_headers() {
    let dir = Dir::new(CONFIG);
    let port = ReservedPort::new();
    let syslog = UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let cfg = format!(
        "global\n log {} local0\ndefaults\n mode http\n option httplog\n log global\n timeout client 5s\n timeout server 5s\n \
         timeout connect 5s\nfrontend main\n bind {}\n http-request capture req.hdr(user-agent) len 20\n http-request return status 200\n",
        syslog.local_addr().unwrap(),
        port.addr()
    );
    dir.write("haproxy.cfg", cfg.as_bytes());
    let _haproxy = Running::start("haproxy", &["-f", "haproxy.cfg"], dir.0.path(), port.addr());
    send_requests(port.addr());
    let mut log = Vec::new();
    while log.iter().filter(|byte| **byte == b'\n').count() < 3 {
        let mut line = [0; 4096];
        let length = syslog.recv(&mut line).unwrap();
        if line[..length].windows(3).any(|at| at == b"GET") {
            log.extend(line[..length].trim_ascii_end());
            log.push(b'\n');
        }
    }
    dir.write("haproxy.log", &log);
    // Without the header, the second limit sees nothing.
    assert_eq!(replay(&dir, "haproxy.log", "haproxy", &["--host", "a.test"]), [(3, 1), (0, 0)]);
    let (code, stdout, _) = dir.replay(&["haproxy.log", "--host", "a.test"], b"");
    assert!(code == 0 && stdout.contains("read as UTC") && stdout.contains("header:x-key"), "{stdout}");
}

/// Lines as the documentation of these programs shows them: the format, a line, and whether it names the host.
const DOCUMENTED: [(&str, &str, &str); 8] = [
    (
        "caddy",
        r#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"a.test","uri":"/a?q=1","headers":{"User-Agent":["curl/7.82.0"],"X-Key":["k"],"Cookie":["REDACTED"]},"tls":{"resumed":false,"version":772}},"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#,
        "k",
    ),
    (
        "traefik",
        r#"{"ClientAddr":"192.0.2.7:53298","ClientHost":"192.0.2.7","ClientPort":"53298","ClientUsername":"-","DownstreamContentSize":5,"DownstreamStatus":200,"Duration":1234567,"OriginStatus":200,"RequestAddr":"a.test","RequestContentSize":0,"RequestHost":"a.test","RequestMethod":"GET","RequestPath":"/a?q=1","RequestPort":"-","RequestProtocol":"HTTP/1.1","RequestScheme":"http","RouterName":"web@docker","StartLocal":"2026-06-08T08:04:43.123456789Z","StartUTC":"2026-06-08T08:04:43.123456789Z","entryPointName":"web","level":"info","msg":"","request_User-Agent":"curl/8","request_X-Key":"k","time":"2026-06-08T08:04:43Z"}"#,
        "k",
    ),
    ("common", r#"192.0.2.7 - - [08/Jun/2026:08:04:43 +0000] "GET http://a.test/a?q=1 HTTP/1.1" 200 5"#, ""),
    (
        "combined",
        r#"a.test:443 192.0.2.7 - - [08/Jun/2026:08:04:43 +0000] "GET /a?q=1 HTTP/1.1" 200 5 "-" "-" 1 "web@docker" "http://10.0.0.2:80" 3ms"#,
        "",
    ),
    (
        "haproxy",
        r#"Feb  6 12:14:14 localhost haproxy[14389]: 192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET https://a.test/a?q=1 HTTP/2.0""#,
        "",
    ),
    (
        "nginx proxy manager",
        r#"[08/Jun/2026:08:04:43 +0000] - 200 200 - GET https a.test "/a?q=1" [Client 192.0.2.7] [Length 1543] [Gzip -] [Sent-to 10.0.0.15] "curl/8" "-""#,
        "",
    ),
    (
        "aws load balancer",
        r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://a.test:443/a?q=1 HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "a.test" "arn:aws:acm:us-east-2:123456789012:certificate/12345678" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_123456"#,
        "",
    ),
    (
        "cloudfront",
        "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.7\tGET\td111111abcdef8.cloudfront.net\t/a\t200\t-\tMozilla/5.0%20(Windows)\tq=1\t-\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\ta.test\thttps\t23\t0.001\t-\tTLSv1.2\tECDHE-RSA-AES128-GCM-SHA256\tHit\tHTTP/2.0\t-\t-\t11040\t0.001\tHit\ttext/html\t78\t-\t-",
        "",
    ),
];

#[test]
fn documented_lines_are_read() {
    for (format, line, key) in DOCUMENTED {
        let dir = Dir::new(if key.is_empty() { BY_CLIENT } else { CONFIG });
        let comments = "#Version: 1.0\n#Fields: date time x-edge-location\n";
        let start = if format == "cloudfront" { comments } else { "" };
        dir.write("access.log", format!("{start}{line}\n{line}\n{line}\n").as_bytes());
        let [by_client, by_key] = replay(&dir, "access.log", format, &[]);
        assert_eq!(by_client, (3, 1), "{format}");
        assert_eq!(by_key, if key.is_empty() { (0, 0) } else { (3, 1) }, "{format}");
        let report = dir.json(&["access.log"], b"");
        assert_eq!(report["logs"][0]["bad"], 0, "{report}");
        // The same line with another client is another key.
        let dir = Dir::new(BY_CLIENT);
        dir.write("other.log", format!("{line}\n{line}\n{}\n", line.replace("192.0.2.7", "2001:db8::7")).as_bytes());
        assert_eq!(replay(&dir, "other.log", format, &[])[0], (3, 0), "{format}");
    }
}

/// The client is the one that the proxies before the program name, if the config trusts them.
#[test]
fn the_forwarding_of_other_logs_is_read() {
    let trusting = format!("[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{BY_CLIENT}");
    let dir = Dir::new(&trusting);
    for (format, from, to) in [
        (
            "traefik",
            r#""ClientAddr":"192.0.2.7:53298","ClientHost":"192.0.2.7""#,
            r#""ClientAddr":"10.0.0.1:53298","ClientHost":"203.0.113.N""#,
        ),
        ("cloudfront", "\t192.0.2.7\t", "\t10.0.0.1\t"),
    ] {
        let (_, line, _) = DOCUMENTED.iter().find(|(name, ..)| *name == format).unwrap();
        let line = |n: usize| {
            let line = line.replace(from, &to.replace('N', &n.to_string()));
            if format == "cloudfront" {
                line.replace("0.001\t-\tTLS", &format!("0.001\t203.0.113.{n}\tTLS"))
            } else {
                line
            }
        };
        dir.write("access.log", (1..=3).map(|n| line(n) + "\n").collect::<String>().as_bytes());
        let report = dir.json(&["access.log"], b"");
        assert_eq!(
            (&report["requests"]["forwarded"], &report["requests"]["refused"]),
            (&3.into(), &0.into()),
            "{report}"
        );
    }
}

#[test]
fn lines_that_are_almost_of_a_format_say_what_is_missing() {
    let dir = Dir::new(CONFIG);
    for (line, wrong) in [
        ("{\"level\":\"info\",\"ts\":1,\"logger\":\"tls\",\"msg\":\"started\"}", "a message of Caddy, not a request"),
        ("{\"a\":1}", "no `remote_addr` with an address"),
        ("{\"remote_addr\":\"192.0.2.7\",\"status\":200}", "no `time_iso8601`"),
        ("{\"remote_addr\":\"192.0.2.7\",\"msec\":1.5}", "no `request`, and no `request_method`"),
        ("{\"time\":\"x\",\"client\":\"::1\",\"path\":\"/\",\"method\":\"GET\"}", "`time` is not a time stamp"),
        ("{", "not JSON of an access log"),
        ("[08/Jun/2026:08:04:43 +0000] x", "starts with a bracket, but is not of the format of Nginx Proxy Manager"),
        ("http 2018 x", "not of the format of an AWS Application Load Balancer"),
        ("2019-12-04\t21:02:31\tx", "not of the format of a standard log of CloudFront"),
        ("192.0.2.7:1 [06/Feb/2009:12:14:14.655] in 1/1/5 20 -- 1/1/1/1/1 0", "not of the format `httplog`"),
    ] {
        dir.write("access.log", format!("{line}\n").as_bytes());
        let (code, _, stderr) = dir.replay(&["access.log"], b"");
        assert!(code == 1 && stderr.contains(wrong), "{line}: {stderr}");
    }
}

/// Limits decide when a request starts, which the log of a load balancer states. Its durations are -1 if the server did not
/// respond.
#[test]
fn requests_of_a_load_balancer_start_when_they_were_created() {
    let line = |end: &str, status: &str, times: &str, created: &str| {
        format!(
            "https 2018-07-02T{end}Z app/my/50 192.0.2.7:2817 10.0.0.1:80 {times} {status} - 34 366 \"GET \
             https://a.test:443/a?q=1 HTTP/1.1\" \"x\" - - arn \"Root=1\" \"-\" \"-\" 0 2018-07-02T{created}Z \"forward\" \"-\"\n"
        )
    };
    // The first two took an hour and longer, so the third is the first of its hour.
    let logged = [
        line("22:00:00.000000", "504", "0.000 -1 -1", "20:40:00.000000"),
        line("22:00:01.000000", "504", "0.000 -1 -1", "20:40:01.000000"),
        line("22:00:01.100000", "200", "0.000 0.001 0.000", "22:00:01.099000"),
    ];
    let dir = Dir::new(BY_CLIENT);
    dir.write("access.log", logged.concat().as_bytes());
    assert_eq!(replay(&dir, "access.log", "aws load balancer", &[])[0], (3, 0));
    // Lines of old logs end before.
    let old: Vec<String> = logged.iter().map(|line| line.split(" arn ").next().unwrap().to_owned() + "\n").collect();
    dir.write("access.log", old.concat().as_bytes());
    assert_eq!(replay(&dir, "access.log", "aws load balancer", &[])[0], (3, 1));
}
