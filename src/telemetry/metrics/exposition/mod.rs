//! Formats of metrics for Prometheus. `series` builds the metric values of the collectors, and `openmetrics` writes all
//! families in the newer text format, with exemplars; `unused` leaves out series that have counted nothing.
//!
//! Input: the added-up counts of all workers. Output: metric values of the `prometheus` library, and text. To add a
//! format, write a file that encodes gathered families, call it in `Metrics`, and offer it in `admin::metrics_text`.

pub mod openmetrics;
pub mod series;
pub mod unused;
