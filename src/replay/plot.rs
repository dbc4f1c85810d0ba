//! Admitted and refused requests over time as an SVG picture. Called by `render`.

use std::fmt::Write;

use super::render::{duration, time};
use super::series::Series;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 55.0;
const TIME_MARKS: usize = 4;

/// Bars, the refused on top of the admitted.
#[expect(clippy::cast_precision_loss, reason = "a picture is exact to a pixel")]
pub fn svg(series: &Series) -> String {
    let (across, up) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let base = HEIGHT - BOTTOM;
    let most = series.buckets.iter().map(|(admitted, refused)| admitted + refused).max().unwrap_or(0);
    let step = nice_step(most);
    let ceiling = most.div_ceil(step).max(1) * step;
    let count = series.buckets.len().max(1);
    let bar = across / count as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let unit = duration(series.width_ms());
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"28\" font-size=\"14\">Requests per {unit}</text>");
    legend(&mut out, series);
    for mark in (0..=ceiling / step).map(|mark| mark * step) {
        let y = base - up * mark as f64 / ceiling as f64;
        let end = WIDTH - RIGHT;
        let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/>");
        let (x, y) = (LEFT - 8.0, y + 4.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{mark}</text>");
    }
    let (mut admitted_path, mut refused_path) = (String::new(), String::new());
    for (place, (admitted, refused)) in series.buckets.iter().enumerate() {
        let x = LEFT + bar * place as f64;
        let low = up * *admitted as f64 / ceiling as f64;
        let high = up * *refused as f64 / ceiling as f64;
        if *admitted > 0 {
            let _ = write!(admitted_path, "M{x:.2} {base}v-{low:.2}h{bar:.2}v{low:.2}z");
        }
        if *refused > 0 {
            let _ = write!(refused_path, "M{x:.2} {:.2}v-{high:.2}h{bar:.2}v{high:.2}z", base - low);
        }
    }
    let _ = writeln!(out, "<path d=\"{admitted_path}\" fill=\"{ADMITTED}\"/>");
    let _ = writeln!(out, "<path d=\"{refused_path}\" fill=\"{REFUSED}\"/>");
    let _ = writeln!(out, "<path d=\"M{LEFT} {TOP}V{base}H{}\" fill=\"none\" stroke=\"#333\"/>", WIDTH - RIGHT);
    time_axis(&mut out, series, count, bar, base);
    out.push_str("</svg>\n");
    out
}

const ADMITTED: &str = "#4477aa";
const REFUSED: &str = "#ee6677";

fn legend(out: &mut String, series: &Series) {
    let (admitted, refused) = series.buckets.iter().fold((0, 0), |sum, bucket| (sum.0 + bucket.0, sum.1 + bucket.1));
    for (x, color, label) in
        [(400, ADMITTED, format!("admitted ({admitted})")), (600, REFUSED, format!("refused ({refused})"))]
    {
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"17\" width=\"12\" height=\"12\" fill=\"{color}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"28\">{label}</text>", x + 18);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a picture is exact to a pixel")]
fn time_axis(out: &mut String, series: &Series, count: usize, bar: f64, base: f64) {
    let marks = TIME_MARKS.min(count);
    for mark in 0..=marks {
        let place = count * mark / marks;
        let x = LEFT + bar * place as f64;
        let stamp = time(series.start_ms() + series.width_ms() * i64::try_from(place).unwrap_or(0));
        let (day, clock) = stamp.split_once('T').unwrap_or((&stamp, ""));
        let anchor = match mark {
            0 => "start",
            last if last == marks => "end",
            _ => "middle",
        };
        let _ = writeln!(out, "<path d=\"M{x:.1} {base}v5\" stroke=\"#333\"/>");
        for (text, y) in [(clock.trim_end_matches('Z'), base + 20.0), (day, base + 36.0)] {
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
        }
    }
    let (x, y) = (WIDTH / 2.0, HEIGHT - 5.0);
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">time (UTC)</text>");
}

/// 1, 2 or 5 times a power of ten, so that at most five such steps reach `most`.
fn nice_step(most: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step.saturating_mul(5) >= most {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}
