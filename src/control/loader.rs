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
    max: Duration,
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
        Ok(Loader { tasks, turn: Arc::new(Semaphore::new(1)), max: LOAD_MAX })
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
        timeout(self.max, result).await.ok().flatten().ok_or(Hung)
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
        assert_eq!(runtime.block_on(loader.run(move || wait.recv().is_ok())), Err(Hung));
        assert_eq!(runtime.block_on(loader.run(|| 1)), Err(Hung));
        release.send(()).unwrap();
        loader.max = LOAD_MAX;
        assert_eq!(runtime.block_on(loader.run(|| 1)), Ok(1));
    }
}
