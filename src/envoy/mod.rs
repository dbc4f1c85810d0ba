//! Contains the messages of Envoy's protocols over gRPC, and the rules that select limits. Called
//! by `proxy::doors::grpc`, which responds, and by the config compiler, which builds rules.
//!
//! - `rate_limit`: messages of `envoy.service.ratelimit.v3.RateLimitService`.
//! - `authorization`: messages of `envoy.service.auth.v3.Authorization`.
//! - `health`: messages of `grpc.health.v1.Health`.
//! - `rules`: `[[rls]]`: which limits apply to a descriptor.
//! - `pattern`: patterns for the entries of descriptors.
//!
//! Messages have only the fields that the gateway reads or writes; others are skipped. Strings are read as bytes: Envoy
//! copies headers into them, and a client must not escape its limits by a header that is not UTF-8.

pub mod authorization;
pub mod health;
pub mod pattern;
pub mod rate_limit;
pub mod rules;

use bytes::Bytes;
use prost::Message;

use crate::grpc::{CallError, GrpcCode, frame};

/// Decodes a message.
///
/// # Errors
/// The bytes are not a message of this type.
pub fn decode_message<M: Message + Default>(bytes: Bytes) -> Result<M, CallError> {
    M::decode(bytes).map_err(|_| CallError::new(GrpcCode::Internal, "the message cannot be decoded"))
}

/// Encodes a message with its frame.
pub fn encode_message(message: &impl Message) -> Bytes {
    frame::write_frame(message.encoded_len(), |buffer| message.encode_raw(buffer))
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Duration {
    /// Converts milliseconds, which are not negative.
    pub fn from_ms(ms: i64) -> Duration {
        let nanos = i32::try_from(ms.rem_euclid(1000) * 1_000_000).unwrap_or(0);
        Duration { seconds: ms.div_euclid(1000), nanos }
    }
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderPair {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}
