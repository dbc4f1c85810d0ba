//! A thread that reads the config files, so that a blocked file system never blocks the control thread. Used by the
//! reloader.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use std::{fs, io};

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Runs one task at a time.
pub struct Loader {
    tasks: mpsc::Sender<Task>,
    /// A single permit, held by the running task.
    turn: Arc<Semaphore>,
    max: Duration,
    /// File in which the kernel says how long the thread has computed, in its first word.
    computed: Arc<OnceLock<String>>,
}

type Task = Box<dyn FnOnce() + Send>;

/// Maximum time in which a task gets nothing done: the file system does not respond. A task that parses a large file on a
/// slow machine may take longer.
const LOAD_MAX: Duration = Duration::from_secs(30);
/// How often within that time the progress is checked.
const CHECKS: u32 = 10;

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
        let computed = Arc::new(OnceLock::new());
        let own = computed.clone();
        let run = move || {
            let id = rustix::thread::gettid().as_raw_nonzero();
            let _ = own.set(format!("/proc/self/task/{id}/schedstat"));
            queue.into_iter().for_each(|task| task());
        };
        std::thread::Builder::new().name("config".to_owned()).spawn(run)?;
        Ok(Loader { tasks, turn: Arc::new(Semaphore::new(1)), max: LOAD_MAX, computed })
    }

    /// Runs `task` after the previous one has ended, so that at most one is blocked in the system.
    ///
    /// # Errors
    /// If the file system blocked it, or the one before it, for too long.
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
        let mut result = std::pin::pin!(result);
        let (mut before, mut checks_left) = (self.computed_ns(), CHECKS);
        loop {
            if let Ok(value) = timeout(self.max / CHECKS, &mut result).await {
                return value.ok_or(LoadTimeout);
            }
            let now = self.computed_ns();
            checks_left = if now > before { CHECKS } else { checks_left - 1 };
            before = now;
            if checks_left == 0 {
                return Err(LoadTimeout);
            }
        }
    }

    /// Returns how long the thread has computed so far, in ns. 0 if the kernel does not say.
    fn computed_ns(&self) -> u64 {
        let text = self.computed.get().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn quick_loader() -> Loader {
        Loader { max: Duration::from_millis(200), ..Loader::start().unwrap() }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_task_that_computes_may_take_longer_than_one_that_waits() {
        let (loader, runtime) = (quick_loader(), runtime());
        let end = Instant::now() + 4 * loader.max;
        let compute = move || {
            let mut rounds = 0_u64;
            while Instant::now() < end {
                rounds += 1;
            }
            rounds > 0
        };
        assert_eq!(runtime.block_on(loader.run_task(compute)), Ok(true));
    }

    #[test]
    fn a_task_that_hangs_fails_those_after_it_until_it_ends() {
        let (mut loader, runtime) = (quick_loader(), runtime());
        let (release, wait) = mpsc::channel::<()>();
        assert_eq!(runtime.block_on(loader.run_task(move || wait.recv().is_ok())), Err(LoadTimeout));
        assert_eq!(runtime.block_on(loader.run_task(|| 1)), Err(LoadTimeout));
        release.send(()).unwrap();
        loader.max = LOAD_MAX;
        assert_eq!(runtime.block_on(loader.run_task(|| 1)), Ok(1));
    }
}
