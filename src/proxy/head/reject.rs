//! Invalid or ambiguous HTTP in a request head: which strictness refuses which fault. The table of ends has the faults.

use memchr::memchr;

use crate::config::Strictness;
use crate::ends::{End, MinStrictness};
use crate::route::ParsingRules;

/// Returns the fault of a target, or of the line that contains it, with bytes that are not UTF-8.
pub fn find_raw_bytes_fault(target: &[u8]) -> Option<End> {
    let error = str::from_utf8(target).err()?;
    let is_query = memchr(b'?', &target[..error.valid_up_to()]).is_some();
    Some(if is_query { End::QueryNonAscii } else { End::PathNonAscii })
}

/// Returns the fault of a target, or of the line that contains it, that parsers repair in silence: bytes that are not
/// UTF-8, which are encoded, and a fragment, which is removed.
pub fn find_raw_target_fault(target: &[u8]) -> Option<End> {
    find_raw_bytes_fault(target).or_else(|| memchr(b'#', target).map(|_| End::TargetFragment))
}

/// The faults of one request that were repaired or let pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFaults {
    /// The first fault that `Strict` refuses.
    first: Option<End>,
    /// The first fault that `Defensive` refuses too.
    unsafe_to_repair: Option<End>,
    /// The path contains an encoded slash.
    slash: bool,
    /// The method is TRACE.
    trace: bool,
}

impl RequestFaults {
    /// Decides whether the request passes with these faults, under the rules of its route. Returns the fault that only
    /// `Monitor` lets pass, if there is one.
    ///
    /// # Errors
    /// The first fault that the rules refuse.
    pub fn check(self, reading: ParsingRules) -> Result<Option<End>, End> {
        if self.slash && !reading.keeps_slashes {
            return Err(End::PathSlash);
        }
        let trace = (self.trace && !reading.accepts_trace).then_some(End::Trace);
        match reading.strictness {
            Strictness::Strict => trace.or(self.first).map_or(Ok(None), Err),
            Strictness::Defensive => trace.or(self.unsafe_to_repair).map_or(Ok(None), Err),
            Strictness::Monitor => Ok(trace.or(self.unsafe_to_repair)),
        }
    }

    fn add(&mut self, reject: End) {
        match reject {
            End::PathSlash => return self.slash = true,
            End::Trace => return self.trace = true,
            _ => {}
        }
        self.first.get_or_insert(reject);
        if reject.row().min_strictness == Some(MinStrictness::Defensive) {
            self.unsafe_to_repair.get_or_insert(reject);
        }
    }
}

/// Decides about each fault of a request under one strictness, and collects the ones that pass. A head is read under
/// `Monitor`, which collects the faults until its route is known.
#[derive(Debug)]
pub struct FaultPolicy {
    pub strictness: Strictness,
    /// Faults that passed.
    pub faults: RequestFaults,
}

impl FaultPolicy {
    pub fn new(strictness: Strictness) -> FaultPolicy {
        FaultPolicy { strictness, faults: RequestFaults::default() }
    }

    /// Reports a fault. If this returns `Ok`, the caller repairs the fault or lets it pass.
    ///
    /// # Errors
    /// The strictness refuses the fault, so the request must be refused.
    pub fn report(&mut self, reject: End) -> Result<(), End> {
        match (reject.row().min_strictness.unwrap_or(MinStrictness::Always), self.strictness) {
            (MinStrictness::Always, _)
            | (MinStrictness::Defensive, Strictness::Strict | Strictness::Defensive)
            | (MinStrictness::Strict, Strictness::Strict) => Err(reject),
            (MinStrictness::Defensive, Strictness::Monitor)
            | (MinStrictness::Strict, Strictness::Defensive | Strictness::Monitor) => {
                self.faults.add(reject);
                Ok(())
            }
        }
    }
}
