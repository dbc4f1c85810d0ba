//! The UDP socket of one worker, with segmentation by the kernel (GSO, GRO) where there is one.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker, ready};

use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The most bytes that the kernel takes in one call, over IPv6 as over IPv4. It refuses more, whatever their segments.
const SEND_MAX: usize = 65_535 - 40 - 8;

/// A socket in the runtime where it was made.
pub struct QuicSocket {
    io: UdpSocket,
    state: UdpSocketState,
    local_addr: SocketAddr,
    /// Connections that have something to send, for which the kernel has no room.
    blocked: RefCell<Vec<Waker>>,
}

impl QuicSocket {
    /// Wraps a socket that is bound.
    ///
    /// # Errors
    /// The runtime cannot register it, or the system does not support it.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<QuicSocket> {
        let state = UdpSocketState::new((&socket).into())?;
        let local_addr = socket.local_addr()?;
        Ok(QuicSocket { io: UdpSocket::from_std(socket)?, state, local_addr, blocked: RefCell::default() })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns how many datagrams of `size` bytes one call can send.
    pub fn max_segments(&self, size: u16) -> usize {
        (SEND_MAX / usize::from(size).max(1)).clamp(1, self.state.max_gso_segments())
    }

    /// Receives into `buffer`: one datagram, or several of one client.
    pub fn poll_receive(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<RecvMeta>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut metas = [RecvMeta::default()];
            let received = self.io.try_io(Interest::READABLE, || {
                self.state.recv((&self.io).into(), &mut [IoSliceMut::new(buffer)], &mut metas)
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|_| metas[0])),
            }
        }
    }

    /// Sends `contents`. Returns false if the kernel has no room. Other errors are those of the network, which may lose
    /// what it likes.
    pub fn send(&self, transmit: &quinn_proto::Transmit, contents: &[u8]) -> bool {
        let datagrams = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let sent = self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &datagrams));
        !sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Has [`poll_unblock`](Self::poll_unblock) wake a task.
    pub fn add_blocked(&self, waker: &Waker) {
        let mut blocked_wakers = self.blocked.borrow_mut();
        if !blocked_wakers.iter().any(|other| other.will_wake(waker)) {
            blocked_wakers.push(waker.clone());
        }
    }

    /// Wakes the blocked tasks once the kernel has room again. Registers the task of `cx` if there are some.
    pub fn poll_unblock(&self, cx: &mut Context<'_>) {
        if !self.blocked.borrow().is_empty() && self.io.poll_send_ready(cx).is_ready() {
            self.blocked.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_kernel_takes_as_many_datagrams_as_are_sent_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        for (addr, size) in [("127.0.0.1:0", 1200), ("127.0.0.1:0", 1452), ("[::1]:0", 1452)] {
            let [receiver, sender] = [(); 2].map(|()| std::net::UdpSocket::bind(addr).unwrap());
            receiver.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            sender.set_nonblocking(true).unwrap();
            let (destination, socket) = (receiver.local_addr().unwrap(), QuicSocket::new(sender).unwrap());
            let count = socket.max_segments(size);
            let bytes = vec![b'x'; count * usize::from(size)];
            let transmit = quinn_proto::Transmit {
                destination,
                ecn: None,
                size: bytes.len(),
                segment_size: (count > 1).then(|| size.into()),
                src_ip: None,
            };
            assert!(runtime.block_on(async {
                socket.io.writable().await.unwrap();
                socket.send(&transmit, &bytes)
            }));
            for number in 0..count {
                assert_eq!(receiver.recv(&mut [0; 2000]).unwrap(), usize::from(size), "{number} of {count}");
            }
        }
    }

    #[test]
    fn a_blocked_task_waits_once_and_is_woken_when_there_is_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bound = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            bound.set_nonblocking(true).unwrap();
            let socket = QuicSocket::new(bound).unwrap();
            let count = Arc::<CountingWaker>::default();
            let waker = Waker::from(count.clone());
            (0..1000).for_each(|_| socket.add_blocked(&waker));
            poll_fn(|cx| {
                socket.poll_unblock(cx);
                if socket.blocked.borrow().is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        });
    }
}
