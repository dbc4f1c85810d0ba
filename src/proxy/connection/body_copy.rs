//! A copy of a request body, gathered while the body goes to its server.

use bytes::{Bytes, BytesMut};

/// The result of a copy.
#[derive(Debug, PartialEq, Eq)]
pub enum CopiedBody {
    Whole(Bytes),
    /// The body is longer than a copy may be.
    TooLong,
    /// The client did not send all of it, or no server wanted it.
    Incomplete,
}

/// The receiver of a copy.
type Receiver = Box<dyn FnOnce(CopiedBody)>;

/// The copy so far. Its receiver gets it once: as soon as it is whole or too long, or when it is dropped.
pub struct BodyCopy {
    gathered: BytesMut,
    max: usize,
    receiver: Option<Receiver>,
}

impl BodyCopy {
    /// Makes a copy of at most `max` bytes.
    pub fn new(max: usize, receiver: impl FnOnce(CopiedBody) + 'static) -> BodyCopy {
        BodyCopy { gathered: BytesMut::new(), max, receiver: Some(Box::new(receiver)) }
    }

    /// Appends a piece of the body.
    pub fn push(&mut self, piece: &Bytes) {
        if self.receiver.is_none() {
            return;
        }
        if self.gathered.len() + piece.len() > self.max {
            self.gathered = BytesMut::new();
            return self.hand_over(CopiedBody::TooLong);
        }
        self.gathered.extend_from_slice(piece);
    }

    /// Ends the copy, of which nothing is missing.
    pub fn finish(mut self) {
        let whole = std::mem::take(&mut self.gathered).freeze();
        self.hand_over(CopiedBody::Whole(whole));
    }

    fn hand_over(&mut self, body: CopiedBody) {
        if let Some(receiver) = self.receiver.take() {
            receiver(body);
        }
    }
}

impl Drop for BodyCopy {
    fn drop(&mut self) {
        self.hand_over(CopiedBody::Incomplete);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn copy(max: usize) -> (BodyCopy, Rc<RefCell<Vec<CopiedBody>>>) {
        let received = Rc::<RefCell<Vec<CopiedBody>>>::default();
        let receiver = received.clone();
        (BodyCopy::new(max, move |body| receiver.borrow_mut().push(body)), received)
    }

    #[test]
    fn a_receiver_gets_its_copy_once() {
        let (mut one, received) = copy(4);
        one.push(&Bytes::from_static(b"ab"));
        one.push(&Bytes::from_static(b"cd"));
        assert!(received.borrow().is_empty());
        one.finish();
        assert_eq!(*received.borrow(), [CopiedBody::Whole(Bytes::from_static(b"abcd"))]);

        let (mut long, received) = copy(3);
        long.push(&Bytes::from_static(b"ab"));
        long.push(&Bytes::from_static(b"cd"));
        assert_eq!(long.gathered.capacity(), 0);
        long.push(&Bytes::from_static(b"e"));
        long.finish();
        assert_eq!(*received.borrow(), [CopiedBody::TooLong]);

        let (cut, received) = copy(3);
        drop(cut);
        assert_eq!(*received.borrow(), [CopiedBody::Incomplete]);
    }
}
