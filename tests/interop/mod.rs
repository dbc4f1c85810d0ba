//! Clients and applications of other projects, in front of the gateway and behind it. `install.sh` installs them;
//! `programs` holds the scripts that use them.

mod browser;
mod curl;
mod django;
mod files;
mod forward_auth;
mod grpc;
mod httpbin;
mod llm;
mod nghttp;
mod node;
mod otel_collector;
mod python;
mod site;
