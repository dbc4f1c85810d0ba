//! Messages of `envoy.service.ratelimit.v3.RateLimitService`, and the bounds of its requests.

use bytes::Bytes;
use prost::Message;

use crate::envoy::{Duration, HeaderPair};
use crate::grpc::{CallError, GrpcCode};

/// Path of the method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Longest request in bytes.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// Maximum number of descriptors of a request.
pub const DESCRIPTORS_MAX: usize = 16;
/// Maximum number of entries of a descriptor.
pub const ENTRIES_MAX: usize = 16;
/// Longest domain in bytes.
pub const DOMAIN_MAX: usize = 255;
/// Longest key or value of an entry in bytes.
pub const TEXT_MAX: usize = 1024;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Hits of descriptors without a number of their own. 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorItem>,
    /// Budget that Envoy requests instead of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Hits of this descriptor; 0 only looks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// The service refunds the hits.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DescriptorItem {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitResponse {
    #[prost(enumeration = "LimitCode", tag = "1")]
    pub overall_code: i32,
    /// One status for each descriptor, in the same order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderPair>,
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderPair>,
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
    /// Envoy keeps it with the request, as `envoy.filters.http.ratelimit`.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Metadata>,
}

/// `google.protobuf.Struct`, whose values are lists of texts here.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Metadata {
    #[prost(message, repeated, tag = "1")]
    pub fields: Vec<MetadataField>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MetadataField {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<MetadataValue>,
}

/// `google.protobuf.Value`: a text or a list.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MetadataValue {
    #[prost(string, optional, tag = "3")]
    pub text: Option<String>,
    #[prost(message, optional, tag = "6")]
    pub list: Option<MetadataList>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MetadataList {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<MetadataValue>,
}

impl MetadataField {
    /// Creates a field with a list of texts.
    pub fn of_texts<'t>(key: &str, texts: impl Iterator<Item = &'t str>) -> MetadataField {
        let values = texts.map(|text| MetadataValue { text: Some(text.to_owned()), list: None }).collect();
        let list = MetadataValue { text: None, list: Some(MetadataList { values }) };
        MetadataField { key: key.to_owned(), value: Some(list) }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DescriptorStatus {
    #[prost(enumeration = "LimitCode", tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "WindowUnit", tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum LimitCode {
    /// Envoy lets the request pass, so this is never sent.
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum WindowUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl WindowUnit {
    /// Returns the unit of a window of this length. Months and years have several lengths.
    pub fn from_window_ms(ms: i64) -> WindowUnit {
        const DAY_MS: i64 = 86_400_000;
        match ms {
            1_000 => WindowUnit::Second,
            60_000 => WindowUnit::Minute,
            3_600_000 => WindowUnit::Hour,
            DAY_MS => WindowUnit::Day,
            ms if ms == 7 * DAY_MS => WindowUnit::Week,
            ms if [28, 29, 30, 31].iter().any(|days| ms == days * DAY_MS) => WindowUnit::Month,
            ms if [365, 366].iter().any(|days| ms == days * DAY_MS) => WindowUnit::Year,
            _ => WindowUnit::Unknown,
        }
    }
}

impl RateLimitRequest {
    /// Checks the bounds that depend on the config of Envoy.
    ///
    /// # Errors
    /// A bound is exceeded.
    pub fn check_bounds(&self) -> Result<(), CallError> {
        let invalid = |what: String| Err(CallError::new(GrpcCode::InvalidArgument, what));
        if !(1..=DOMAIN_MAX).contains(&self.domain.len()) {
            return invalid(format!("a domain has 1 to {DOMAIN_MAX} bytes"));
        }
        if self.descriptors.is_empty() {
            return invalid("the request has no descriptors".to_owned());
        }
        for descriptor in &self.descriptors {
            if descriptor.entries.is_empty() {
                return invalid("a descriptor has no entries".to_owned());
            }
            for DescriptorItem { key, .. } in &descriptor.entries {
                if !(1..=TEXT_MAX).contains(&key.len()) {
                    return invalid(format!("keys have 1 to {TEXT_MAX} bytes"));
                }
            }
        }
        Ok(())
    }

    /// Returns which bound the request exceeds that clients may exceed: they choose values, and Envoy leaves out
    /// descriptors and entries for which a request lacks a header. So this is a reason to refuse the request, and no
    /// error.
    pub fn find_excess(&self) -> Option<String> {
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Some(format!("the request has more than {DESCRIPTORS_MAX} descriptors"));
        }
        let has_many = |descriptor: &RateLimitDescriptor| descriptor.entries.len() > ENTRIES_MAX;
        if self.descriptors.iter().any(has_many) {
            return Some(format!("a descriptor of the request has more than {ENTRIES_MAX} entries"));
        }
        let mut entries = self.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let is_long = entries.any(|entry| entry.value.len() > TEXT_MAX);
        is_long.then(|| format!("a value of the request has more than {TEXT_MAX} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::{decode_message, encode_message};

    fn request(descriptors: usize, entries: usize, text: usize, domain: usize) -> RateLimitRequest {
        let entry = DescriptorItem { key: vec![b'k'; text].into(), value: vec![0xff; text].into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry; entries], ..Default::default() };
        RateLimitRequest {
            domain: vec![b'd'; domain].into(),
            descriptors: vec![descriptor; descriptors],
            hits_addend: 1,
        }
    }

    #[test]
    fn bounds_hold_on_both_sides() {
        // Whether the config of Envoy may cause it, and whether clients may.
        for (descriptors, entries, text, domain, is_valid, is_decided) in [
            (1, 1, 1, 1, true, true),
            (DESCRIPTORS_MAX, 1, 1, 1, true, true),
            (1, ENTRIES_MAX, 1, 1, true, true),
            (1, 1, TEXT_MAX, DOMAIN_MAX, true, true),
            (0, 1, 1, 1, false, true),
            (DESCRIPTORS_MAX + 1, 1, 1, 1, true, false),
            (1, 0, 1, 1, false, true),
            (1, ENTRIES_MAX + 1, 1, 1, true, false),
            (1, 1, 0, 1, false, true),
            (1, 1, TEXT_MAX + 1, 1, false, false),
            (1, 1, 1, 0, false, true),
            (1, 1, 1, DOMAIN_MAX + 1, false, true),
        ] {
            let request = request(descriptors, entries, text, domain);
            assert_eq!(request.check_bounds().is_ok(), is_valid, "{descriptors} {entries} {text} {domain}");
            assert_eq!(request.find_excess().is_none(), is_decided, "{descriptors} {entries} {text} {domain}");
        }
    }

    /// The bytes that protoc's encoder makes for a request with all fields.
    #[test]
    fn a_request_of_envoy_is_read() {
        let bytes =
            b"\x0a\x04edge\x12\x1a\x0a\x0e\x0a\x04path\x12\x06/login\x12\x04\x08\x05\x10\x02\x1a\x00\x20\x01\x18\x07";
        let read: RateLimitRequest = decode_message(Bytes::from_static(bytes)).unwrap();
        let entry = DescriptorItem { key: "path".into(), value: "/login".into() };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: 2 }),
            hits_addend: Some(0),
            is_negative_hits: true,
        };
        assert_eq!(read, RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], hits_addend: 7 });
        assert_eq!(encode_message(&read)[5..], bytes[..]);
        assert!(decode_message::<RateLimitRequest>(Bytes::from_static(b"\x0a\x05edge")).is_err());
    }

    #[test]
    fn windows_with_a_name_have_a_unit() {
        for (ms, unit) in [
            (1000, WindowUnit::Second),
            (604_800_000, WindowUnit::Week),
            (2_678_400_000, WindowUnit::Month),
            (31_622_400_000, WindowUnit::Year),
            (2000, WindowUnit::Unknown),
            (0, WindowUnit::Unknown),
        ] {
            assert_eq!(WindowUnit::from_window_ms(ms), unit, "{ms}");
        }
    }
}
