//! Error codes of HTTP/3 (RFC 9114, section 8.1) and QPACK (RFC 9204, section 6).

use crate::ends::End;

/// An error that ends a connection, or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

pub const NO_ERROR: Code = Code(0x100);
pub const INTERNAL_ERROR: Code = Code(0x102);
pub const STREAM_CREATION_ERROR: Code = Code(0x103);
pub const CLOSED_CRITICAL_STREAM: Code = Code(0x104);
pub const FRAME_UNEXPECTED: Code = Code(0x105);
pub const FRAME_ERROR: Code = Code(0x106);
pub const EXCESSIVE_LOAD: Code = Code(0x107);
pub const ID_ERROR: Code = Code(0x108);
pub const SETTINGS_ERROR: Code = Code(0x109);
pub const MISSING_SETTINGS: Code = Code(0x10a);
pub const REQUEST_REJECTED: Code = Code(0x10b);
pub const REQUEST_CANCELLED: Code = Code(0x10c);
pub const REQUEST_INCOMPLETE: Code = Code(0x10d);
pub const MESSAGE_ERROR: Code = Code(0x10e);
pub const CONNECT_ERROR: Code = Code(0x10f);
pub const QPACK_DECOMPRESSION_FAILED: Code = Code(0x200);
pub const QPACK_ENCODER_STREAM_ERROR: Code = Code(0x201);
pub const QPACK_DECODER_STREAM_ERROR: Code = Code(0x202);

/// Why a connection ends at once.
#[derive(Clone, Copy, Debug)]
pub struct Fatal {
    pub code: Code,
    /// The reason that is counted.
    pub end: Option<End>,
}

impl From<Code> for Fatal {
    fn from(code: Code) -> Fatal {
        Fatal { code, end: Some(End::H2Protocol) }
    }
}

impl Fatal {
    /// Ends a connection whose end is counted elsewhere, or not at all.
    pub fn uncounted(code: Code) -> Fatal {
        Fatal { code, end: None }
    }

    /// Ends the connection of a client that makes the gateway work for nothing.
    pub fn flood(end: End) -> Fatal {
        Fatal { code: EXCESSIVE_LOAD, end: Some(end) }
    }
}
