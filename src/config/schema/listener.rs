//! Options of `[[listener]]` and its TLS.

use crate::config::schema::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::server::KERNEL_BUFFER;
use crate::config::schema::value_type::ValueType::*;
use crate::config::schema::value_type::{list, list_from};
use crate::config::schema::{Schema, option};

pub const LISTENER: Schema = Schema {
    name: "listener",
    title: "[[listener]]",
    intro: "",
    notes: "",
    options: &[
        option(
            "address",
            Text("address"),
            Required,
            "written as in `listen`. An address in `listen` cannot have a `[[listener]]` too",
        ),
        option(
            "serve",
            Words(&["http", "decide", "grpc"]),
            Value("\"http\""),
            "what the listener does: `http` proxies; `decide` answers other proxies that ask over HTTP about their requests, and `grpc` \
             answers Envoy over gRPC",
        )
        .for_new_connections(),
        option("proxy_protocol", Boolean, Value("false"), "every connection begins with a PROXY header")
            .for_new_connections()
            .guide("requests.md#client-address")
            .metric("sluicegate_http_rejected_total")
            .reason("proxy_header"),
        option("max_unsent", KERNEL_BUFFER, Described("that of `[server]`"), "as in `[server]`, for this listener")
            .for_new_connections(),
        option(
            "hsts",
            Either(&[Age, Table(&HSTS)]),
            Absent,
            "send `Strict-Transport-Security` with every response; needs `tls`",
        )
        .shown_as("duration up to 10 years (`\"1y\"`), or table")
        .for_new_connections()
        .guide("../start/tls.md#tell-browsers-to-use-https-only"),
        option("tls", Table(&LISTENER_TLS), Absent, "HTTPS; without it, plain HTTP")
            .for_new_connections()
            .guide("tls.md")
            .metric("sluicegate_tls_handshakes_total"),
    ],
};

pub const HSTS: Schema = Schema {
    name: "listener.hsts",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("max_age", Age, Required, "how long browsers remember it; `\"0s\"` withdraws it"),
        option("include_subdomains", Boolean, Value("false"), "it applies to all names below the host"),
        option(
            "preload",
            Boolean,
            Value("false"),
            "allow browser vendors to build it in; needs a year and `include_subdomains`",
        ),
    ],
};

pub const LISTENER_TLS: Schema = Schema {
    name: "listener.tls",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "certificates",
            Array { item: &Table(&CERTIFICATE), least: 1, most: usize::MAX },
            Described("required unless `tls.acme` or `tls.internal` is set"),
            "certificates; a client gets the one for its name",
        )
        .for_new_connections()
        .metric("sluicegate_tls_cert_not_after_timestamp_seconds"),
        option(
            "acme",
            list_from(1, &Text("hostname")),
            Absent,
            "names for which `[acme]` orders certificates; 230 characters each, 1000 names in total",
        )
        .for_new_connections()
        .metric("sluicegate_acme_orders_total"),
        option(
            "internal",
            Either(&[Boolean, Table(&INTERNAL)]),
            Value("false"),
            "[development certificates](tls.md#development-certificates) from a local CA; not with `tls.acme`",
        )
        .for_new_connections(),
        option("client_ca", Text("file"), Absent, "CAs that sign client certificates, PEM")
            .for_new_connections()
            .guide("tls.md#client-certificates-mtls"),
        option(
            "client_auth",
            Words(&["required", "optional"]),
            Value("\"required\""),
            "whether clients must send a certificate",
        )
        .note(" with `client_ca`")
        .for_new_connections(),
        option("min_version", Words(&["1.2", "1.3"]), Value("\"1.2\""), "oldest TLS version").for_new_connections(),
    ],
};

pub const CERTIFICATE: Schema = Schema {
    name: "listener.tls.certificates",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("cert", Text("file"), Required, "certificate chain, PEM").for_new_connections(),
        option("key", Text("file"), Required, "private key, PEM").for_new_connections(),
    ],
};

pub const INTERNAL: Schema = Schema {
    name: "listener.tls.internal",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "hosts",
            list(&Text("hostname or address")),
            Absent,
            "further names of the certificate; it has at most 100 names",
        )
        .shown_as("list of hostnames and addresses")
        .for_new_connections(),
        option(
            "state",
            Text("directory"),
            Described("`$STATE_DIRECTORY/ca`, else `~/.local/state/sluicegate/ca`"),
            "the CA and its key, for the user of the gateway only",
        ),
        option("allow_remote", Boolean, Value("false"), "accept an `address` that other machines can reach"),
    ],
};
