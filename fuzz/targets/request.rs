//! Whatever bytes a client sends: the inspector has one verdict for each request that the parser takes, says the
//! same wherever they are cut, and is stricter only in what is listed.

#[path = "../../tests/http1/request_differential/twin.rs"]
mod twin;

pub type Input<'a> = (u8, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (step, bytes) = input;
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    twin::compare(bytes, &pieces).unwrap_or_else(|difference| panic!("{difference}"));
}
