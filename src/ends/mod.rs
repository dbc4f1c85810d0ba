//! Every way in which a request, a tunnel, a connection or a question of another proxy can end without the regular
//! response of its route. `table` has one row for each; statuses, gRPC codes, labels of metrics and of the access log,
//! texts, hints, retries and settlements read it, and `docs/reference/reasons.md` is written from it.
//!
//! - `table`: the rows.
//! - `row`: what a row says.
//!
//! To add one, write its row, return the new [`End`] where the request ends, and run
//! `GOLDEN=write cargo test --test limiting config::`, which adds it to the page.

mod row;
mod table;

use http::StatusCode;

pub use crate::ends::row::{
    Blame, Counted, EndRow, MinStrictness, Refund, RetryReason, UpstreamFailureKind, UpstreamOutcome,
};
pub use crate::ends::table::End;
use crate::grpc::GrpcCode;
use crate::labels::Label;

/// Index of the first row with the same label, among the labels of `rejections_total`.
const REJECTION_INDEXES: [usize; End::ALL.len()] = index_rejections();
/// Number of labels of `rejections_total`.
pub const REJECTION_LABELS: usize = count_rejection_labels();

impl End {
    /// Returns the status of the response. 499 stands for a client that disconnected, as in the log of nginx. `refuse`
    /// of a limit may set another one than 429.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the code of the response to a gRPC call.
    pub fn grpc_code(self) -> GrpcCode {
        self.row().grpc.unwrap_or(GrpcCode::Unavailable)
    }

    /// Returns the `reason` in the access log and in metrics. Some ends share one.
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// Returns whether the gateway, an upstream or the operator is to blame, regardless of the status.
    pub fn is_server_fault(self) -> bool {
        !matches!(self.row().blame, Blame::Client | Blame::Limit)
    }

    /// Returns whether a limit refused the request.
    pub fn is_by_limit(self) -> bool {
        self.row().counted == Counted::Limit
    }

    /// Returns whether `refuse` of the limit says what its client gets.
    pub fn is_configurable(self) -> bool {
        self.is_by_limit() && self.row().status == StatusCode::TOO_MANY_REQUESTS.as_u16()
    }

    /// Returns whether no server accepted a connection.
    pub fn is_connect_error(self) -> bool {
        self.row().retry == Some(RetryReason::ConnectError)
    }

    /// Returns true if another strictness would let the request pass.
    pub fn depends_on_strictness(self) -> bool {
        matches!(self.row().min_strictness, Some(MinStrictness::Defensive | MinStrictness::Strict))
    }

    /// Returns the index of the label among those of `rejections_total`.
    pub fn rejection_index(self) -> usize {
        REJECTION_INDEXES[self as usize]
    }

    /// Returns the labels of `rejections_total`, in the order of [`End::rejection_index`].
    pub fn rejection_labels() -> [&'static str; REJECTION_LABELS] {
        let mut labels = [""; REJECTION_LABELS];
        End::ALL
            .iter()
            .filter(|end| end.row().is_rejection())
            .for_each(|end| labels[end.rejection_index()] = end.label());
        labels
    }
}

impl Label for End {
    fn label(self) -> &'static str {
        End::label(self)
    }
}

const fn index_rejections() -> [usize; End::ALL.len()] {
    let mut indexes = [0; End::ALL.len()];
    let (mut at, mut next) = (0, 0);
    while at < End::ALL.len() {
        let row = End::ALL[at].row();
        if row.is_rejection() {
            if at > 0 && same_text(End::ALL[at - 1].row().label, row.label) {
                indexes[at] = indexes[at - 1];
            } else {
                indexes[at] = next;
                next += 1;
            }
        }
        at += 1;
    }
    indexes
}

const fn count_rejection_labels() -> usize {
    let (mut at, mut most) = (0, 0);
    while at < REJECTION_INDEXES.len() {
        if REJECTION_INDEXES[at] > most {
            most = REJECTION_INDEXES[at];
        }
        at += 1;
    }
    most + 1
}

const fn same_text(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}
