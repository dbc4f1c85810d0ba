//! The text of `/metrics`: its format and compression, by what the client accepts. Called by `status`.

use std::cell::RefCell;
use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::ACCEPT;

use crate::admin::cached::TimeBudget;
use crate::labels::labels;
use crate::proxy::render::compress::negotiate::select_algorithm;
use crate::route::compress::{CompressSettings, CompressionAlgorithm};
use crate::telemetry::metrics::{Metrics, ShownSeries};

labels! {
    /// Format of the text, by its media type.
    MetricsFormat:
    Text = "text/plain; version=0.0.4; charset=utf-8",
    OpenMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8",
}

/// The last text in each form. It is made for each request, until that takes too much time.
#[derive(Default)]
pub struct CachedMetrics {
    made: RefCell<[Option<Bytes>; 4]>,
    /// Time spent on all forms.
    effort: TimeBudget,
}

const OPENMETRICS: &str = "application/openmetrics-text";
/// A line of `Accept` has few members; further ones are ignored.
const MEMBERS_MAX: usize = 64;

impl MetricsFormat {
    /// Selects the format with the higher weight in `Accept`; at equal weights OpenMetrics, if it is named.
    pub fn negotiate(headers: &HeaderMap) -> MetricsFormat {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let (mut openmetrics, mut text, mut other) = (0, None, None);
        for (media_type, version, weight) in
            lines.flat_map(|line| line.split(',')).take(MEMBERS_MAX).filter_map(parse_member)
        {
            match (media_type.as_str(), version) {
                (OPENMETRICS, None | Some("1.0.0")) => openmetrics = weight.max(openmetrics),
                ("text/plain", None | Some("0.0.4")) => text = Some(weight),
                ("*/*" | "text/*", _) => other = Some(weight),
                _ => {}
            }
        }
        let is_openmetrics = openmetrics > 0 && openmetrics >= text.or(other).unwrap_or(0);
        if is_openmetrics { MetricsFormat::OpenMetrics } else { MetricsFormat::Text }
    }
}

/// Parses a member of `Accept`: the media type in lower case, the version, and the weight in 1/1000.
fn parse_member(member: &str) -> Option<(String, Option<&str>, u32)> {
    let mut parameters = member.split(';').map(str::trim);
    let media_type = parameters.next()?.to_ascii_lowercase();
    let (mut version, mut weight) = (None, 1000);
    for (name, value) in parameters.filter_map(|parameter| parameter.split_once('=')) {
        if name.eq_ignore_ascii_case("version") {
            version = Some(value.trim_matches('"'));
        } else if name.eq_ignore_ascii_case("q") {
            let value = value.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value))?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
            {
                weight = (value * 1000.0) as u32;
            }
        }
    }
    Some((media_type, version, weight))
}

/// Returns whether the client wants the text compressed with gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let settings = CompressSettings { algorithms: vec![CompressionAlgorithm::Gzip], ..CompressSettings::default() };
    select_algorithm(headers, &settings).is_some()
}

impl CachedMetrics {
    /// Returns the text in this form.
    ///
    /// # Errors
    /// If a family cannot be encoded.
    pub fn get_or_make(
        &self,
        (format, is_gzip): (MetricsFormat, bool),
        metrics: &Metrics,
        which: ShownSeries,
    ) -> prometheus::Result<Bytes> {
        let mut texts = self.made.borrow_mut();
        let slot = &mut texts[format as usize * 2 + usize::from(is_gzip)];
        let text = match self.effort.run_within(|| make_text((format, is_gzip), metrics, which)) {
            Some(text) => text?,
            None => match slot {
                Some(text) => return Ok(text.clone()),
                // The first in this form, while others take the time.
                None => make_text((format, is_gzip), metrics, which)?,
            },
        };
        *slot = Some(text.clone());
        Ok(text)
    }
}

fn make_text(
    (format, is_gzip): (MetricsFormat, bool),
    metrics: &Metrics,
    which: ShownSeries,
) -> prometheus::Result<Bytes> {
    let text = match format {
        MetricsFormat::Text => metrics.render(which)?,
        MetricsFormat::OpenMetrics => metrics.render_openmetrics(which).into_bytes(),
    };
    let text = if is_gzip { compress(&text).map_err(|error| prometheus::Error::Msg(error.to_string()))? } else { text };
    Ok(text.into())
}

fn compress(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_older_format_is_the_default() {
        use MetricsFormat::{OpenMetrics, Text};
        for (accept, expected) in [
            ("", Text),
            ("*/*", Text),
            ("text/html, application/xhtml+xml;q=0.9, */*;q=0.8", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;version=2.0.0, text/plain;q=0.1", Text),
            ("application/openmetrics-text;q=0", Text),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.5", Text),
            ("application/openmetrics-text;q=nan", Text),
            // Prometheus 2 and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.7,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).unwrap())]);
            assert_eq!(MetricsFormat::negotiate(&headers), expected, "{accept}");
        }
        assert_eq!(MetricsFormat::negotiate(&HeaderMap::new()), Text);
    }
}
