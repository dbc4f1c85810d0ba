//! Memory of large request bodies that are read before the limits decide. All workers share it. A body for which
//! nothing is left is not read, like one that is too long.
//!
//! A body reserves memory as it arrives, so that one that is only announced, or slow, takes nothing from others. It
//! returns the memory with its bytes, when the server has got them. No client may hold more than it leaves free, so
//! that one client gets half of the memory, the next one half of the rest or more, and none can shut out others.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::proxy::connection::client_counts::ClientCounts;

/// Bytes of all such bodies at a time.
const BYTES_MAX: usize = 64 << 20;
/// Bodies up to this size need no reservation: as many as there may be requests are bounded otherwise. Larger ones
/// reserve multiples of it.
const SMALL_BODY: usize = 64 << 10;

/// Bytes that are reserved.
#[derive(Debug, Default)]
pub struct BodyMemory(Mutex<Reserved>);

#[derive(Debug, Default)]
struct Reserved {
    total: usize,
    by_client: ClientCounts,
}

/// The reservation of one body, until it is dropped.
#[derive(Debug)]
pub struct BodyPermit {
    memory: Arc<BodyMemory>,
    client: IpAddr,
    bytes: usize,
}

/// The data of one body, as it arrives.
#[derive(Debug)]
pub struct GatheredBody {
    permit: BodyPermit,
    /// The first piece, which is not copied as long as it is the only one.
    first: Bytes,
    /// All pieces in one buffer, because one buffer for each piece would take a multiple of a small piece's size.
    joined: BytesMut,
}

/// Bytes with the permit for their memory.
struct PermittedBytes {
    data: Bytes,
    _permit: Arc<BodyPermit>,
}

impl BodyMemory {
    /// Reserves `more` bytes for a client. Returns false if it would then hold more than is left for others.
    fn reserve(&self, client: IpAddr, more: usize) -> bool {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = reserved.total.saturating_add(more);
        let own = reserved.by_client.of(client).saturating_add(more);
        let is_left = BYTES_MAX.checked_sub(total).is_some_and(|left| own <= left);
        if is_left {
            reserved.total = total;
            reserved.by_client.add(client, more);
        }
        is_left
    }

    fn release(&self, client: IpAddr, bytes: usize) {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.total -= bytes;
        reserved.by_client.subtract(client, bytes);
    }
}

impl BodyPermit {
    /// Creates the permit of a body, without any memory.
    pub fn new(memory: &Arc<BodyMemory>, client: IpAddr) -> BodyPermit {
        BodyPermit { memory: memory.clone(), client, bytes: 0 }
    }

    /// Reserves memory for `bytes` in all. Returns false if too little is left.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let needed_bytes = if bytes <= SMALL_BODY { 0 } else { bytes.next_multiple_of(SMALL_BODY) };
        let more = needed_bytes.saturating_sub(self.bytes);
        let grows = more == 0 || self.memory.reserve(self.client, more);
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
        if self.bytes > 0 {
            self.memory.release(self.client, self.bytes);
        }
    }
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl GatheredBody {
    pub fn new(permit: BodyPermit) -> GatheredBody {
        GatheredBody { permit, first: Bytes::new(), joined: BytesMut::new() }
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

    fn reserved(memory: &BodyMemory) -> usize {
        let reserved = memory.0.lock().unwrap();
        assert_eq!(reserved.by_client.sum(), reserved.total);
        reserved.total
    }

    fn permit_of(memory: &Arc<BodyMemory>, client: &str) -> BodyPermit {
        BodyPermit::new(memory, client.parse().unwrap())
    }

    #[test]
    fn memory_is_bounded_and_returned() {
        let memory = Arc::<BodyMemory>::default();
        let mut permits: Vec<BodyPermit> =
            (0..4000).map(|at| permit_of(&memory, &format!("2001:db8:0:{at:x}::1"))).collect();
        let all: usize = permits.iter_mut().map(|permit| usize::from(permit.grow_to(2 * SMALL_BODY))).sum();
        assert_eq!((all, reserved(&memory)), (511, 511 * 2 * SMALL_BODY));
        assert!(!permit_of(&memory, "192.0.2.1").grow_to(usize::MAX / 2));
        drop(permits);
        assert_eq!(reserved(&memory), 0);
    }

    #[test]
    fn no_client_holds_more_than_it_leaves_to_others() {
        let memory = Arc::<BodyMemory>::default();
        let mebibytes = |count: usize| count << 20;
        // All addresses of an IPv6 client, and all its bodies, count together.
        let mut greedy = ["2001:db8::1", "2001:db8::2"].map(|client| permit_of(&memory, client));
        assert!(
            greedy[0].grow_to(mebibytes(20)) && greedy[1].grow_to(mebibytes(12)) && !greedy[1].grow_to(mebibytes(13))
        );
        let mut other = permit_of(&memory, "192.0.2.1");
        assert!(other.grow_to(mebibytes(16)) && !other.grow_to(mebibytes(17)));
        let mut third = permit_of(&memory, "192.0.2.2");
        assert!(third.grow_to(mebibytes(8)) && !third.grow_to(mebibytes(9)));
        // The first one gets no more as long as others need it.
        drop(std::mem::replace(&mut greedy[1], permit_of(&memory, "2001:db8::2")));
        assert!(!greedy[1].grow_to(mebibytes(1)) && third.grow_to(mebibytes(14)));
        drop((other, third));
        assert!(greedy[1].grow_to(mebibytes(12)));
        drop(greedy);
        assert_eq!(reserved(&memory), 0);
    }

    #[test]
    fn a_body_reserves_what_has_arrived_and_returns_it_with_its_last_byte() {
        let memory = Arc::<BodyMemory>::default();
        let mut body = GatheredBody::new(permit_of(&memory, "192.0.2.1"));
        for _ in 0..SMALL_BODY {
            assert!(body.push(Bytes::from_static(b"x")));
        }
        assert_eq!(reserved(&memory), 0);
        assert!(body.push(Bytes::from_static(b"yz")));
        assert_eq!((reserved(&memory), body.len()), (2 * SMALL_BODY, SMALL_BODY + 2));
        let (mut data, permit) = body.finish();
        assert_eq!(data.split_off(SMALL_BODY - 1), "xyz");
        drop(permit);
        assert_eq!(reserved(&memory), 2 * SMALL_BODY);
        drop(data);
        assert_eq!(reserved(&memory), 0);
    }

    #[test]
    fn many_small_pieces_take_one_buffer() {
        let memory = Arc::<BodyMemory>::default();
        let mut body = GatheredBody::new(permit_of(&memory, "192.0.2.1"));
        let piece = Bytes::from(vec![b'x'; 100]);
        assert!(body.push(piece.clone()));
        assert_eq!(body.first.as_ptr(), piece.as_ptr());
        (0..99).for_each(|_| assert!(body.push(piece.clone())));
        assert!(body.first.is_empty() && body.joined.len() == 10_000 && body.joined.capacity() <= 20_000);
        let (data, permit) = body.finish();
        assert_eq!((&data[..], permit.is_none()), (&[b'x'; 10_000][..], true));
    }
}
