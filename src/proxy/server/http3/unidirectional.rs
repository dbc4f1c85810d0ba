//! Reads the unidirectional streams of a client (RFC 9114, section 6.2; RFC 9204, section 4.2): its control stream, and
//! those of QPACK, on which nothing may change a table that has no room. Keeps a few bytes of each.

use bytes::Bytes;

use crate::proxy::server::http3::error::{
    Code, EXCESSIVE_LOAD, FRAME_ERROR, FRAME_UNEXPECTED, ID_ERROR, MISSING_SETTINGS, QPACK_DECODER_STREAM_ERROR,
    QPACK_ENCODER_STREAM_ERROR, SETTINGS_ERROR, STREAM_CREATION_ERROR,
};
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::frame::{FrameItem, ItemSplitter};
use crate::proxy::server::http3::priority::{self, DEFAULT_URGENCY};
use crate::proxy::server::http3::varint;

const CONTROL: u64 = 0x0;
const PUSH: u64 = 0x1;
const ENCODER: u64 = 0x2;
const DECODER: u64 = 0x3;

/// The longest payload of SETTINGS: many more settings than there are.
const SETTINGS_MAX: u64 = 1024;
/// The longest payload of PRIORITY_UPDATE that is read.
const PRIORITY_MAX: u64 = 128;
/// Settings of HTTP/2 that HTTP/3 has not (RFC 9114, section 7.2.4.1).
const SETTINGS_OF_HTTP2: [u64; 4] = [0x2, 0x3, 0x4, 0x5];

/// The most bytes of the number of a stream behind its first one.
const NUMBER_MAX: u8 = 9;

/// The streams of which a client has one each.
#[derive(Default)]
pub struct CriticalStreams {
    control: bool,
    encoder: bool,
    decoder: bool,
}

/// One unidirectional stream.
pub enum UniStream {
    /// Its type has not arrived completely.
    Unknown {
        head: [u8; varint::LONGEST],
        filled: usize,
    },
    Control(ControlReader),
    /// Instructions of the client's encoder. None is possible but a capacity of 0.
    Encoder,
    /// Instructions of the client's decoder. `continued`: bytes of the current number behind its first, if it has some.
    Decoder {
        continued: Option<u8>,
    },
}

/// The result of reading bytes of a unidirectional stream.
#[derive(Debug, PartialEq, Eq)]
pub enum UniResult {
    /// The bytes were read. `idle_frames` of their frames had no effect.
    Read { idle_frames: u32 },
    /// The type of the stream is unknown, so nothing more of it is read.
    Ignored,
}

/// The urgency in a PRIORITY_UPDATE for the request stream with this number.
#[derive(Debug, PartialEq, Eq)]
pub struct UrgencyUpdate {
    pub number: u64,
    pub urgency: u8,
}

impl Default for UniStream {
    fn default() -> UniStream {
        UniStream::Unknown { head: [0; varint::LONGEST], filled: 0 }
    }
}

impl UniStream {
    /// Returns whether the connection ends when this stream does.
    pub fn is_critical(&self) -> bool {
        !matches!(self, UniStream::Unknown { .. })
    }

    /// Takes the updates that have been read.
    pub fn take_urgency_updates(&mut self) -> Vec<UrgencyUpdate> {
        match self {
            UniStream::Control(control) => std::mem::take(&mut control.updates),
            _ => Vec::new(),
        }
    }

    /// Reads `bytes`.
    ///
    /// # Errors
    /// The connection must end.
    pub fn read(&mut self, mut bytes: Bytes, critical: &mut CriticalStreams) -> Result<UniResult, Code> {
        if let UniStream::Unknown { head, filled } = self {
            let kind = loop {
                let Some(byte) = (!bytes.is_empty()).then(|| bytes.split_to(1)[0]) else {
                    return Ok(UniResult::Read { idle_frames: 0 });
                };
                head[*filled] = byte;
                *filled += 1;
                if let Some((kind, _)) = varint::read(&head[..*filled]) {
                    break kind;
                }
            };
            let (has_one, stream) = match kind {
                CONTROL => (&mut critical.control, UniStream::Control(ControlReader::default())),
                ENCODER => (&mut critical.encoder, UniStream::Encoder),
                DECODER => (&mut critical.decoder, UniStream::Decoder { continued: None }),
                PUSH => return Err(STREAM_CREATION_ERROR),
                _ => return Ok(UniResult::Ignored),
            };
            if std::mem::replace(has_one, true) {
                return Err(STREAM_CREATION_ERROR);
            }
            *self = stream;
        }
        match self {
            UniStream::Control(control) => control.read(bytes).map(|idle_frames| UniResult::Read { idle_frames }),
            // Set Dynamic Table Capacity is `001` and the capacity, which may only be 0.
            UniStream::Encoder => match bytes.iter().all(|byte| *byte == 0x20) {
                true => Ok(UniResult::Read { idle_frames: u32::try_from(bytes.len()).unwrap_or(u32::MAX) }),
                false => Err(QPACK_ENCODER_STREAM_ERROR),
            },
            UniStream::Decoder { continued } => read_cancellations(&bytes, continued),
            UniStream::Unknown { .. } => Ok(UniResult::Ignored),
        }
    }
}

/// Reads instructions of the client's decoder. Nothing can be acknowledged; a stream may be cancelled: `01` and its
/// number.
fn read_cancellations(bytes: &[u8], continued: &mut Option<u8>) -> Result<UniResult, Code> {
    for byte in bytes {
        *continued = match *continued {
            None if byte & 0xc0 != 0x40 => return Err(QPACK_DECODER_STREAM_ERROR),
            None => (byte & 0x3f == 0x3f).then_some(0),
            Some(NUMBER_MAX) => return Err(QPACK_DECODER_STREAM_ERROR),
            Some(count) => (byte & 0x80 != 0).then_some(count + 1),
        };
    }
    Ok(UniResult::Read { idle_frames: u32::try_from(bytes.len()).unwrap_or(u32::MAX) })
}

/// Reads the control stream.
#[derive(Default)]
pub struct ControlReader {
    splitter: ItemSplitter,
    has_settings: bool,
    /// The frame whose payload is kept; `None` for one that is skipped.
    kind: Option<u64>,
    payload: Vec<u8>,
    max_push_id: Option<u64>,
    /// The number of the last GOAWAY.
    goaway: Option<u64>,
    updates: Vec<UrgencyUpdate>,
}

impl ControlReader {
    /// Returns how many frames brought nothing.
    fn read(&mut self, mut bytes: Bytes) -> Result<u32, Code> {
        let mut idle_frames = 0;
        while let Some(item) = self.splitter.next(&mut bytes) {
            match item {
                FrameItem::Begin { kind, length } => {
                    idle_frames += 1;
                    self.begin(kind, length)?;
                }
                FrameItem::Payload(payload) if self.kind.is_some() => self.payload.extend_from_slice(&payload),
                FrameItem::Payload(_) => {}
                FrameItem::End => self.end()?,
            }
        }
        Ok(idle_frames)
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<(), Code> {
        self.kind = None;
        if !self.has_settings && kind != frame::SETTINGS {
            return Err(MISSING_SETTINGS);
        }
        match kind {
            frame::SETTINGS if self.has_settings => return Err(FRAME_UNEXPECTED),
            frame::SETTINGS if length > SETTINGS_MAX => return Err(EXCESSIVE_LOAD),
            frame::SETTINGS => self.has_settings = true,
            frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH => {
                if length == 0 || length > varint::LONGEST as u64 {
                    return Err(FRAME_ERROR);
                }
            }
            // A longer one has parameters that nobody knows.
            frame::PRIORITY_UPDATE_OF_REQUEST if length > PRIORITY_MAX => return Ok(()),
            frame::PRIORITY_UPDATE_OF_REQUEST => {}
            frame::PRIORITY_UPDATE_OF_PUSH => return Err(ID_ERROR),
            frame::DATA | frame::HEADERS | frame::PUSH_PROMISE => return Err(FRAME_UNEXPECTED),
            _ if frame::OF_HTTP2.contains(&kind) => return Err(FRAME_UNEXPECTED),
            _ => return Ok(()),
        }
        self.kind = Some(kind);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Code> {
        let Some(kind) = self.kind.take() else { return Ok(()) };
        let payload = std::mem::take(&mut self.payload);
        if kind == frame::SETTINGS {
            return check_settings(&payload);
        }
        let (id, length) = varint::read(&payload).ok_or(FRAME_ERROR)?;
        if kind == frame::PRIORITY_UPDATE_OF_REQUEST {
            // The numbers of request streams are multiples of 4.
            if id % 4 != 0 {
                return Err(ID_ERROR);
            }
            let urgency = priority::find_urgency(&payload[length..]).unwrap_or(DEFAULT_URGENCY);
            self.updates.push(UrgencyUpdate { number: id, urgency });
            return Ok(());
        }
        if length != payload.len() {
            return Err(FRAME_ERROR);
        }
        match kind {
            frame::MAX_PUSH_ID if self.max_push_id.is_some_and(|before| id < before) => Err(ID_ERROR),
            frame::MAX_PUSH_ID => {
                self.max_push_id = Some(id);
                Ok(())
            }
            // Nothing was promised that could be cancelled.
            frame::CANCEL_PUSH => Err(ID_ERROR),
            frame::GOAWAY if self.goaway.is_some_and(|before| id > before) => Err(ID_ERROR),
            frame::GOAWAY => {
                self.goaway = Some(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Checks the payload of SETTINGS. No setting changes what the gateway sends.
fn check_settings(mut payload: &[u8]) -> Result<(), Code> {
    let mut seen = Vec::new();
    while !payload.is_empty() {
        let (id, length) = varint::read(payload).ok_or(FRAME_ERROR)?;
        let (_, value_length) = varint::read(&payload[length..]).ok_or(FRAME_ERROR)?;
        payload = &payload[length + value_length..];
        if SETTINGS_OF_HTTP2.contains(&id) || seen.contains(&id) {
            return Err(SETTINGS_ERROR);
        }
        seen.push(id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        frame::write_head(kind, payload.len(), &mut frame);
        frame.extend_from_slice(payload);
        frame
    }

    /// Reads a stream byte by byte and as a whole, which must make no difference.
    fn read(bytes: &[u8]) -> Result<UniResult, Code> {
        let whole = UniStream::default().read(Bytes::copy_from_slice(bytes), &mut CriticalStreams::default());
        let (mut stream, mut critical) = (UniStream::default(), CriticalStreams::default());
        let mut idle = 0;
        let mut last = Ok(UniResult::Read { idle_frames: 0 });
        for byte in bytes {
            last = stream.read(Bytes::copy_from_slice(&[*byte]), &mut critical);
            match last {
                Ok(UniResult::Read { idle_frames }) => idle += idle_frames,
                _ => break,
            }
        }
        let last = last
            .map(|result| if result == UniResult::Ignored { result } else { UniResult::Read { idle_frames: idle } });
        assert_eq!(whole, last, "{bytes:?}");
        whole
    }

    fn control(frames: &[Vec<u8>]) -> Result<(), Code> {
        read(&[&[0][..], &frames.concat()].concat()).map(drop)
    }

    #[test]
    fn the_control_stream_begins_with_one_settings_frame() {
        let settings = frame(frame::SETTINGS, &[0x01, 0x00, 0x06, 0x40, 0x80, 0x21, 0x05]);
        assert_eq!(control(std::slice::from_ref(&settings)), Ok(()));
        assert_eq!(control(&[frame(frame::SETTINGS, b"")]), Ok(()));
        assert_eq!(control(&[settings.clone(), frame(0x21, &[0; 3000]), frame(0xf0700, b"\0u=1")]), Ok(()));
        assert_eq!(control(&[settings.clone(), frame(0xf0700, &[0; 129])]), Ok(()));
        for kind in [frame::DATA, frame::HEADERS, frame::GOAWAY, frame::MAX_PUSH_ID, frame::CANCEL_PUSH, 0x21] {
            assert_eq!(control(&[frame(kind, b"\0")]), Err(MISSING_SETTINGS), "{kind}");
        }
        for kind in [0x0, 0x1, 0x2, 0x4, 0x5, 0x6, 0x8, 0x9] {
            assert_eq!(control(&[settings.clone(), frame(kind, b"\0")]), Err(FRAME_UNEXPECTED), "{kind}");
        }
    }

    #[test]
    fn settings_are_whole_known_to_http3_and_not_repeated() {
        for (payload, code) in [
            (&[0x06, 0x05, 0x06, 0x05][..], SETTINGS_ERROR),
            (&[0x02, 0x00], SETTINGS_ERROR),
            (&[0x03, 0x00], SETTINGS_ERROR),
            (&[0x04, 0x00], SETTINGS_ERROR),
            (&[0x05, 0x00], SETTINGS_ERROR),
            (&[0x06], FRAME_ERROR),
            (&[0x06, 0x40], FRAME_ERROR),
            (&[0x40], FRAME_ERROR),
        ] {
            assert_eq!(control(&[frame(frame::SETTINGS, payload)]), Err(code), "{payload:?}");
        }
        assert_eq!(control(&[frame(frame::SETTINGS, &[0; 1025])]), Err(EXCESSIVE_LOAD));
    }

    #[test]
    fn ids_are_whole_and_change_in_one_direction() {
        let settings = frame(frame::SETTINGS, b"");
        for kind in [frame::GOAWAY, frame::MAX_PUSH_ID, frame::CANCEL_PUSH] {
            for payload in [&b""[..], b"\0\0", b"\x40", &[0; 9]] {
                assert_eq!(control(&[settings.clone(), frame(kind, payload)]), Err(FRAME_ERROR), "{kind} {payload:?}");
            }
        }
        let numbers = |kind, ids: &[u8]| {
            let frames = ids.iter().map(|id| frame(kind, &[*id]));
            control(&[settings.clone()].into_iter().chain(frames).collect::<Vec<_>>())
        };
        let push_ids = |ids| numbers(frame::MAX_PUSH_ID, ids);
        assert_eq!((push_ids(&[1, 1, 5]), push_ids(&[5, 4])), (Ok(()), Err(ID_ERROR)));
        let goaways = |ids| numbers(frame::GOAWAY, ids);
        assert_eq!((goaways(&[8]), goaways(&[5, 5, 1]), goaways(&[1, 5])), (Ok(()), Ok(()), Err(ID_ERROR)));
        assert_eq!(control(&[settings.clone(), frame(frame::CANCEL_PUSH, &[0])]), Err(ID_ERROR));
    }

    #[test]
    fn priorities_are_of_request_streams() {
        let settings = frame(frame::SETTINGS, b"");
        for (kind, payload, code) in [
            (0xf0700, &b""[..], FRAME_ERROR),
            (0xf0700, b"\x40", FRAME_ERROR),
            (0xf0700, b"\x01u=1", ID_ERROR),
            (0xf0700, b"\x02u=1", ID_ERROR),
            (0xf0701, b"\0u=1", ID_ERROR),
        ] {
            assert_eq!(control(&[settings.clone(), frame(kind, payload)]), Err(code), "{payload:?}");
        }
        assert_eq!(control(&[frame(0xf0700, b"\0u=1")]), Err(MISSING_SETTINGS));
        let mut stream = UniStream::default();
        let updates = [frame(0xf0700, b"\0u=1, i"), frame(0xf0700, b"\x40\x64"), frame(0xf0700, b"\x08u=9")].concat();
        let bytes = [&[0][..], &settings, &updates].concat();
        assert_eq!(stream.read(bytes.into(), &mut CriticalStreams::default()), Ok(UniResult::Read { idle_frames: 4 }));
        let read = stream.take_urgency_updates().into_iter().map(|update| (update.number, update.urgency));
        assert_eq!(read.collect::<Vec<_>>(), [(0, 1), (100, 3), (8, 3)]);
    }

    #[test]
    fn each_critical_stream_exists_once_and_clients_do_not_push() {
        assert_eq!(read(&[1, 0]), Err(STREAM_CREATION_ERROR));
        assert_eq!(read(&[0x21, 1, 2, 3]), Ok(UniResult::Ignored));
        assert_eq!(read(&[0x40, 0x54, 1]), Ok(UniResult::Ignored));
        for kind in [0, 2, 3] {
            let (mut critical, kind) = (CriticalStreams::default(), Bytes::copy_from_slice(&[kind]));
            let mut first = UniStream::default();
            assert!(first.read(kind.clone(), &mut critical).is_ok() && first.is_critical());
            assert_eq!(UniStream::default().read(kind, &mut critical), Err(STREAM_CREATION_ERROR));
        }
    }

    #[test]
    fn no_instruction_changes_a_table_without_room() {
        assert!(read(&[2, 0x20, 0x20]).is_ok());
        for instruction in [&[0x21][..], &[0x3f, 0xbd, 0x01], &[0x80, 0], &[0xc0, 0], &[0x40, 0], &[0x00]] {
            assert_eq!(read(&[&[2], instruction].concat()), Err(QPACK_ENCODER_STREAM_ERROR), "{instruction:?}");
        }
        assert!(read(&[3, 0x40, 0x44, 0x7f, 0x80, 0x01, 0x7f, 0x00]).is_ok());
        let endless = [&[0x7f][..], &[0x80; 11]].concat();
        for instruction in [&[0x00][..], &[0x01], &[0x80], &[0x84], &endless] {
            assert_eq!(read(&[&[3], instruction].concat()), Err(QPACK_DECODER_STREAM_ERROR), "{instruction:?}");
        }
    }
}
