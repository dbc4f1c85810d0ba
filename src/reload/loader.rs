//! A thread that reads the config files, so that a blocked file system never blocks the control thread. Used by the
//! reloader.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Runs one task at a time.
pub struct Loader {
    tasks: mpsc::Sender<Task>,
    /// A single permit, held by the running task.
    turn: Arc<Semaphore>,
    max: Duration,
}

type Task = Box<dyn FnOnce() + Send>;

/// Maximum time for a task to wait and run.
const LOAD_MAX: Duration = Duration::from_secs(30);

/// The file system did not respond in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the config files cannot be read: the file system did not respond within {} s", LOAD_MAX.as_secs())]
pub struct LoadTimeout;

impl Loader {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn start() -> io::Result<Loader> {
        let (tasks, queue) = mpsc::channel::<Task>();
        let run = move || queue.into_iter().for_each(|task| task());
        std::thread::Builder::new().name("config".to_owned()).spawn(run)?;
        Ok(Loader { tasks, turn: Arc::new(Semaphore::new(1)), max: LOAD_MAX })
    }

    /// Runs `task` after the previous one has ended, so that at most one is blocked in the system.
    ///
    /// # Errors
    /// If it, or the one before it, took too long.
    pub async fn run_task<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoadTimeout> {
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
        timeout(self.max, result).await.ok().flatten().ok_or(LoadTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_hangs_fails_those_after_it_until_it_ends() {
        let mut loader = Loader { max: Duration::from_millis(20), ..Loader::start().unwrap() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (release, wait) = mpsc::channel::<()>();
        assert_eq!(runtime.block_on(loader.run_task(move || wait.recv().is_ok())), Err(LoadTimeout));
        assert_eq!(runtime.block_on(loader.run_task(|| 1)), Err(LoadTimeout));
        release.send(()).unwrap();
        loader.max = LOAD_MAX;
        assert_eq!(runtime.block_on(loader.run_task(|| 1)), Ok(1));
    }
}
