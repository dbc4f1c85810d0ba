//! Places for the connections of the admin listener. Whoever comes has a place at once: when all are
//! taken, the oldest connection that waits for its client loses its own. So neither clients that
//! are slow nor those that send nothing keep a probe out. Used by `serve` and `pages`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::oneshot;

#[derive(Default)]
pub struct AdminRoom(RefCell<Places>);

#[derive(Default)]
struct Places {
    /// By order of arrival.
    taken: BTreeMap<u64, RoomPlace>,
    arrivals: u64,
    at_work: usize,
    held: usize,
}

struct RoomPlace {
    at_work: bool,
    held: usize,
    /// Dropped with the place: its connection sees that.
    _lost: oneshot::Sender<()>,
}

/// A connection's place, given up when dropped.
pub struct AdminTicket {
    room: Rc<AdminRoom>,
    arrival: u64,
}

/// Resolves when the place is lost.
pub type Lost = oneshot::Receiver<()>;

/// While it lasts the connection waits for us, and keeps its place.
pub struct Work<'t>(&'t AdminTicket);

const PLACES: usize = 512;
/// Fewer than there are places, so that there is always one to lose.
const AT_WORK: usize = 256;
/// Bytes of bodies and answers, of all connections together.
const HELD: usize = 64 * 1024 * 1024;

impl AdminRoom {
    pub fn enter(room: &Rc<AdminRoom>) -> (AdminTicket, Lost) {
        let places = &mut *room.0.borrow_mut();
        if places.taken.len() >= PLACES {
            places.drop_oldest(|_, _| true);
        }
        let (sender, lost) = oneshot::channel();
        places.arrivals += 1;
        places.taken.insert(places.arrivals, RoomPlace { at_work: false, held: 0, _lost: sender });
        (AdminTicket { room: room.clone(), arrival: places.arrivals }, lost)
    }
}

impl Places {
    /// Of those that wait for their clients; false when there is none.
    fn drop_oldest(&mut self, which: impl Fn(u64, &RoomPlace) -> bool) -> bool {
        let oldest = self.taken.iter().find(|(arrival, place)| !place.at_work && which(**arrival, place));
        let oldest = oldest.map(|(arrival, _)| *arrival);
        oldest.is_some_and(|arrival| {
            self.leave(arrival);
            true
        })
    }

    fn leave(&mut self, arrival: u64) {
        if let Some(place) = self.taken.remove(&arrival) {
            self.held -= place.held;
            self.at_work -= usize::from(place.at_work);
        }
    }

    fn set_at_work(&mut self, arrival: u64, at_work: bool) {
        if let Some(place) = self.taken.get_mut(&arrival) {
            self.at_work = self.at_work + usize::from(at_work) - usize::from(place.at_work);
            place.at_work = at_work;
        }
    }
}

impl AdminTicket {
    /// `None` when too many are at work.
    pub fn work(&self) -> Option<Work<'_>> {
        let mut places = self.room.0.borrow_mut();
        if places.at_work >= AT_WORK {
            return None;
        }
        places.set_at_work(self.arrival, true);
        Some(Work(self))
    }

    /// This connection holds `bytes` from now on. Where that is too much with those of the others, the
    /// oldest of these lose their places; false when it is too much even so.
    pub fn hold(&self, bytes: usize) -> bool {
        let places = &mut *self.room.0.borrow_mut();
        let Some(place) = places.taken.get_mut(&self.arrival) else { return false };
        places.held = places.held + bytes - place.held;
        place.held = bytes;
        while places.held > HELD {
            if !places.drop_oldest(|arrival, place| arrival != self.arrival && place.held > 0) {
                return false;
            }
        }
        true
    }
}

impl Drop for AdminTicket {
    fn drop(&mut self) {
        self.room.0.borrow_mut().leave(self.arrival);
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.room.0.borrow_mut().set_at_work(self.0.arrival, false);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn has_place(lost: &mut Lost) -> bool {
        lost.try_recv() == Err(TryRecvError::Empty)
    }

    fn several(room: &Rc<AdminRoom>, count: usize) -> (Vec<AdminTicket>, Vec<Lost>) {
        (0..count).map(|_| AdminRoom::enter(room)).unzip()
    }

    #[test]
    fn the_oldest_that_waits_makes_room() {
        let room = Rc::<AdminRoom>::default();
        let (mut all, mut lost) = several(&room, PLACES);
        assert!(lost.iter_mut().all(has_place));
        let mut new = AdminRoom::enter(&room);
        assert!(!has_place(&mut lost[0]) && lost[1..].iter_mut().all(has_place) && has_place(&mut new.1));
        let work = all[1].work();
        assert!(work.is_some());
        drop(AdminRoom::enter(&room));
        drop(work);
        assert!(has_place(&mut lost[1]) && !has_place(&mut lost[2]), "who is at work stays");
        drop(all.pop());
        let before = room.0.borrow().taken.len();
        drop(AdminRoom::enter(&room));
        assert_eq!((before, room.0.borrow().taken.len()), (PLACES - 2, PLACES - 2));
    }

    #[test]
    fn some_places_are_never_at_work() {
        let room = Rc::<AdminRoom>::default();
        let (all, _lost) = several(&room, PLACES);
        let mut works: Vec<_> = all.iter().filter_map(AdminTicket::work).collect();
        assert_eq!(works.len(), AT_WORK);
        let (probe, mut lost) = AdminRoom::enter(&room);
        assert!(has_place(&mut lost) && probe.work().is_none());
        works.pop();
        assert!(probe.work().is_some());
        drop(works);
        assert_eq!(room.0.borrow().at_work, 0);
    }

    #[test]
    fn bytes_are_bounded_together() {
        let room = Rc::<AdminRoom>::default();
        let (all, mut lost) = several(&room, 4);
        let quarter = HELD / 4;
        assert!(all[1].hold(quarter) && all[2].hold(quarter) && all[3].hold(2 * quarter));
        assert!(lost.iter_mut().all(has_place));
        assert!(all[3].hold(2 * quarter + 1));
        assert_eq!([0, 1, 2, 3].map(|i| has_place(&mut lost[i])), [true, false, true, true], "who holds nothing stays");
        assert!(all[0].hold(quarter - 1), "the bytes of who lost its place are free");
        assert!(lost[2..].iter_mut().all(has_place));
        let work = all[2].work();
        assert!(!all[0].hold(HELD), "what is worked on stays");
        assert!(has_place(&mut lost[2]) && !has_place(&mut lost[3]));
        drop(work);
        assert!(all[0].hold(HELD));
        drop(all);
        assert_eq!(room.0.borrow().held, 0);
    }
}
