//! Messages of `grpc.health.v1.Health`.

use bytes::Bytes;
use prost::Message;

/// Path of the method.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Names of the services whose health can be checked. The empty name is that of the server.
pub const SERVICES: [&[u8]; 4] =
    [b"", b"ratelimit", b"envoy.service.ratelimit.v3.RateLimitService", b"envoy.service.auth.v3.Authorization"];

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthCheckRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub service: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
