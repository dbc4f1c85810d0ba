//! Header names in the case in which a client or a server has written them (`header_case`, HTTP/1.1 only). Everything
//! in the gateway has names in lower case; a head gets its spelling back as bytes, when it is written. A name in
//! another case has the same length.

use memchr::{memchr, memmem};

/// A new id of a span is written to this header later, where its line is found by its name.
const LATER: &[u8] = b"traceparent";

/// The names of one head that are not in lower case.
#[derive(Clone, Debug, Default)]
pub struct SpelledNames(Vec<Box<[u8]>>);

impl SpelledNames {
    /// Adds the name of a header line.
    pub fn add(&mut self, name: &[u8]) {
        if name.iter().any(u8::is_ascii_uppercase) && !name.eq_ignore_ascii_case(LATER) {
            self.0.push(name.into());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the names to the lines of a head, which begins with its first line. Other names stay in lower case, and
    /// so does what follows the head. Of several spellings of a name, the first counts.
    pub fn respell_head(&self, head: &mut [u8]) {
        let mut at = 0;
        while let Some(end) = memchr(b'\n', &head[at..]) {
            at += end + 1;
            let line = &mut head[at..];
            if line.starts_with(b"\r") {
                return;
            }
            let Some(colon) = memchr(b':', line) else { return };
            let name = &mut line[..colon];
            if let Some(spelled) = self.0.iter().find(|spelled| spelled.eq_ignore_ascii_case(name)) {
                name.copy_from_slice(spelled);
            }
        }
    }
}

/// The spelling of a response that is about to be written.
#[derive(Debug)]
pub struct ResponseSpelling {
    names: SpelledNames,
    /// The rest of a head that has been written in part.
    pub rest: Vec<u8>,
}

impl ResponseSpelling {
    pub fn new(names: SpelledNames) -> ResponseSpelling {
        ResponseSpelling { names, rest: Vec::new() }
    }

    /// Takes the head at the start of `bytes`, unless a part of it has been written. Returns false if there is none.
    pub fn take_head(&mut self, bytes: &[u8]) -> bool {
        if self.rest.is_empty()
            && bytes.starts_with(b"HTTP/1.")
            && let Some(end) = memmem::find(bytes, b"\r\n\r\n")
        {
            self.rest = bytes[..end + 4].to_vec();
            self.names.respell_head(&mut self.rest);
        }
        !self.rest.is_empty() && self.rest.len() <= bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> SpelledNames {
        let mut spelled = SpelledNames::default();
        names.iter().for_each(|name| spelled.add(name.as_bytes()));
        spelled
    }

    #[test]
    fn a_head_gets_its_names_back() {
        let spelled = names(&["X-API-Key", "host", "HOST", "ETag", "Traceparent", "x-api-KEY"]);
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\n\r\n", "GET / HTTP/1.1\r\nHOST: a\r\nX-API-Key: k\r\n\r\n"),
            (
                "X\r\netag: x-api-key: 1\r\nx-b: etag\r\n\r\netag: 1\r\n",
                "X\r\nETag: x-api-key: 1\r\nx-b: etag\r\n\r\netag: 1\r\n",
            ),
            ("X\r\ntraceparent: 1\r\nx-api-key2: 1\r\n\r\n", "X\r\ntraceparent: 1\r\nx-api-key2: 1\r\n\r\n"),
            ("X\r\n\r\n", "X\r\n\r\n"),
            ("", ""),
            ("etag", "etag"),
            ("X\r\netag", "X\r\netag"),
        ] {
            let mut bytes = head.as_bytes().to_vec();
            spelled.respell_head(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn only_the_head_of_a_response_is_taken() {
        let mut spelling = ResponseSpelling::new(names(&["ETag"]));
        assert!(!spelling.take_head(b"etag: 1\r\n\r\n"));
        assert!(!spelling.take_head(b"HTTP/1.1 200 OK\r\netag: 1\r\n"));
        assert!(spelling.take_head(b"HTTP/1.1 200 OK\r\netag: 1\r\n\r\netag: 2\r\n\r\n"));
        assert_eq!(spelling.rest, b"HTTP/1.1 200 OK\r\nETag: 1\r\n\r\n");
        // The next bytes are those after the part that has been written.
        spelling.rest.drain(..10);
        assert!(spelling.take_head(b"00 OK\r\netag: 1\r\n\r\netag: 2\r\n\r\n"));
        assert_eq!(spelling.rest, b"00 OK\r\nETag: 1\r\n\r\n");
    }
}
