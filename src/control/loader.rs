//! A thread that reads the config files, so that a file system that does not answer never stops the control thread.
//! Used by the reloader.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Runs one task at a time.
pub struct Loader {
    tasks: mpsc::Sender<Task>,
    /// One permit, which the task that runs has.
    turn: Arc<Semaphore>,
}

type Task = Box<dyn FnOnce() + Send>;

/// The longest that a task may wait and run.
const LOAD_MAX: Duration = Duration::from_secs(30);

/// The file system has not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the config files cannot be read: the file system has not answered within {} s", LOAD_MAX.as_secs())]
pub struct Hung;

impl Loader {
    /// # Errors
    /// The system refuses the thread.
    pub fn start() -> io::Result<Loader> {
        let (tasks, queue) = mpsc::channel::<Task>();
        let run = move || queue.into_iter().for_each(|task| task());
        std::thread::Builder::new().name("config".to_owned()).spawn(run)?;
        Ok(Loader { tasks, turn: Arc::new(Semaphore::new(1)) })
    }

    /// What `task` returns. It begins once the task before it has ended, so that at most one hangs in the system.
    ///
    /// # Errors
    /// It took too long, or the one before it did.
    pub async fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> Result<T, Hung> {
        let result = async {
            let permit = self.turn.clone().acquire_owned().await.ok()?;
            let (reply, result) = oneshot::channel();
            let task = move || {
                let value = task();
                drop(permit);
                // The control thread may have stopped waiting.
                let _ = reply.send(value);
            };
            self.tasks.send(Box::new(task)).ok()?;
            result.await.ok()
        };
        timeout(LOAD_MAX, result).await.ok().flatten().ok_or(Hung)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_hangs_fails_those_after_it_until_it_ends() {
        let loader = Loader::start().unwrap();
        let (release, wait) = mpsc::channel::<()>();
        assert_eq!(loader.run(move || wait.recv().is_ok()).await, Err(Hung));
        assert_eq!(loader.run(|| 1).await, Err(Hung));
        release.send(()).unwrap();
        tokio::time::resume();
        assert_eq!(loader.run(|| 1).await, Ok(1));
    }
}
