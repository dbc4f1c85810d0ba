//! Re-exports private functions for the fuzz targets. Compiled only with the feature `fuzzing`.

pub use crate::canonical::CanonicalPath;
pub use crate::canonical::authority::{Authority, parse_authority};
pub use crate::envoy::authorization::CheckRequest;
pub use crate::envoy::pattern::{DescriptorPattern, EntryPattern, ValuePattern};
pub use crate::envoy::rate_limit::RateLimitRequest;
pub use crate::envoy::rules::{RateLimitDomain, RateLimitRule};
pub use crate::envoy::{decode_message, encode_message};
pub use crate::grpc::CallError;
pub use crate::grpc::frame::MessageReader;
pub use crate::limiting::integers::COST_MAX;
pub use crate::limiting::limit::Limit;
pub use crate::limiting::source::{BodyKind, DescriptorEntry, Facts};
pub use crate::proxy::head::canonical::canonicalize_path;
pub use crate::proxy::head::identity::{ClientAddress, identify};
pub use crate::proxy::head::reject::FaultPolicy;
pub use crate::proxy::server::http3::error::Code as Http3Error;
pub use crate::proxy::server::http3::fields::{FieldFault, read_head, read_trailers};
pub use crate::proxy::server::http3::qpack::{decode as decode_section, encode_trailers};
pub use crate::proxy::server::http3::request_reader::{RequestItem, RequestReader};
pub use crate::proxy::server::http3::unidirectional::{CriticalStreams, UniResult, UniStream};
pub use crate::proxy::server::proxy_protocol::{ProxyHeaderResult, parse_header, read_bytes};
