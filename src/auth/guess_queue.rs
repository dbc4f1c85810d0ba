//! The queue of passwords that wait to be verified. Whoever guesses wrong waits for everybody else: the queue selects
//! first by the wrong passwords of the client, then by those for the user. A right password is therefore next, even if
//! many wrong ones of other clients, or for other users, wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::net::client_network;

/// Maximum number of passwords that wait.
const QUEUE_MAX: usize = 64;
/// Length of a generation of counts. A wrong password counts for one or two of them.
const GENERATION: Duration = Duration::from_secs(60);
/// Size of a generation of counts. There are at most twice as many.
const GENERATION_MAX: usize = 8192;

/// The client that sent a password, and the user that it claims to be.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    client: Party,
    user: Party,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Party {
    Client(IpAddr),
    /// A keyed hash of the user.
    User(u64),
}

/// Passwords that wait, with an item for each.
pub struct GuessQueue<T> {
    /// The passwords in the order in which they came.
    waiting: Vec<(Guess, T)>,
    wrong: WrongGuesses,
}

/// How many passwords were wrong recently, by client and by user.
struct WrongGuesses {
    young: HashMap<Party, u32>,
    old: HashMap<Party, u32>,
    /// When the young generation began.
    since: Instant,
}

impl Guess {
    /// `user`: a keyed hash of the user.
    pub fn new(client: IpAddr, user: u64) -> Guess {
        Guess { client: Party::Client(client_network(client)), user: Party::User(user) }
    }
}

impl<T> Default for GuessQueue<T> {
    fn default() -> GuessQueue<T> {
        let wrong = WrongGuesses { young: HashMap::new(), old: HashMap::new(), since: Instant::now() };
        GuessQueue { waiting: Vec::new(), wrong }
    }
}

impl<T> GuessQueue<T> {
    /// Adds a password. If the queue is full, the last one in line loses its place, which may be the new one, and is
    /// returned.
    #[must_use]
    pub fn push(&mut self, guess: Guess, item: T) -> Option<T> {
        self.waiting.push((guess, item));
        if self.waiting.len() <= QUEUE_MAX {
            return None;
        }
        let ranks = self.ranks();
        let last = (0..ranks.len()).max_by_key(|place| ranks[*place])?;
        Some(self.waiting.remove(last).1)
    }

    /// Takes the next password.
    pub fn pop(&mut self) -> Option<(Guess, T)> {
        let ranks = self.ranks();
        let next = (0..ranks.len()).min_by_key(|place| ranks[*place])?;
        Some(self.waiting.remove(next))
    }

    /// Takes the passwords that must not wait any longer.
    pub fn take_if(&mut self, is_over: impl Fn(&T) -> bool) -> Vec<T> {
        self.waiting.extract_if(.., |(_, item)| is_over(item)).map(|(_, item)| item).collect()
    }

    /// Records that a password was wrong.
    pub fn record_wrong(&mut self, guess: Guess, now: Instant) {
        self.wrong.add(guess.client, now);
        self.wrong.add(guess.user, now);
    }

    /// Returns how many passwords wait.
    #[cfg(test)]
    pub fn count_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the ranks of all passwords: the lowest is next. A password that waits counts for those behind it as if
    /// it were wrong, so that clients, and users, take turns.
    fn ranks(&self) -> Vec<(usize, usize)> {
        let mut waiting = HashMap::<Party, usize>::new();
        let mut count = |party: Party| {
            let before = waiting.entry(party).or_default();
            *before += 1;
            self.wrong.count(party) + *before
        };
        self.waiting.iter().map(|(guess, _)| (count(guess.client), count(guess.user))).collect()
    }
}

impl WrongGuesses {
    fn add(&mut self, party: Party, now: Instant) {
        if now.saturating_duration_since(self.since) >= GENERATION || self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
        let count = self.young.entry(party).or_default();
        *count = count.saturating_add(1);
    }

    fn count(&self, party: Party) -> usize {
        let of = |generation: &HashMap<Party, u32>| generation.get(&party).copied().unwrap_or(0);
        usize::try_from(of(&self.young).saturating_add(of(&self.old))).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(client: u8, user: u64) -> Guess {
        Guess::new(IpAddr::from([192, 0, 2, client]), user)
    }

    #[test]
    fn clients_and_users_take_turns() {
        const RIGHT: u32 = 1_000;
        // One client guesses for one user, one client for many users, many clients for one user.
        for attack in [|_| (1, 1), |number| (1, u64::from(number)), |number| (number, 1)] as [fn(u8) -> (u8, u64); 3] {
            let mut queue = GuessQueue::default();
            for number in 1..=64 {
                let (client, user) = attack(number);
                assert_eq!(queue.push(guess(client, user), u32::from(number)), None);
            }
            // The queue is full, and the first password is being verified.
            let (first, _) = queue.pop().unwrap();
            assert_eq!(queue.push(guess(1, 1), 65), None);
            queue.record_wrong(first, Instant::now());
            assert!(queue.push(guess(200, 200), RIGHT).is_some_and(|refused| refused != RIGHT));
            assert_eq!(queue.pop().map(|(_, item)| item), Some(RIGHT));
        }
    }

    #[test]
    fn equal_passwords_are_taken_in_the_order_of_their_arrival() {
        let mut queue = GuessQueue::default();
        for (client, user) in [(1, 1), (1, 2), (2, 1), (3, 3), (1, 1)] {
            assert_eq!(queue.push(guess(client, user), u32::from(client) * 10 + u32::try_from(user).unwrap()), None);
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order, [11, 12, 21, 33, 11]);
    }

    #[test]
    fn the_queue_and_the_counts_are_bounded() {
        let mut queue = GuessQueue::default();
        for number in 0..100 {
            assert_eq!(queue.push(guess(1, 1), number).is_some(), number >= 64);
        }
        assert_eq!(queue.count_waiting(), 64);
        assert_eq!(queue.take_if(|item| item % 2 == 0).len(), 32);
        let now = Instant::now();
        for user in 0..100_000 {
            queue.record_wrong(guess(1, user), now);
            assert!(queue.wrong.young.len() <= GENERATION_MAX && queue.wrong.old.len() <= GENERATION_MAX);
        }
        // A wrong password is forgotten after two generations.
        for minutes in [0, 1, 2, 3] {
            queue.record_wrong(guess(2, 1), now + minutes * GENERATION);
        }
        assert_eq!(queue.wrong.count(guess(2, 1).client), 2);
    }
}
