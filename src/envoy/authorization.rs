//! Messages of `envoy.service.auth.v3.Authorization`.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;

use crate::envoy::HeaderPair;

/// Path of the method.
pub const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Longest request in bytes. Envoy sends the headers of its client, up to 60 KiB by default, perhaps twice.
pub const MESSAGE_MAX: usize = 256 * 1024;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Attributes {
    #[prost(message, optional, tag = "1")]
    pub source: Option<CheckSource>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<RequestAttributes>,
    #[prost(map = "string, bytes", tag = "10")]
    pub context_extensions: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckSource {
    #[prost(message, optional, tag = "1")]
    pub address: Option<PeerAddress>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PeerAddress {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SocketAddress {
    #[prost(bytes = "bytes", tag = "2")]
    pub address: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestAttributes {
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpAttributes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HttpAttributes {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub method: Bytes,
    /// Headers by name. The values of one name are joined with commas. The entries of the map are read one by one,
    /// because the keys of a map would have to be UTF-8.
    #[prost(message, repeated, tag = "3")]
    pub headers: Vec<HeaderPair>,
    /// Path with query.
    #[prost(bytes = "bytes", tag = "4")]
    pub path: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub host: Bytes,
    /// Headers one by one, which replace `headers` with `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderList>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderList {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderPair>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub denied_response: Option<DeniedResponse>,
    #[prost(message, optional, tag = "3")]
    pub ok_response: Option<OkResponse>,
}

/// `google.rpc.Status`. Code 0 admits the request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderOption>,
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct OkResponse {
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderOption>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderPair>,
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

/// `append_action` of a header that replaces others of its name.
pub const OVERWRITE: i32 = 2;
