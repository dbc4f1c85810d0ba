//! Resource usage of the process (CPU, memory, descriptors), under the names that all Prometheus clients use. Read
//! from the system at each scrape.

use std::collections::HashMap;

use procfs::process::{Limit, LimitValue, Process, Stat};
use procfs::{CurrentSI, KernelStats, WithCurrentSystemInfo};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, MetricType};

use crate::telemetry::metrics::exposition::series;

pub struct ProcessCollector {
    families: Vec<Desc>,
    /// Boot time of the machine, in seconds of Unix time.
    boot_s: f64,
}

/// Name, kind and help of each family, in the order of the values that [`ProcessCollector::read_values`] returns.
const FAMILIES: [(&str, MetricType, &str); 8] = [
    ("process_cpu_seconds_total", MetricType::COUNTER, "Total user and system CPU time spent in seconds."),
    ("process_open_fds", MetricType::GAUGE, "Number of open file descriptors."),
    ("process_max_fds", MetricType::GAUGE, "Maximum number of open file descriptors."),
    ("process_virtual_memory_bytes", MetricType::GAUGE, "Virtual memory size in bytes."),
    ("process_virtual_memory_max_bytes", MetricType::GAUGE, "Maximum amount of virtual memory available in bytes."),
    ("process_resident_memory_bytes", MetricType::GAUGE, "Resident memory size in bytes."),
    ("process_start_time_seconds", MetricType::GAUGE, "Start time of the process since unix epoch in seconds."),
    ("process_threads", MetricType::GAUGE, "Number of OS threads in the process."),
];

impl ProcessCollector {
    pub fn new() -> prometheus::Result<ProcessCollector> {
        let family =
            |(name, _, help): (&str, MetricType, &str)| Desc::new(name.into(), help.into(), Vec::new(), HashMap::new());
        let families = FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()?;
        // Read once, so that the start time does not move when the machine's clock is set.
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let boot_s = KernelStats::current().map_or(0.0, |stats| stats.btime as f64);
        Ok(ProcessCollector { families, boot_s })
    }

    /// Returns the values in the order of [`FAMILIES`]; `None` where the system does not report one.
    #[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
    fn read_values(&self) -> [Option<f64>; FAMILIES.len()] {
        let Ok(process) = Process::myself() else { return [None; FAMILIES.len()] };
        let (stat, limits) = (process.stat().ok(), process.limits().ok());
        let ticks = procfs::ticks_per_second() as f64;
        let of = |value: fn(&Stat) -> u64| stat.as_ref().map(|stat| value(stat) as f64);
        [
            of(|stat| stat.utime + stat.stime).map(|spent| spent / ticks),
            process.fd_count().ok().map(|count| count as f64),
            limits.as_ref().map(|limits| soft_limit(limits.max_open_files)),
            of(|stat| stat.vsize),
            limits.as_ref().map(|limits| soft_limit(limits.max_address_space)),
            of(|stat| stat.rss_bytes().get()),
            of(|stat| stat.starttime).map(|started| self.boot_s + started / ticks),
            of(|stat| stat.num_threads.unsigned_abs()),
        ]
    }
}

/// Returns the soft limit; "unlimited" is exported as the largest number.
#[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
fn soft_limit(limit: Limit) -> f64 {
    match limit.soft_limit {
        LimitValue::Unlimited => u64::MAX as f64,
        LimitValue::Value(value) => value as f64,
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let families = self.families.iter().zip(FAMILIES).zip(self.read_values());
        let families = families.filter_map(|((desc, (_, kind, _)), value)| {
            let mut metric = proto::Metric::default();
            match kind {
                MetricType::COUNTER => {
                    let mut counter = proto::Counter::default();
                    counter.set_value(value?);
                    metric.set_counter(counter);
                }
                _ => {
                    let mut gauge = proto::Gauge::default();
                    gauge.set_value(value?);
                    metric.set_gauge(gauge);
                }
            }
            Some(series::build_family(desc, kind, vec![metric]))
        });
        families.collect()
    }
}
