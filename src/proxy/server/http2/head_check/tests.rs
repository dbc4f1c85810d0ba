//! Random blocks of headers: the decoder of the library stays in step with this one, no malformed block ends the
//! connection, and the library reads well-formed blocks as they were sent.

use bytes::Bytes;
use http::Request;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::runtime::Builder;

use crate::proxy::server::http2::head_check::*;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// How a header is encoded.
#[derive(Clone, Debug)]
enum WrittenField {
    /// A literal name and value; true if the field is added to the table.
    Literal(usize, usize, bool),
    /// The name of a table entry (index modulo the table's size) and a value; true if the field is added to the table.
    Named(usize, usize, bool),
    /// A table entry.
    Indexed(usize),
}

const NAMES: [&[u8]; 14] = [
    b"x-a",
    b"x-bc",
    b"x-a-longer-name",
    b"cookie",
    b"te",
    b"content-length",
    b":method",
    b":path",
    b":protocol",
    b":status",
    b":unknown",
    b"X-Upper",
    b"",
    b"x y",
];
const VALUES: [&[u8]; 8] = [b"", b"1", b"trailers", b"GET", b"/path", b"a\r\nb", b"\0", &[b'v'; 900]];

/// The client's view of the dynamic table.
#[derive(Default)]
struct TestClient {
    table: Vec<(Vec<u8>, Vec<u8>)>,
    max_size: usize,
}

impl TestClient {
    fn shrink(&mut self) {
        while self.table.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > self.max_size {
            self.table.pop();
        }
    }

    fn keep(&mut self, name: &[u8], value: &[u8]) {
        self.table.insert(0, (name.to_vec(), value.to_vec()));
        self.shrink();
    }

    /// Appends a field to `block` and to `fields`.
    fn write(&mut self, written: &WrittenField, block: &mut Vec<u8>, fields: &mut Pairs) {
        let (name, value, is_kept) = match *written {
            WrittenField::Indexed(place) | WrittenField::Named(place, ..) if self.table.is_empty() => {
                (NAMES[place % 3].to_vec(), VALUES[1].to_vec(), false)
            }
            WrittenField::Indexed(place) => {
                let place = place % self.table.len();
                write_number(block, 0x80, 7, place + 62);
                return fields.push(self.table[place].clone());
            }
            WrittenField::Named(place, value, is_kept) => {
                let place = place % self.table.len();
                let (pattern, prefix) = if is_kept { (0x40, 6) } else { (0x10, 4) };
                write_number(block, pattern, prefix, place + 62);
                let (name, value) = (self.table[place].0.clone(), VALUES[value].to_vec());
                write_text(block, &value);
                if is_kept {
                    self.keep(&name, &value);
                }
                return fields.push((name, value));
            }
            WrittenField::Literal(name, value, is_kept) => (NAMES[name].to_vec(), VALUES[value].to_vec(), is_kept),
        };
        block.push(if is_kept { 0x40 } else { 0 });
        write_text(block, &name);
        write_text(block, &value);
        if is_kept {
            self.keep(&name, &value);
        }
        fields.push((name, value));
    }
}

fn write_number(block: &mut Vec<u8>, pattern: u8, prefix: u8, number: usize) {
    let mask = (1usize << prefix) - 1;
    if number < mask {
        return block.push(pattern | u8::try_from(number).unwrap());
    }
    block.push(pattern | u8::try_from(mask).unwrap());
    let mut rest = number - mask;
    while rest > 127 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

fn write_text(block: &mut Vec<u8>, text: &[u8]) {
    write_number(block, 0, 7, text.len());
    block.extend(text);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead { length: payload.len(), kind, flags, stream };
    [&head.write().unwrap()[..], payload].concat()
}

/// Returns whether the rules reject a head without a body that has these fields beside its pseudo fields.
fn is_malformed(fields: &Pairs) -> bool {
    let mut lengths = fields.iter().filter(|field| field.0 == b"content-length");
    lengths.any(|field| field.1 != b"0")
        || fields.iter().any(|(name, value)| match &name[..] {
            b"te" => value != b"trailers",
            b"X-Upper" | b"" | b"x y" => true,
            [b':', ..] => true,
            _ => value.iter().any(|byte| *byte < b' '),
        })
}

/// The fields that the library has read, without the pseudo fields.
fn read(request: &Request<h2::RecvStream>) -> Pairs {
    let fields = request.headers().iter();
    let mut fields: Pairs =
        fields.map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
    fields.sort_unstable();
    fields
}

/// Sends each head in pieces of `cut` bytes. Before it, the size of the table may change.
async fn send_all(heads: Vec<(Option<usize>, Vec<WrittenField>)>, cut: usize) {
    let (mut socket, server) = duplex(1 << 20);
    let (mut check, mut client) = (HeadCheck::new(32 * 1024), TestClient { table: Vec::new(), max_size: 4096 });
    let (mut expected, mut malformed, mut reported) = (Vec::new(), 0, 0);
    let mut sent = [&PREFACE[..], &frame(4, 0, 0, &[])].concat();
    let count = u32::try_from(heads.len()).unwrap();
    let last = (None, Vec::new());
    for (stream, (size, head)) in (1..).step_by(2).zip(heads.into_iter().chain([last])) {
        let mut block = Vec::new();
        if let Some(size) = size {
            write_number(&mut block, 0x20, 5, size);
            client.max_size = size;
            client.shrink();
        }
        block.extend([0x82, 0x86, 0x84]);
        let mut fields = Pairs::new();
        head.iter().for_each(|field| client.write(field, &mut block, &mut fields));
        let (first, rest) = block.split_at(block.len() / 2);
        sent.extend(frame(HEADERS, END_STREAM, stream, first));
        sent.extend(frame(CONTINUATION, END_HEADERS, stream, rest));
        sent.extend(frame(6, 0, 0, &[0; 8]));
        match is_malformed(&fields) {
            true => malformed += 1,
            false => {
                fields.sort_unstable();
                expected.push(fields);
            }
        }
    }
    for piece in sent.chunks(cut) {
        let checked = check.check(piece, |_, _| reported += 1).unwrap();
        if let CheckedBytes::First(passed) = checked {
            socket.write_all(&piece[..passed]).await.unwrap();
        }
        socket.write_all(&check.take_passing().unwrap_or_default()).await.unwrap();
    }
    assert_eq!((reported, check.ends_connection()), (malformed, false));

    let mut library =
        h2::server::Builder::new().max_header_list_size(1 << 20).handshake::<_, Bytes>(server).await.unwrap();
    let mut accepted = Vec::new();
    while accepted.len() < expected.len() {
        // The answer is dropped: of no interest.
        let (request, _) = library.accept().await.expect("the connection has ended").unwrap();
        accepted.push(read(&request));
    }
    assert_eq!(accepted, expected, "of {count} heads");
}

fn written() -> impl Strategy<Value = WrittenField> {
    prop_oneof![
        4 => (0..NAMES.len(), 1..VALUES.len(), any::<bool>()).prop_map(|(name, value, kept)| WrittenField::Literal(name, value, kept)),
        // Mostly good ones, or hardly any head would be.
        8 => (0..4usize, 0..5usize, any::<bool>()).prop_map(|(name, value, kept)| WrittenField::Literal(name, value, kept)),
        4 => (0..100usize, 1..VALUES.len(), any::<bool>()).prop_map(|(place, value, kept)| WrittenField::Named(place, value, kept)),
        8 => (0..100usize).prop_map(WrittenField::Indexed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_library_stays_in_sync_with_any_input(
        heads in prop::collection::vec(
            (prop_oneof![6 => Just(None), 1 => (0..=4096usize).prop_map(Some)], prop::collection::vec(written(), 0..6)),
            1..25,
        ),
        cut in prop_oneof![Just(1usize), 2..40usize, Just(100_000)],
    ) {
        Builder::new_current_thread().build().unwrap().block_on(send_all(heads, cut));
    }

    /// Bytes that are no HTTP/2 neither panic nor make more of themselves than the replacement of a block takes.
    #[test]
    fn any_bytes_are_checked(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        frames in prop::collection::vec((0..12u8, any::<u8>(), 0..6u32, prop::collection::vec(any::<u8>(), 0..60)), 0..12),
        cut in 1..80usize,
    ) {
        let frames = frames.iter().flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload));
        let sent: Vec<u8> = PREFACE.iter().copied().chain(frames).chain(bytes).collect();
        let mut check = HeadCheck::new(32 * 1024);
        let mut passed = 0;
        for piece in sent.chunks(cut) {
            let Ok(checked) = check.check(piece, |_, _| {}) else { return Ok(()) };
            if let CheckedBytes::First(first) = checked {
                passed += first;
            }
            passed += check.take_passing().map_or(0, |bytes| bytes.len());
        }
        prop_assert!(passed <= sent.len() + 13 * 8192);
    }
}
