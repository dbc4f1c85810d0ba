//! Memory of large request bodies that are read before the limits decide. All workers share it. A body for which
//! nothing is left is not read, like one that is too long.
//!
//! A body reserves memory as it arrives, so that one that is only announced, or slow, takes nothing from others. It
//! returns the memory with its bytes, when the server has got them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};

/// Bytes of all such bodies at a time.
const BYTES_MAX: u64 = 64 << 20;
/// Bodies up to this size need no reservation: as many as there may be requests are bounded otherwise. Larger ones
/// reserve multiples of it.
const SMALL_BODY: usize = 64 << 10;

/// Bytes that are reserved.
#[derive(Debug, Default)]
pub struct BodyMemory(AtomicU64);

/// The reservation of one body, until it is dropped.
#[derive(Debug)]
pub struct BodyPermit {
    memory: Arc<BodyMemory>,
    bytes: u64,
}

/// The data of one body, as it arrives.
#[derive(Debug)]
pub struct GatheredBody {
    permit: BodyPermit,
    /// The first piece, as long as it is the only one. It is not copied.
    first: Bytes,
    /// All pieces in one buffer, because one buffer for each piece would take a multiple of a small piece's size.
    joined: BytesMut,
}

/// Bytes with the permit for their memory.
struct PermittedBytes {
    data: Bytes,
    _permit: Arc<BodyPermit>,
}

impl BodyPermit {
    fn new(memory: &Arc<BodyMemory>) -> BodyPermit {
        BodyPermit { memory: memory.clone(), bytes: 0 }
    }

    /// Reserves memory for `bytes` in all. Returns false if too little is left.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let needed_bytes = if bytes <= SMALL_BODY { 0 } else { bytes.next_multiple_of(SMALL_BODY) as u64 };
        let more = needed_bytes.saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let next = |reserved: u64| reserved.checked_add(more).filter(|sum| *sum <= BYTES_MAX);
        let grows = self.memory.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        self.bytes += if grows { more } else { 0 };
        grows
    }

    /// Returns `data`, which keeps the permit for as long as any of it is in use.
    pub fn keep_for(self: &Arc<Self>, data: Bytes) -> Bytes {
        Bytes::from_owner(PermittedBytes { data, _permit: self.clone() })
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl GatheredBody {
    pub fn new(memory: &Arc<BodyMemory>) -> GatheredBody {
        GatheredBody { permit: BodyPermit::new(memory), first: Bytes::new(), joined: BytesMut::new() }
    }

    pub fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// Appends a piece. Returns false if no memory is left for more than that piece.
    pub fn push(&mut self, piece: Bytes) -> bool {
        let has_room = self.permit.grow_to(self.len() + piece.len());
        if self.len() == 0 {
            self.first = piece;
        } else {
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
            self.joined.extend_from_slice(&piece);
        }
        has_room
    }

    /// Returns the data, and the permit that it keeps. `None` if it needs none.
    pub fn finish(self) -> (Bytes, Option<Arc<BodyPermit>>) {
        let GatheredBody { permit, first, joined } = self;
        let data = if joined.is_empty() { first } else { joined.freeze() };
        if permit.bytes == 0 {
            return (data, None);
        }
        let permit = Arc::new(permit);
        (permit.keep_for(data), Some(permit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(memory: &BodyMemory) -> u64 {
        memory.0.load(Ordering::Relaxed)
    }

    #[test]
    fn memory_is_bounded_and_returned() {
        let memory = Arc::<BodyMemory>::default();
        let [mut one, mut other] = [BodyPermit::new(&memory), BodyPermit::new(&memory)];
        let half = usize::try_from(BYTES_MAX / 2).unwrap();
        assert!(one.grow_to(half) && !other.grow_to(half + 1) && !one.grow_to(usize::MAX / 2));
        assert!(other.grow_to(half) && !one.grow_to(half + 1) && one.grow_to(half - 1));
        drop(one);
        assert!(other.grow_to(2 * half));
        drop(other);
        assert_eq!(reserved(&memory), 0);
    }

    #[test]
    fn a_body_reserves_what_has_arrived_and_returns_it_with_its_last_byte() {
        let memory = Arc::<BodyMemory>::default();
        let mut body = GatheredBody::new(&memory);
        for _ in 0..SMALL_BODY {
            assert!(body.push(Bytes::from_static(b"x")));
        }
        assert_eq!(reserved(&memory), 0);
        assert!(body.push(Bytes::from_static(b"yz")));
        assert_eq!((reserved(&memory), body.len()), (2 * SMALL_BODY as u64, SMALL_BODY + 2));
        let (mut data, permit) = body.finish();
        assert_eq!(data.split_off(SMALL_BODY - 1), "xyz");
        drop(permit);
        assert_eq!(reserved(&memory), 2 * SMALL_BODY as u64);
        drop(data);
        assert_eq!(reserved(&memory), 0);
    }

    #[test]
    fn many_small_pieces_take_one_buffer() {
        let memory = Arc::<BodyMemory>::default();
        let mut body = GatheredBody::new(&memory);
        let piece = Bytes::from(vec![b'x'; 100]);
        assert!(body.push(piece.clone()));
        assert_eq!(body.first.as_ptr(), piece.as_ptr());
        (0..99).for_each(|_| assert!(body.push(piece.clone())));
        assert!(body.first.is_empty() && body.joined.len() == 10_000 && body.joined.capacity() <= 20_000);
        let (data, permit) = body.finish();
        assert_eq!((&data[..], permit.is_none()), (&[b'x'; 10_000][..], true));
    }
}
