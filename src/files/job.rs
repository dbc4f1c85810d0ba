//! Work that may wait for the file system, on a thread of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinHandle, spawn_blocking};

/// The result of such work. Dropping it cancels work that has not begun, so that clients which leave do not make a
/// queue.
pub struct FileJob<T>(JoinHandle<T>);

impl<T: Send + 'static> FileJob<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> FileJob<T> {
        FileJob(spawn_blocking(work))
    }
}

impl<T> Future for FileJob<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        Pin::new(&mut self.0).poll(cx).map_err(io::Error::other)
    }
}

impl<T> Drop for FileJob<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
