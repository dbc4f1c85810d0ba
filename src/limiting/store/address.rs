//! Parses store URLs: which kind of Redis, at which addresses, with which login. The config compiler reports mistakes.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

/// A parsed URL. It contains passwords, so it has no `Debug`.
pub struct Address {
    pub form: Deployment,
    pub tls: bool,
    /// Login for the servers that store the state.
    pub login: RedisConnectionInfo,
}

/// Kind of Redis deployment.
pub enum Deployment {
    Node(ServerAddr),
    /// Some nodes of a cluster, which return the others.
    Cluster(Vec<ServerAddr>),
    Sentinel {
        sentinels: Vec<ServerAddr>,
        /// Login for the sentinels.
        login: RedisConnectionInfo,
        master: String,
    },
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerAddr {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// A mistake in a URL, and an example of a valid one. The text repeats nothing of the URL, which may be secret.
#[derive(Debug, PartialEq)]
pub struct UrlMistake {
    pub what: &'static str,
    pub help: &'static str,
}

const NODE: &str = "like \"redis://127.0.0.1:6379\", \"rediss://user:password@host:6379/0\" or \"redis+unix:///PATH\"";
const CLUSTER: &str = "like \"redis+cluster://user:password@host1:6379,host2:6379\"";
const SENTINEL: &str =
    "like \"redis+sentinel://user:password@host1:26379,host2:26379/MASTER/0?sentinel_password=PASSWORD\"";
const SENTINEL_PORT: u16 = 26379;

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn parse(url: &str) -> Result<Address, UrlMistake> {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        let Some(rest) = rest.strip_prefix("//") else { return url_mistake("it is not a complete URL", NODE) };
        if let Some(mistake) = find_unescaped(rest, scheme) {
            return Err(mistake);
        }
        let (tls, scheme) = match scheme.strip_prefix("rediss") {
            Some(form) => (true, form),
            None => (false, scheme.strip_prefix("redis").unwrap_or("?")),
        };
        match (scheme, tls) {
            ("", _) => {
                let info = parse_server(&format!("redis://{rest}"), NODE)?;
                Ok(Address {
                    form: Deployment::Node(server_addr(&info, NODE)?),
                    tls,
                    login: info.redis_settings().clone(),
                })
            }
            ("+unix", false) => {
                let info = parse_server(url, NODE)?;
                Ok(Address {
                    form: Deployment::Node(server_addr(&info, NODE)?),
                    tls,
                    login: info.redis_settings().clone(),
                })
            }
            ("+cluster", _) => parse_cluster(rest, tls),
            ("+sentinel", _) => parse_sentinel(rest, tls),
            _ => url_mistake("it is not the URL of a store", NODE),
        }
    }

    /// Returns servers and database in a canonical form without logins.
    pub fn location(&self) -> String {
        let db = self.login.db();
        match &self.form {
            Deployment::Node(addr) => format!("{addr}/{db}"),
            Deployment::Cluster(nodes) => format!("cluster:{}", sorted(nodes)),
            Deployment::Sentinel { sentinels, master, .. } => format!("sentinel:{}/{master}/{db}", sorted(sentinels)),
        }
    }
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddr::Tcp(host, port) => write!(f, "{host}:{port}"),
            ServerAddr::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

fn sorted(addrs: &[ServerAddr]) -> String {
    let mut names: Vec<String> = addrs.iter().map(ServerAddr::to_string).collect();
    names.sort_unstable();
    names.join(",")
}

/// Detects a user or password with an unescaped character that ends this part of a URL. What follows would be taken for
/// the server.
fn find_unescaped(rest: &str, scheme: &str) -> Option<UrlMistake> {
    let (before, fragment) = rest.split_once('#').map_or((rest, None), |(before, after)| (before, Some(after)));
    let (before, query) = before.split_once('?').unwrap_or((before, ""));
    let path = before.split_once('/').map_or("", |(_, path)| path);
    // Only sentinel URLs have parameters, which may contain a login.
    let in_query = query.contains('@') && matches!(scheme, "redis" | "rediss");
    let is_file = scheme.ends_with("+unix");
    (fragment.is_some() || in_query || path.contains('@') && !is_file).then_some(UrlMistake {
        what: "its user or password holds a character that must be escaped",
        help: "write %23 for `#`, %25 for `%`, %2F for `/`, %3A for `:`, %3F for `?` and %40 for `@`",
    })
}

fn url_mistake<T>(what: &'static str, help: &'static str) -> Result<T, UrlMistake> {
    Err(UrlMistake { what, help })
}

/// Parses a URL of one server.
fn parse_server(url: &str, help: &'static str) -> Result<ConnectionInfo, UrlMistake> {
    match url.into_connection_info() {
        Ok(info) if info.redis_settings().db() >= 0 => Ok(info),
        Ok(_) => url_mistake("its database number is negative", help),
        Err(_) => {
            let (authority, path) = url.split_once("://").map_or(("", ""), |(_, rest)| Parts::place(rest));
            let host = authority.rsplit('@').next().unwrap_or_default();
            let port = host.rsplit(']').next().and_then(|end| end.rsplit_once(':')).map_or("", |(_, port)| port);
            match (port.parse::<u16>().is_err() && !port.is_empty(), path.parse::<i64>().is_err() && !path.is_empty()) {
                (true, _) => url_mistake("its port is not a number up to 65535", help),
                (_, true) => url_mistake("its database, after the host, is not a number", help),
                _ if has_other_bytes(url) => url_mistake("its user or password is not UTF-8", "choose one in UTF-8"),
                _ => url_mistake("it is not a complete URL", help),
            }
        }
    }
}

/// Returns whether the escapes of a URL stand for bytes that are not UTF-8. The client of Redis sends only text.
fn has_other_bytes(url: &str) -> bool {
    percent_decode_str(url).decode_utf8().is_err()
}

fn server_addr(info: &ConnectionInfo, help: &'static str) -> Result<ServerAddr, UrlMistake> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => Ok(ServerAddr::Tcp(host.clone(), *port)),
        ConnectionAddr::Unix(path) if !path.as_os_str().is_empty() => Ok(ServerAddr::Unix(path.clone())),
        _ => url_mistake("it is not a complete URL", help),
    }
}

fn parse_cluster(rest: &str, tls: bool) -> Result<Address, UrlMistake> {
    let parts = Parts::of(rest);
    if !parts.path.is_empty() || !parts.query.is_empty() {
        return url_mistake("a cluster has one database and no parameters", CLUSTER);
    }
    let (nodes, login) = parts.hosts("", None, CLUSTER)?;
    Ok(Address { form: Deployment::Cluster(nodes), tls, login })
}

fn parse_sentinel(rest: &str, tls: bool) -> Result<Address, UrlMistake> {
    let parts = Parts::of(rest);
    let (master, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if master.is_empty() {
        return url_mistake("it does not name the master", SENTINEL);
    }
    let (sentinels, login) = parts.hosts(db, Some(SENTINEL_PORT), SENTINEL)?;
    let mut own = RedisConnectionInfo::default();
    for (key, value) in parse_query(parts.query).into_iter().flatten() {
        own = match key.as_str() {
            "sentinel_user" => own.set_username(value),
            "sentinel_password" => own.set_password(value),
            _ => return url_mistake("it has an unknown parameter", SENTINEL),
        };
    }
    Ok(Address { form: Deployment::Sentinel { sentinels, login: own, master: master.to_owned() }, tls, login })
}

/// Parses and decodes the parameters.
fn parse_query(text: &str) -> Option<Vec<(String, String)>> {
    let url = redis::parse_redis_url(&format!("redis://host/?{text}"))?;
    Some(url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
}

/// Parts of `[USER:PASSWORD@]HOST,HOST[/PATH][?QUERY]`.
struct Parts<'a> {
    /// User and password, including the `@`.
    user: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Parts<'a> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Parts { user, hosts, path: path.trim_end_matches('/'), query }
    }

    /// Returns authority and path.
    fn place(rest: &'a str) -> (&'a str, &'a str) {
        let rest = rest.split('?').next().unwrap_or(rest);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        (authority, path.trim_end_matches('/'))
    }

    fn hosts(
        &self,
        db: &str,
        port: Option<u16>,
        help: &'static str,
    ) -> Result<(Vec<ServerAddr>, RedisConnectionInfo), UrlMistake> {
        let (mut addrs, mut login) = (Vec::new(), RedisConnectionInfo::default());
        for host in self.hosts.split(',') {
            let bare = host.rsplit(']').next().is_some_and(|end| !end.contains(':'));
            let port = port.filter(|_| bare).map(|port| format!(":{port}")).unwrap_or_default();
            let info = parse_server(&format!("redis://{}{host}{port}/{db}", self.user), help)?;
            addrs.push(server_addr(&info, help)?);
            login = info.redis_settings().clone();
        }
        Ok((addrs, login))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> ServerAddr {
        ServerAddr::Tcp(host.to_owned(), port)
    }

    #[test]
    fn every_form_is_read() {
        let one = Address::parse("rediss://us%40er:p%2Fw@host:7000/3").ok().unwrap();
        assert!(one.tls && matches!(one.form, Deployment::Node(addr) if addr == tcp("host", 7000)));
        assert_eq!((one.login.username(), one.login.password(), one.login.db()), (Some("us@er"), Some("p/w"), 3));

        let unix = Address::parse("redis+unix:///run/redis.sock?db=2").ok().unwrap();
        assert!(matches!(unix.form, Deployment::Node(ServerAddr::Unix(path)) if path == *"/run/redis.sock"));

        let cluster = Address::parse("redis+cluster://:pw@a:1,[::1]:2,c/").ok().unwrap();
        let nodes = vec![tcp("a", 1), tcp("::1", 2), tcp("c", 6379)];
        assert!(!cluster.tls && matches!(cluster.form, Deployment::Cluster(hosts) if hosts == nodes));
        assert_eq!(cluster.login.password(), Some("pw"));

        let url = "redis+sentinel://:pw@a,b:1,[::1]/mine/4?sentinel_user=s&sentinel_password=x%26y";
        let sentinel = Address::parse(url).ok().unwrap();
        assert_eq!((sentinel.login.password(), sentinel.login.db()), (Some("pw"), 4));
        let Deployment::Sentinel { sentinels, login, master } = sentinel.form else { panic!("another form") };
        assert_eq!(sentinels, [tcp("a", 26379), tcp("b", 1), tcp("::1", 26379)]);
        assert_eq!((login.username(), login.password(), master.as_str()), (Some("s"), Some("x&y"), "mine"));
    }

    #[test]
    fn a_place_names_servers_and_database_without_logins() {
        for (url, place) in [
            ("rediss://user:secret@host:7000/3", "host:7000/3"),
            ("redis://host", "host:6379/0"),
            ("redis+unix:///run/redis.sock?db=2&pass=secret", "/run/redis.sock/2"),
            ("redis+cluster://:secret@b:1,a:2", "cluster:a:2,b:1"),
            ("redis+sentinel://:secret@b,a:1/mine/4?sentinel_password=secret", "sentinel:a:1,b:26379/mine/4"),
        ] {
            assert_eq!(Address::parse(url).ok().unwrap().location(), place);
        }
    }

    #[test]
    fn url_mistakes_are_described() {
        for (url, what) in [
            ("", "it is not a complete URL"),
            ("redis:", "it is not a complete URL"),
            ("redis://", "it is not a complete URL"),
            ("redis://u:p%FF%FE@host", "its user or password is not UTF-8"),
            ("redis+cluster://u:p%FF@a,b", "its user or password is not UTF-8"),
            ("redis://host/x", "its database, after the host, is not a number"),
            ("redis://:p/w@host:6379", "its user or password holds a character that must be escaped"),
            ("redis://:p@ss#w@host:6379/0", "its user or password holds a character that must be escaped"),
            ("redis+sentinel://:p?w@host/m#x", "its user or password holds a character that must be escaped"),
            ("redis://:pw?@host", "its user or password holds a character that must be escaped"),
            ("redis://[::1]:x/", "its port is not a number up to 65535"),
            ("redis://host:70000", "its port is not a number up to 65535"),
            ("redis+cluster://a:x,b", "its port is not a number up to 65535"),
            ("redis://host/-1", "its database number is negative"),
            ("rediss+unix:///x", "it is not the URL of a store"),
            ("http://host", "it is not the URL of a store"),
            ("redis+ring://host", "it is not the URL of a store"),
            ("redis+cluster://a,,b", "it is not a complete URL"),
            ("redis+cluster://a,b/1", "a cluster has one database and no parameters"),
            ("redis+sentinel://a,b", "it does not name the master"),
            ("redis+sentinel://a:x/m", "its port is not a number up to 65535"),
            ("redis+sentinel://a/m/x", "its database, after the host, is not a number"),
            ("redis+sentinel://a/m?password=x", "it has an unknown parameter"),
        ] {
            assert_eq!(Address::parse(url).err().map(|mistake| mistake.what), Some(what), "{url}");
        }
    }
}
