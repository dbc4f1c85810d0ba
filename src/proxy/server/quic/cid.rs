//! Connection IDs that say which worker has the connection. The kernel sends a client's packets to a worker by the
//! client's address, which changes when a NAT forgets it or the client moves to another network. A worker that gets a
//! packet of another worker's connection passes it on.
//!
//! An ID is a byte whose remainder by the number of workers is the worker, five random bytes, and a tag that only this
//! process can compute. So no client can address workers by IDs of its own, and IDs of an earlier process are unknown.

use std::time::Duration;

use aws_lc_rs::hmac;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

const CID_LENGTH: usize = 10;
/// Bytes of an ID in front of its tag.
const BODY: usize = 6;
/// Number of workers that one byte can name.
pub const WORKERS_MAX: usize = 256;

/// The offset of the receiver's connection ID in a long header, behind its length, and in a short header.
const LONG_START: usize = 6;
const SHORT_START: usize = 1;

/// The key of the tags, and the number of workers.
#[derive(Clone)]
pub struct CidKey {
    key: hmac::Key,
    workers: usize,
}

impl CidKey {
    /// Makes the key of a new group of sockets, one for each worker. Workers beyond [`WORKERS_MAX`] get none.
    pub fn new(workers: usize) -> CidKey {
        let secret = rand::random::<[u8; 32]>();
        CidKey { key: hmac::Key::new(hmac::HMAC_SHA256, &secret), workers: workers.clamp(1, WORKERS_MAX) }
    }

    fn tag(&self, body: &[u8]) -> [u8; CID_LENGTH - BODY] {
        let tag = hmac::sign(&self.key, body);
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }

    /// Returns the worker that has made `cid`. `None`: this process has not made it.
    fn find_worker(&self, cid: &[u8]) -> Option<usize> {
        let (body, tag) = cid.split_at_checked(BODY)?;
        (tag == self.tag(body)).then(|| usize::from(body[0]) % self.workers)
    }

    /// Returns the worker for a datagram, if `own` is not the one.
    pub fn find_other_worker(&self, datagram: &[u8], own: usize) -> Option<usize> {
        let first = *datagram.first()?;
        let start = match first & 0x80 {
            0 => SHORT_START,
            _ if usize::from(*datagram.get(LONG_START - 1)?) == CID_LENGTH => LONG_START,
            _ => return None,
        };
        let cid = datagram.get(start..start + CID_LENGTH)?;
        if usize::from(cid[0]) % self.workers == own {
            return None;
        }
        self.find_worker(cid)
    }
}

/// Makes the connection IDs of one worker.
pub struct WorkerCids {
    pub key: CidKey,
    pub worker: usize,
}

impl ConnectionIdGenerator for WorkerCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut cid = [0; CID_LENGTH];
        let mut body = rand::random::<[u8; BODY]>();
        let rounds = WORKERS_MAX / self.key.workers;
        let first = usize::from(body[0]) % rounds * self.key.workers + self.worker;
        body[0] = u8::try_from(first).unwrap_or_default();
        cid[..BODY].copy_from_slice(&body);
        cid[BODY..].copy_from_slice(&self.key.tag(&body));
        ConnectionId::new(&cid)
    }

    /// Accepts the IDs of this worker only. For others the library would make a stateless reset, and anybody could end
    /// a connection of another worker with the secret that is in it.
    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        if self.key.find_worker(cid) == Some(self.worker) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_worker_and_nobody_else_can_make_one() {
        for workers in [1, 2, 3, 7, 100, 256] {
            let key = CidKey::new(workers);
            for worker in [0, workers / 2, workers - 1] {
                let mut ids = WorkerCids { key: key.clone(), worker };
                for _ in 0..100 {
                    let cid = ids.generate_cid();
                    assert_eq!(key.find_worker(&cid), Some(worker), "{workers}");
                    assert!(ids.validate(&cid).is_ok());
                    let other = WorkerCids { key: key.clone(), worker: worker + 1 };
                    assert!(other.validate(&cid).is_err());
                    assert_eq!(CidKey::new(workers).find_worker(&cid), None, "an earlier process");
                    let mut forged = cid.to_vec();
                    forged[3] ^= 1;
                    assert_eq!(key.find_worker(&forged), None);
                }
            }
        }
    }

    #[test]
    fn packets_go_to_the_worker_of_their_connection() {
        let key = CidKey::new(4);
        let cid = WorkerCids { key: key.clone(), worker: 2 }.generate_cid();
        let short = [&[0x40][..], &cid, b"rest"].concat();
        let long = [&[0xc0, 0, 0, 0, 1, 10][..], &cid, b"\x00rest"].concat();
        for packet in [&short, &long] {
            assert_eq!((key.find_other_worker(packet, 1), key.find_other_worker(packet, 2)), (Some(2), None));
            assert_eq!(key.find_other_worker(&packet[..10], 1), None);
        }
        let first = [&[0xc0, 0, 0, 0, 1, 8][..], b"12345678", b"\x00rest"].concat();
        assert!((0..4).all(|own| key.find_other_worker(&first, own).is_none()), "an ID that the client has chosen");
        assert_eq!(key.find_other_worker(b"", 0), None);
    }
}
