//! Listeners with `serve = "grpc"`: rate limit requests and authorization checks of Envoy.

mod annotated;
mod calls;
mod deadlines;
mod explanations;
mod frames;
mod own_limits;
mod proxy;
mod replaces;
mod shared_store;
mod transports;

/// Bytes of a rate limit request with one descriptor, which has one entry.
fn question(domain: &str, key: &str, value: &str) -> Vec<u8> {
    let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    [field(1, domain.as_bytes()), field(2, &field(1, &entry))].concat()
}

/// A field of bytes, shorter than 128.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
}

/// The message in its frame.
fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}
