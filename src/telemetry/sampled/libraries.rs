//! Samples log lines of libraries: peers decide how often a library logs, and the library does not use
//! [`LogSampler`](super::LogSampler). The command line installs it; the control thread reports what was left out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Interval between two lines from one place in a library's source.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Modules of this crate sample their own lines.
const OWN: &str = env!("CARGO_CRATE_NAME");

/// Tracing filter that passes one line per ten seconds from each place in a library's source. Lines of the levels
/// debug and trace always pass: an operator who enables them wants to see all.
pub struct SampleLibraries;

/// Times by place in the source. The number of places is fixed.
static LINES: Mutex<Option<HashMap<Identifier, LibraryLine>>> = Mutex::new(None);

struct LibraryLine {
    target: &'static str,
    due: Instant,
    left_out: u64,
}

impl<S: Subscriber> Layer<S> for SampleLibraries {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let is_own = metadata.target().split("::").next() == Some(OWN);
        is_own || *metadata.level() > Level::INFO || is_due(metadata, Instant::now())
    }
}

fn is_due(metadata: &'static Metadata<'static>, now: Instant) -> bool {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || LibraryLine { target: metadata.target(), due: now, left_out: 0 };
    let line = lines.get_or_insert_default().entry(metadata.callsite()).or_insert_with(new);
    if now < line.due {
        line.left_out += 1;
        return false;
    }
    line.due = now + LINE_INTERVAL;
    true
}

/// Returns how many lines of each library module were left out since the last call.
pub fn take_left_out() -> BTreeMap<&'static str, u64> {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts = BTreeMap::new();
    for line in lines.iter_mut().flat_map(HashMap::values_mut).filter(|line| line.left_out > 0) {
        *counts.entry(line.target).or_default() += std::mem::take(&mut line.left_out);
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Count(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_place_of_a_library_has_one_line_and_the_rest_is_counted() {
        let count = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry().with(Count(count.clone())).with(SampleLibraries);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..5 {
                tracing::warn!(target: "some_library::net", "one place");
                tracing::error!(target: "some_library::net", "another");
                tracing::debug!(target: "some_library::net", "all of these");
                tracing::warn!(target: "sluicegate::control", "all of these");
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 1 + 1 + 5 + 5);
        assert_eq!(take_left_out().get("some_library::net"), Some(&8));
        assert_eq!(take_left_out().get("some_library::net"), None);
    }
}
