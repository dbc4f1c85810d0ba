//! Admitted and refused requests over time as an SVG picture. Called by the command line.

use std::fmt::Write;

use super::series::Series;
use super::ticks::{self, grouped};
use super::units::percent;
use crate::limit::algo::told::duration;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 52.0;
const TOP: f64 = 124.0;
const BOTTOM: f64 = 68.0;
const BASE: f64 = HEIGHT - BOTTOM;
const END: f64 = WIDTH - RIGHT;
/// Fewer would be as broad as houses; there is room beside them instead.
const BARS_MIN: i64 = 40;
const TIMES_MAX: i64 = 9;
/// What was refused is seen, however little it is.
const SEEN: f64 = 1.5;

const PAPER: &str = "#ffffff";
const INK: &str = "#1f2933";
const FAINT: &str = "fill=\"#616e7c\"";
const GRID: &str = "#e4e7eb";
const ADMITTED: &str = "#4a86c5";
const REFUSED: &str = "#e0552b";

/// The scales: times across, requests up.
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

    /// Pixels that so many requests are high.
    fn height(&self, count: u64) -> f64 {
        (BASE - TOP) * count as f64 / self.ceiling as f64
    }
}

/// Bars, the refused on top of the admitted. Requests that were not evaluated have none, and are counted beside.
pub fn svg(series: &Series, not_evaluated: u64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"12\" \
         fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"{PAPER}\"/>\n"
    );
    text(&mut out, (32.0, 38.0), "start", "font-size=\"19\" font-weight=\"600\"", "Requests under these limits");
    if not_evaluated > 0 {
        let label = format!("not evaluated, not drawn: {}", grouped(not_evaluated));
        text(&mut out, (568.0, 86.0), "start", "font-size=\"13\"", &label);
    }
    if series.buckets.is_empty() {
        let _ = writeln!(out, "<path d=\"M{LEFT} {BASE}H{END}\" stroke=\"{INK}\"/>");
        let middle = (f64::midpoint(LEFT, END), f64::midpoint(TOP, BASE));
        text(&mut out, middle, "middle", FAINT, "the log holds no request that limits decide");
    } else {
        chart(&mut out, series, not_evaluated);
    }
    out.push_str("</svg>\n");
    out
}

fn chart(out: &mut String, series: &Series, not_evaluated: u64) {
    let most = series.buckets.iter().map(|(admitted, refused)| admitted + refused).max().unwrap_or(0);
    let step = ticks::nice_step(most);
    let count = i64::try_from(series.buckets.len()).unwrap_or(i64::MAX);
    let (width_ms, start_ms) = (series.width_ms(), series.start_ms());
    let beside = (BARS_MIN - count).max(0) / 2 * width_ms;
    let end_ms = start_ms + count * width_ms;
    let ceiling = most.div_ceil(step).max(1) * step;
    let scale = Scale { start_ms: start_ms - beside, end_ms: end_ms + beside, ceiling };

    let form = if width_ms < 1000 { "%-d %b %Y %H:%M:%S%.3f" } else { "%-d %b %Y %H:%M:%S" };
    let range = format!("{} to {} UTC", ticks::format(start_ms, form), ticks::format(end_ms, form));
    text(out, (32.0, 60.0), "start", FAINT, &range);
    legend(out, series, not_evaluated);
    text(out, (LEFT, TOP - 12.0), "start", FAINT, &format!("requests per {}", duration(width_ms)));
    for mark in (0..=ceiling / step).map(|mark| mark * step) {
        let y = BASE - scale.height(mark);
        let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{END}\" stroke=\"{GRID}\"/>");
        text(out, (LEFT - 10.0, y + 4.0), "end", "", &grouped(mark));
    }
    bars(out, series, &scale);
    let _ = writeln!(out, "<path d=\"M{LEFT} {BASE}H{END}\" stroke=\"{INK}\"/>");
    for tick in ticks::times(scale.start_ms, scale.end_ms, TIMES_MAX) {
        let x = scale.x(tick.at_ms);
        let _ = writeln!(out, "<path d=\"M{x:.1} {BASE}v6\" stroke=\"{INK}\"/>");
        text(out, (x, BASE + 22.0), "middle", "", &tick.label);
        if let Some(below) = tick.below {
            text(out, (x, BASE + 38.0), "middle", FAINT, &below);
        }
    }
    text(out, (END, HEIGHT - 12.0), "end", FAINT, "time (UTC)");
}

fn legend(out: &mut String, series: &Series, not_evaluated: u64) {
    let (admitted, refused) = series.buckets.iter().fold((0, 0), |sum, bucket| (sum.0 + bucket.0, sum.1 + bucket.1));
    for (x, color, name, count) in [(32, ADMITTED, "admitted", admitted), (300, REFUSED, "refused", refused)] {
        let label = format!("{name}: {} ({} %)", grouped(count), percent(count, admitted + refused + not_evaluated));
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"75\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{color}\"/>");
        text(out, (f64::from(x) + 20.0, 86.0), "start", "font-size=\"13\"", &label);
    }
}

/// One path of each color, so that neighbours leave no seam; and what a bar says when pointed at.
fn bars(out: &mut String, series: &Series, scale: &Scale) {
    let (mut admitted_path, mut refused_path, mut told) = (String::new(), String::new(), String::new());
    for (place, (admitted, refused)) in (0..).zip(&series.buckets) {
        let at_ms = series.start_ms() + place * series.width_ms();
        let (x, across) = (scale.x(at_ms), scale.x(at_ms + series.width_ms()) - scale.x(at_ms));
        let (low, mut high) = (scale.height(*admitted), scale.height(*refused));
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
                told,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{across:.2}\" height=\"{height:.2}\"><title>{}: {} admitted, {} \
                 refused</title></rect>",
                super::units::time(at_ms),
                grouped(*admitted),
                grouped(*refused)
            );
        }
    }
    for (path, color) in [(admitted_path, ADMITTED), (refused_path, REFUSED)] {
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"{color}\"/>");
    }
    let _ = writeln!(out, "<g fill-opacity=\"0\">\n{told}</g>");
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>");
}
