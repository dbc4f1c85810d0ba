//! Slots for admin connections. A new connection always gets a slot: if all are taken, the oldest connection that
//! waits for its client loses its own. Slow or silent clients therefore never keep a probe out. Used by `serve` and
//! `pages`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

#[derive(Default)]
pub struct AdminSlots(RefCell<SlotTable>);

#[derive(Default)]
struct SlotTable {
    /// Slots in order of arrival.
    taken: BTreeMap<u64, SlotEntry>,
    arrivals: u64,
    at_work: usize,
    held: usize,
    /// The streams that are open.
    streams: Vec<StreamClaim>,
}

/// A stream's claim to one of the slots for streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamClaim {
    /// The token, or without tokens the peer.
    pub owner: String,
    /// The stream is a tap; otherwise it is a live stream, which lower roles may open.
    pub is_tap: bool,
}

struct SlotEntry {
    at_work: bool,
    held: usize,
    /// Dropped with the slot, which tells the connection that it lost it.
    lost: oneshot::Sender<()>,
}

/// A connection's permit of its slot, which is released when dropped.
pub struct AdminPermit {
    slots: Rc<AdminSlots>,
    arrival: u64,
    /// Kept by a connection that moved to a slot for streams, so that it never loses its slot.
    _kept: RefCell<Option<oneshot::Sender<()>>>,
    /// When the connection last took or polled for a piece of its stream; `None` if it does not stream.
    stream_read: Cell<Option<Instant>>,
    /// Notified once the stream has ended.
    stream_end: Notify,
}

/// Resolves when the slot is lost.
pub type SlotLost = oneshot::Receiver<()>;

/// While it exists, the connection waits for the gateway and keeps its slot.
pub struct WorkPermit<'t>(&'t AdminPermit);

/// The permit of a connection that streams its response. Streams have a few slots of their own, which are not counted
/// among the others. The task that makes the events and the one that sends them each have a handle; the slot is
/// released when the first handle is dropped.
pub struct StreamPermit {
    permit: Rc<AdminPermit>,
    claim: StreamClaim,
}

const PLACES: usize = 512;
/// Maximum number of streams.
const STREAMS: usize = 16;
/// Maximum number of live streams: the others are left to taps, which need a higher role.
const LIVE_STREAMS: usize = 12;
/// Maximum number of streams, and of taps, of one token or peer.
const OWN_STREAMS: usize = 8;
const OWN_TAPS: usize = 4;
/// Time to send what is left of a stream that has ended.
const REST_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose client has read nothing of its stream for this long loses its slot.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of connections at work: fewer than slots, so that there is always one to take.
const AT_WORK: usize = 256;
/// Maximum number of bytes of bodies and responses over all connections.
const HELD: usize = 64 * 1024 * 1024;

impl AdminSlots {
    pub fn take_slot(slots: &Rc<AdminSlots>) -> (AdminPermit, SlotLost) {
        let places = &mut *slots.0.borrow_mut();
        if places.taken.len() >= PLACES {
            places.drop_oldest_slot(|_, _| true);
        }
        let (sender, lost) = oneshot::channel();
        places.arrivals += 1;
        places.taken.insert(places.arrivals, SlotEntry { at_work: false, held: 0, lost: sender });
        let permit = AdminPermit {
            slots: slots.clone(),
            arrival: places.arrivals,
            _kept: RefCell::default(),
            stream_read: Cell::new(None),
            stream_end: Notify::new(),
        };
        (permit, lost)
    }
}

impl SlotTable {
    /// Drops the oldest matching connection that waits for its client; returns false if there is none.
    fn drop_oldest_slot(&mut self, which: impl Fn(u64, &SlotEntry) -> bool) -> bool {
        let oldest = self.taken.iter().find(|(arrival, place)| !place.at_work && which(**arrival, place));
        let oldest = oldest.map(|(arrival, _)| *arrival);
        oldest.is_some_and(|arrival| {
            self.release_slot(arrival);
            true
        })
    }

    /// Removes the slot. Dropping the returned sender tells the connection so.
    fn release_slot(&mut self, arrival: u64) -> Option<oneshot::Sender<()>> {
        let place = self.taken.remove(&arrival)?;
        self.held -= place.held;
        self.at_work -= usize::from(place.at_work);
        Some(place.lost)
    }

    /// Checks that there is a slot for the stream.
    fn check_claim(&self, claim: &StreamClaim) -> Result<(), String> {
        let count = |which: &dyn Fn(&StreamClaim) -> bool| self.streams.iter().filter(|other| which(other)).count();
        let own = |other: &StreamClaim| other.owner == claim.owner;
        let who = "this token (without tokens, this address)";
        if count(&own) >= OWN_STREAMS {
            return Err(format!("{who} has {OWN_STREAMS} streams open already; close one"));
        }
        if claim.is_tap && count(&|other| own(other) && other.is_tap) >= OWN_TAPS {
            return Err(format!("{who} has {OWN_TAPS} taps open already; close one"));
        }
        if !claim.is_tap && count(&|other| !other.is_tap) >= LIVE_STREAMS {
            return Err(format!("{LIVE_STREAMS} live streams are open already; close one"));
        }
        match self.streams.len() >= STREAMS {
            true => Err(format!("{STREAMS} streams are open already; close one")),
            false => Ok(()),
        }
    }

    fn set_at_work(&mut self, arrival: u64, at_work: bool) {
        if let Some(place) = self.taken.get_mut(&arrival) {
            self.at_work = self.at_work + usize::from(at_work) - usize::from(place.at_work);
            place.at_work = at_work;
        }
    }
}

impl AdminPermit {
    /// Marks the connection as working; `None` if too many are.
    pub fn start_work(&self) -> Option<WorkPermit<'_>> {
        let mut places = self.slots.0.borrow_mut();
        if places.at_work >= AT_WORK {
            return None;
        }
        places.set_at_work(self.arrival, true);
        Some(WorkPermit(self))
    }

    /// Moves the connection to a slot for streams. From then on, it is not dropped for others.
    ///
    /// # Errors
    /// All slots that the owner may use are taken. The text names them.
    pub fn take_stream_permit(permit: &Rc<AdminPermit>, claim: StreamClaim) -> Result<StreamPermit, String> {
        let mut places = permit.slots.0.borrow_mut();
        if permit.stream_read.get().is_some() {
            return Err("the connection has a stream already".to_owned());
        }
        places.check_claim(&claim)?;
        places.streams.push(claim.clone());
        permit._kept.replace(places.release_slot(permit.arrival));
        permit.stream_read.set(Some(Instant::now()));
        Ok(StreamPermit { permit: permit.clone(), claim })
    }

    /// Waits until the stream has ended and [`REST_TIMEOUT`] is over. Never returns if the connection does not stream.
    pub async fn wait_after_stream(&self) {
        self.stream_end.notified().await;
        tokio::time::sleep(REST_TIMEOUT).await;
    }

    /// Returns whether the connection streams its response to a client that reads it.
    pub fn is_streaming(&self) -> bool {
        self.stream_read.get().is_some_and(|read| read.elapsed() < STALL_TIMEOUT)
    }

    /// Records that this connection holds `bytes`. If the total is too large, the oldest other connections lose their
    /// slots; returns false if it is still too large.
    pub fn hold_bytes(&self, bytes: usize) -> bool {
        let places = &mut *self.slots.0.borrow_mut();
        let Some(place) = places.taken.get_mut(&self.arrival) else { return false };
        places.held = places.held + bytes - place.held;
        place.held = bytes;
        while places.held > HELD {
            if !places.drop_oldest_slot(|arrival, place| arrival != self.arrival && place.held > 0) {
                return false;
            }
        }
        true
    }
}

impl Drop for AdminPermit {
    fn drop(&mut self) {
        self.slots.0.borrow_mut().release_slot(self.arrival);
    }
}

impl StreamPermit {
    /// Returns a second handle of the permit.
    pub fn share(&self) -> StreamPermit {
        StreamPermit { permit: self.permit.clone(), claim: self.claim.clone() }
    }

    /// Records that the connection asks for the next piece: it has sent the ones before.
    pub fn record_read(&self) {
        let read = &self.permit.stream_read;
        read.set(read.get().map(|_| Instant::now()));
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if self.permit.stream_read.take().is_none() {
            return;
        }
        let streams = &mut self.permit.slots.0.borrow_mut().streams;
        if let Some(place) = streams.iter().position(|claim| *claim == self.claim) {
            streams.swap_remove(place);
        }
        self.permit.stream_end.notify_one();
    }
}

impl Drop for WorkPermit<'_> {
    fn drop(&mut self) {
        self.0.slots.0.borrow_mut().set_at_work(self.0.arrival, false);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn has_place(lost: &mut SlotLost) -> bool {
        lost.try_recv() == Err(TryRecvError::Empty)
    }

    fn several(slots: &Rc<AdminSlots>, count: usize) -> (Vec<AdminPermit>, Vec<SlotLost>) {
        (0..count).map(|_| AdminSlots::take_slot(slots)).unzip()
    }

    #[test]
    fn the_oldest_that_waits_makes_room() {
        let slots = Rc::<AdminSlots>::default();
        let (mut all, mut lost) = several(&slots, PLACES);
        assert!(lost.iter_mut().all(has_place));
        let mut new = AdminSlots::take_slot(&slots);
        assert!(!has_place(&mut lost[0]) && lost[1..].iter_mut().all(has_place) && has_place(&mut new.1));
        let work = all[1].start_work();
        assert!(work.is_some());
        drop(AdminSlots::take_slot(&slots));
        drop(work);
        assert!(has_place(&mut lost[1]) && !has_place(&mut lost[2]), "who is at work stays");
        drop(all.pop());
        let before = slots.0.borrow().taken.len();
        drop(AdminSlots::take_slot(&slots));
        assert_eq!((before, slots.0.borrow().taken.len()), (PLACES - 2, PLACES - 2));
    }

    #[test]
    fn some_places_are_never_at_work() {
        let slots = Rc::<AdminSlots>::default();
        let (all, _lost) = several(&slots, PLACES);
        let mut works: Vec<_> = all.iter().filter_map(AdminPermit::start_work).collect();
        assert_eq!(works.len(), AT_WORK);
        let (probe, mut lost) = AdminSlots::take_slot(&slots);
        assert!(has_place(&mut lost) && probe.start_work().is_none());
        works.pop();
        assert!(probe.start_work().is_some());
        drop(works);
        assert_eq!(slots.0.borrow().at_work, 0);
    }

    fn claim(owner: usize, is_tap: bool) -> StreamClaim {
        StreamClaim { owner: owner.to_string(), is_tap }
    }

    #[test]
    fn streams_have_few_slots_of_their_own() {
        let slots = Rc::<AdminSlots>::default();
        let (all, mut lost) = several(&slots, STREAMS + 1);
        let all: Vec<_> = all.into_iter().map(Rc::new).collect();
        let take = |i: usize| AdminPermit::take_stream_permit(&all[i], claim(i / 4, i < 4));
        let mut streams: Vec<_> = (0..STREAMS).map(|i| take(i).unwrap()).collect();
        assert!(take(STREAMS).is_err());
        assert_eq!(slots.0.borrow().taken.len(), 1, "streams are not counted among the others");
        let (_others, _) = several(&slots, PLACES + 1);
        assert!(lost[..STREAMS].iter_mut().all(has_place) && !has_place(&mut lost[STREAMS]));
        let (sent, made) = (streams[STREAMS - 1].share(), streams.pop());
        drop(made);
        assert!(!all[STREAMS - 1].is_streaming() && has_place(&mut lost[STREAMS - 1]), "what is left is still sent");
        assert_eq!(slots.0.borrow().streams.len(), STREAMS - 1);
        sent.record_read();
        drop(sent);
        assert_eq!((slots.0.borrow().streams.len(), all[STREAMS - 1].is_streaming()), (STREAMS - 1, false));
        assert!(take(STREAMS).is_ok());
    }

    #[test]
    fn nobody_takes_all_streams() {
        let slots = Rc::<AdminSlots>::default();
        let (all, _lost) = several(&slots, STREAMS + 2);
        let mut all = all.into_iter().map(Rc::new);
        let mut take = |owner, is_tap| AdminPermit::take_stream_permit(&all.next().unwrap(), claim(owner, is_tap));
        let _taps: Vec<_> = (0..OWN_TAPS).map(|_| take(1, true).unwrap()).collect();
        assert!(take(1, true).err().unwrap().contains("has 4 taps open already"));
        let _live: Vec<_> = (0..OWN_STREAMS - OWN_TAPS).map(|_| take(1, false).unwrap()).collect();
        assert!(take(1, false).err().unwrap().contains("has 8 streams open already"));
        let _others: Vec<_> = (0..OWN_STREAMS).map(|_| take(2, false).unwrap()).collect();
        drop(_taps);
        let slots = Rc::<AdminSlots>::default();
        let (all, _lost) = several(&slots, STREAMS);
        let live =
            |i: usize| AdminPermit::take_stream_permit(&Rc::new(AdminSlots::take_slot(&slots).0), claim(i, false));
        let live: Vec<_> = (0..LIVE_STREAMS).map(|i| live(i).unwrap()).collect();
        let all: Vec<_> = all.into_iter().map(Rc::new).collect();
        let refused = AdminPermit::take_stream_permit(&all[0], claim(99, false)).err().unwrap();
        assert!(refused.contains("12 live streams are open already"), "{refused}");
        assert!(AdminPermit::take_stream_permit(&all[1], claim(99, true)).is_ok(), "taps still have slots");
        drop(live);
    }

    #[test]
    fn bytes_are_bounded_together() {
        let slots = Rc::<AdminSlots>::default();
        let (all, mut lost) = several(&slots, 4);
        let quarter = HELD / 4;
        assert!(all[1].hold_bytes(quarter) && all[2].hold_bytes(quarter) && all[3].hold_bytes(2 * quarter));
        assert!(lost.iter_mut().all(has_place));
        assert!(all[3].hold_bytes(2 * quarter + 1));
        assert_eq!([0, 1, 2, 3].map(|i| has_place(&mut lost[i])), [true, false, true, true], "who holds nothing stays");
        assert!(all[0].hold_bytes(quarter - 1), "the bytes of who lost its place are free");
        assert!(lost[2..].iter_mut().all(has_place));
        let work = all[2].start_work();
        assert!(!all[0].hold_bytes(HELD), "what is worked on stays");
        assert!(has_place(&mut lost[2]) && !has_place(&mut lost[3]));
        drop(work);
        assert!(all[0].hold_bytes(HELD));
        drop(all);
        assert_eq!(slots.0.borrow().held, 0);
    }
}
