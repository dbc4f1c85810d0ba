//! Pages about the past and the rates of now (`admin::history`). Listed in `admin::pages`.

use std::time::Duration;

use http::StatusCode;

use crate::admin::history::write_rates;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};

/// Shows the rates and marks of the last minutes.
pub async fn show_history(request: PageRequest) -> Result<AdminResponse, Problem> {
    let minutes = parse_minutes(request.query())?;
    Ok(json_response(request.context.history.write_json(Duration::from_secs(60 * minutes))))
}

/// Shows the rates of each route and limit in the last seconds.
pub async fn show_traffic(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    Ok(json_response(write_rates(&request.context.history)))
}

/// Reads `minutes=N`, from 1 to 60; 60 without it.
fn parse_minutes(query: &str) -> Result<u64, Problem> {
    let minutes = match query {
        "" => Some(60),
        _ => query.strip_prefix("minutes=").and_then(|text| text.parse().ok()),
    };
    let detail = "the only parameter is minutes, a number from 1 to 60";
    minutes.filter(|minutes| (1..=60).contains(minutes)).ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_from_1_to_60() {
        let minutes = |query| parse_minutes(query).ok();
        assert_eq!([minutes(""), minutes("minutes=5"), minutes("minutes=60")], [Some(60), Some(5), Some(60)]);
        for wrong in ["minutes=0", "minutes=61", "minutes=", "minutes=5&minutes=6", "minutes=-1", "hours=1", "5"] {
            assert_eq!(minutes(wrong), None, "{wrong}");
        }
    }
}
