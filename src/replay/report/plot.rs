//! Admitted and refused requests over time as an SVG image. Called by the command line.

use std::fmt::Write;

use crate::limiting::algorithm::describe::format_duration;
use crate::replay::outcome::ReplayOutcome;
use crate::replay::report::ticks::group_digits;
use crate::replay::report::{format_percent, ticks};
use crate::replay::series::Series;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 52.0;
const TOP: f64 = 124.0;
const BOTTOM: f64 = 68.0;
const BASE: f64 = HEIGHT - BOTTOM;
const END: f64 = WIDTH - RIGHT;
/// Minimum number of bar widths, so that few bars are not drawn too broad.
const BARS_MIN: i64 = 40;
const TIMES_MAX: i64 = 9;
/// Minimum height of a refused part in pixels, so that it is visible.
const SEEN: f64 = 1.5;

const PAPER: &str = "#ffffff";
const INK: &str = "#1f2933";
const FAINT: &str = "fill=\"#616e7c\"";
const GRID: &str = "#e4e7eb";
const ADMITTED: &str = "#4a86c5";
const REFUSED: &str = "#e0552b";

/// Scales of the axes: time horizontally, requests vertically.
struct Scale {
    start_ms: i64,
    end_ms: i64,
    ceiling: u64,
}

#[expect(clippy::cast_precision_loss, reason = "a picture is exact to a pixel")]
impl Scale {
    fn x(&self, ms: i64) -> f64 {
        LEFT + (END - LEFT) * (ms - self.start_ms) as f64 / (self.end_ms - self.start_ms).max(1) as f64
    }

    /// Returns the height of a number of requests in pixels.
    fn to_height(&self, count: u64) -> f64 {
        (BASE - TOP) * count as f64 / self.ceiling as f64
    }
}

/// Draws the outcome of a replay.
pub fn draw_outcome(outcome: &ReplayOutcome) -> String {
    let whole_seconds = if outcome.counts.fine { 0 } else { 1000 };
    draw_plot(&outcome.series.widen_to(whole_seconds), outcome.counts.not_evaluated)
}

/// Draws bars with refused requests on top of admitted ones. Requests that were not evaluated are only counted in a
/// note.
fn draw_plot(series: &Series, not_evaluated: u64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"12\" \
         fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"{PAPER}\"/>\n"
    );
    draw_text(&mut out, (32.0, 38.0), "start", "font-size=\"19\" font-weight=\"600\"", "Requests under these limits");
    if not_evaluated > 0 {
        let label = format!("not evaluated, not drawn: {}", group_digits(not_evaluated));
        draw_text(&mut out, (568.0, 86.0), "start", "font-size=\"13\"", &label);
    }
    if series.buckets.is_empty() {
        let _ = writeln!(out, "<path d=\"M{LEFT} {BASE}H{END}\" stroke=\"{INK}\"/>");
        let middle = (f64::midpoint(LEFT, END), f64::midpoint(TOP, BASE));
        draw_text(&mut out, middle, "middle", FAINT, "the log contains no request that a limit applies to");
    } else {
        draw_chart(&mut out, series, not_evaluated);
    }
    out.push_str("</svg>\n");
    out
}

fn draw_chart(out: &mut String, series: &Series, not_evaluated: u64) {
    let most = series.buckets.iter().map(|(admitted, refused)| admitted + refused).max().unwrap_or(0);
    let step = ticks::nice_step(most);
    let count = i64::try_from(series.buckets.len()).unwrap_or(i64::MAX);
    let (width_ms, start_ms) = (series.width_ms(), series.start_ms());
    let beside = (BARS_MIN - count).max(0) / 2 * width_ms;
    let end_ms = start_ms + count * width_ms;
    let ceiling = most.div_ceil(step).max(1) * step;
    let scale = Scale { start_ms: start_ms - beside, end_ms: end_ms + beside, ceiling };

    let form = if width_ms < 1000 { "%-d %b %Y %H:%M:%S%.3f" } else { "%-d %b %Y %H:%M:%S" };
    let range = format!("{} to {} UTC", ticks::format_time(start_ms, form), ticks::format_time(end_ms, form));
    draw_text(out, (32.0, 60.0), "start", FAINT, &range);
    draw_legend(out, series, not_evaluated);
    draw_text(out, (LEFT, TOP - 12.0), "start", FAINT, &format!("requests per {}", format_duration(width_ms)));
    for mark in (0..=ceiling / step).map(|mark| mark * step) {
        let y = BASE - scale.to_height(mark);
        let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{END}\" stroke=\"{GRID}\"/>");
        draw_text(out, (LEFT - 10.0, y + 4.0), "end", "", &group_digits(mark));
    }
    draw_bars(out, series, &scale);
    let _ = writeln!(out, "<path d=\"M{LEFT} {BASE}H{END}\" stroke=\"{INK}\"/>");
    for tick in ticks::time_ticks(scale.start_ms, scale.end_ms, TIMES_MAX) {
        let x = scale.x(tick.at_ms);
        let _ = writeln!(out, "<path d=\"M{x:.1} {BASE}v6\" stroke=\"{INK}\"/>");
        draw_text(out, (x, BASE + 22.0), "middle", "", &tick.label);
        if let Some(below) = tick.below {
            draw_text(out, (x, BASE + 38.0), "middle", FAINT, &below);
        }
    }
    draw_text(out, (END, HEIGHT - 12.0), "end", FAINT, "time (UTC)");
}

fn draw_legend(out: &mut String, series: &Series, not_evaluated: u64) {
    let (admitted, refused) = series.buckets.iter().fold((0, 0), |sum, bucket| (sum.0 + bucket.0, sum.1 + bucket.1));
    for (x, color, name, count) in [(32, ADMITTED, "admitted", admitted), (300, REFUSED, "refused", refused)] {
        let label = format!(
            "{name}: {} ({} %)",
            group_digits(count),
            format_percent(count, admitted + refused + not_evaluated)
        );
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"75\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{color}\"/>");
        draw_text(out, (f64::from(x) + 20.0, 86.0), "start", "font-size=\"13\"", &label);
    }
}

/// Draws one path per colour, so that adjacent bars have no seam, and the tooltips of the bars.
fn draw_bars(out: &mut String, series: &Series, scale: &Scale) {
    let (mut admitted_path, mut refused_path, mut tooltips) = (String::new(), String::new(), String::new());
    for (place, (admitted, refused)) in (0..).zip(&series.buckets) {
        let at_ms = series.start_ms() + place * series.width_ms();
        let (x, across) = (scale.x(at_ms), scale.x(at_ms + series.width_ms()) - scale.x(at_ms));
        let (low, mut high) = (scale.to_height(*admitted), scale.to_height(*refused));
        if *admitted > 0 {
            let _ = write!(admitted_path, "M{x:.2} {BASE}v-{low:.2}h{across:.2}v{low:.2}z");
        }
        if *refused > 0 {
            high = high.max(SEEN);
            let _ = write!(refused_path, "M{x:.2} {:.2}v-{high:.2}h{across:.2}v{high:.2}z", BASE - low);
        }
        if admitted + refused > 0 {
            let (y, height) = (BASE - low - high, low + high);
            let _ = writeln!(
                tooltips,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{across:.2}\" height=\"{height:.2}\"><title>{}: {} admitted, {} \
                 refused</title></rect>",
                super::format_time_of(at_ms),
                group_digits(*admitted),
                group_digits(*refused)
            );
        }
    }
    for (path, color) in [(admitted_path, ADMITTED), (refused_path, REFUSED)] {
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"{color}\"/>");
    }
    let _ = writeln!(out, "<g fill-opacity=\"0\">\n{tooltips}</g>");
}

fn draw_text(out: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>");
}
