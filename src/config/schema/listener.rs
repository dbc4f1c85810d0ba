//! Options of `[[listener]]` and its TLS.

use std::time::Duration;

use crate::config::Service;
use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{Row, Weaker, option, rows, table};
use crate::config::schema::server;
use crate::config::schema::value_type::ValueType::*;
use crate::config::schema::value_type::{DAY, SECOND, duration, integer, list, list_from};
use crate::ends::End;
use crate::tls::MinVersion;

rows! {
    table("listener").title("[[listener]]");

    ADDRESS = option(
        "address",
        Text("address"),
        Required,
        "written as in `listen`. An address in `listen` cannot have a `[[listener]]` too",
    )
    .called(&["port", "bind", "listen"])
    .teach("\":443\"", "Add a `[[listener]]` for each address that serves HTTPS or answers other proxies. For plain HTTP, `listen` is enough");
    SERVE: Service = option(
        "serve",
        Words(Service::LABELS),
        Value("\"http\""),
        "what the listener does: `http` proxies; `decide` answers other proxies that ask over HTTP about their requests, and `grpc` \
         answers Envoy over gRPC",
    )
    .for_new_connections()
    .teach("\"decide\"", "Use `decide` or `grpc` to keep the proxy that you have, and let it ask");
    PROXY_PROTOCOL: bool = option("proxy_protocol", Boolean, Value("false"), "every connection begins with a PROXY header")
        .for_new_connections()
        .guide("requests.md#client-address")
        .metric("sluicegate_http_rejected_total")
        .ends(End::ProxyHeader)
        .teach("true", "Turn it on if a TCP load balancer in front sends the header; connections without it are then closed");
    MAX_UNSENT: Option<u32> = server::MAX_UNSENT.inherit("that of `[server]`", "as in `[server]`, for this listener");
    MODE = option("mode", Text("octal mode"), Described("`\"0666\"`"), "permissions of a Unix socket: who may write may connect")
        .guide("requests.md#unix-sockets")
        .called(&["permissions", "socket_mode", "chmod"]);
    OWNER = option("owner", Text("user"), Described("the user of the gateway"), "owner of a Unix socket, by name or number")
        .guide("requests.md#unix-sockets")
        .called(&["user", "uid"]);
    GROUP = option("group", Text("group"), Described("the group of the gateway"), "group of a Unix socket, by name or number")
        .guide("requests.md#unix-sockets")
        .called(&["gid"]);
    HSTS = option(
        "hsts",
        Either(&[Age, Table(&hsts::TABLE)]),
        Absent,
        "send `Strict-Transport-Security` with every response; needs `tls`",
    )
    .shown_as("duration up to 10 years (`\"1y\"`), or table")
    .for_new_connections()
    .guide("../start/tls.md#tell-browsers-to-use-https-only")
    .shorthand("max_age")
    .example("begin with hsts = \"1d\"")
    .called(&["strict_transport_security"])
    .teach("\"1d\"", "Begin with a day, and raise it to a year when every host has worked over HTTPS for a while");
    HTTP3 = option(
        "http3",
        Either(&[Boolean, Table(&http3::TABLE)]),
        Value("false"),
        "serve HTTP/3 on the UDP port with the same number, and announce it to clients (`Alt-Svc`); needs `tls`",
    )
    .guide("../guides/http3.md")
    .metric("sluicegate_connections")
    .example("write http3 = true, or http3 = { advertise = 443 } behind a port mapping")
    .called(&["quic", "h3"])
    .teach("true", "Turn it on for clients on lossy networks, such as phones, and open the UDP port in the firewall");
    TLS = option("tls", Table(&tls::TABLE), Absent, "HTTPS; without it, plain HTTP")
        .for_new_connections()
        .guide("tls.md")
        .metric("sluicegate_tls_handshakes_total")
        .example("write tls = { certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }] }, or tls = { internal = true } for \
         development")
        .called(&["ssl_certificate", "ssl_certificate_key"])
        .teach("{ certificates = [{ cert = \"example.com.pem\", key = \"example.com.key\" }] }", "Set it to serve HTTPS: with `certificates` from files, with `acme` from Let's Encrypt, or with `internal` for development");
}

/// Options of `listener.hsts`.
pub mod hsts {
    use super::*;

    rows! {
        table("listener.hsts");

        MAX_AGE = option("max_age", Age, Required, "how long browsers remember it; `\"0s\"` withdraws it")
            .weaker(Weaker::Removed);
        INCLUDE_SUBDOMAINS: bool = option("include_subdomains", Boolean, Value("false"), "it applies to all names below the host");
        PRELOAD: bool = option(
            "preload",
            Boolean,
            Value("false"),
            "allow browser vendors to build it in; needs a year and `include_subdomains`",
        );
    }
}

/// Options of `listener.http3`.
pub mod http3 {
    use super::*;

    rows! {
        table("listener.http3");

        ADVERTISE: Option<u16> = option(
            "advertise",
            integer(1, 65_535),
            Described("the port of the listener"),
            "the UDP port that clients are told, if a port mapping changes it",
        )
        .called(&["port"]);
        MAX_AGE: Duration = option(
            "max_age",
            duration(SECOND, 366 * DAY),
            Value("\"1d\""),
            "how long clients remember that the listener speaks HTTP/3",
        )
        .called(&["ma"]);
    }
}

/// Options of `listener.tls`.
pub mod tls {
    use super::*;

    rows! {
        table("listener.tls");

        CERTIFICATES = option(
            "certificates",
            Array { item: &Table(&certificate::TABLE), least: 1, most: usize::MAX },
            Described("required unless `tls.acme` or `tls.internal` is set"),
            "certificates; a client gets the one for its name",
        )
        .for_new_connections()
        .metric("sluicegate_tls_cert_not_after_timestamp_seconds")
        .weaker(Weaker::Removed)
        .teach("[{ cert = \"example.com.pem\", key = \"example.com.key\" }]", "Use it if another program renews the files. The gateway loads changed files by itself");
        ACME = option(
            "acme",
            list_from(1, &Text("hostname")),
            Absent,
            "names for which `[acme]` orders certificates; 230 characters each, 1000 names in total",
        )
        .for_new_connections()
        .metric("sluicegate_acme_orders_total")
        .teach("[\"www.example.com\"]", "Use it if the hosts are reachable from the internet, so that nobody has to renew files");
        INTERNAL = option(
            "internal",
            Either(&[Boolean, Table(&internal::TABLE)]),
            Value("false"),
            "[development certificates](tls.md#development-certificates) from a local CA; not with `tls.acme`",
        )
        .for_new_connections()
        .teach("true", "Turn it on for HTTPS on a development machine");
        CLIENT_CA = option("client_ca", Path("file"), Absent, "CAs that sign client certificates, PEM")
            .for_new_connections()
            .guide("tls.md#client-certificates-mtls")
            .weaker(Weaker::Removed)
            .teach("\"clients-ca.pem\"", "Set it if clients prove their identity with a certificate, for example devices or partner systems");
        CLIENT_AUTH: bool = option(
            "client_auth",
            Words(&["required", "optional"]),
            Value("\"required\""),
            "whether clients must send a certificate",
        )
        .note(" with `client_ca`")
        .for_new_connections()
        .weaker(Weaker::More);
        MIN_VERSION: MinVersion = option("min_version", Words(MinVersion::LABELS), Value("\"1.2\""), "oldest TLS version").for_new_connections()
            .weaker(Weaker::Less)
            .teach("\"1.3\"", "Raise it if you know that all clients support 1.3");
    }
}

/// Options of `listener.tls.certificates`.
pub mod certificate {
    use super::*;

    rows! {
        table("listener.tls.certificates");

        CERT = option("cert", Path("file"), Required, "certificate chain, PEM").for_new_connections()
            .teach("\"example.com.pem\"", "Use the file with the whole chain, such as `fullchain.pem` of certbot, because many clients reject a certificate without its intermediates");
        KEY = option("key", Path("file"), Required, "private key, PEM, without a passphrase").for_new_connections()
            .teach("\"example.com.key\"", "Use the key of this certificate, and let only the gateway's user read it");
    }
}

/// Options of `listener.tls.internal`.
pub mod internal {
    use super::*;

    rows! {
        table("listener.tls.internal");

        HOSTS = option(
            "hosts",
            list(&Text("hostname or address")),
            Absent,
            "further names of the certificate; it has at most 100 names",
        )
        .shown_as("list of hostnames and addresses")
        .for_new_connections();
        STATE = option(
            "state",
            Path("directory"),
            Described("`$STATE_DIRECTORY/ca`, else `~/.local/state/sluicegate/ca`"),
            "the CA and its key, for the user of the gateway only",
        );
        ALLOW_REMOTE: bool = option("allow_remote", Boolean, Value("false"), "accept an `address` that other machines can reach. They can then reach a listener whose certificate only this machine trusts")
            .weaker(Weaker::More);
    }
}
