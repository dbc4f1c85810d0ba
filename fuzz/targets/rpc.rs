//! Any bytes that a peer sends as a gRPC call: nothing panics, what is kept is bounded, and the reading does not depend on where
//! the bytes are cut. What is read and encoded again is read as the same.

use bytes::Bytes;
use sluicegate::fuzzing::{
    CallError, CheckRequest, DescriptorEntry, DescriptorPattern, EntryPattern, MessageReader, RateLimitDomain,
    RateLimitRequest, RateLimitRule, ValuePattern, decode_message, encode_message,
};

const MESSAGE_MAX: usize = 1024;

pub type Input<'a> = (u8, &'a [u8]);

fn read(pieces: &[&[u8]]) -> Result<Bytes, CallError> {
    let mut reader = MessageReader::new(MESSAGE_MAX);
    for piece in pieces {
        reader.add(piece)?;
    }
    reader.finish()
}

/// Rules with every kind of pattern.
fn domain() -> RateLimitDomain {
    let mut domain = RateLimitDomain::new(0);
    let keys = ["a", "path", "a", "remote_address"];
    let values = ["*", "/login", "b*", "*"];
    for (index, is_ordered) in [true, false, true, false].into_iter().enumerate() {
        for count in 1..=3 {
            let at = |place: usize| (index + place) % keys.len();
            let entry = |place: usize| EntryPattern {
                key: keys[at(place)].to_owned(),
                value: ValuePattern::parse(values[at(place)]),
            };
            let pattern = DescriptorPattern { entries: (0..count).map(entry).collect(), is_ordered };
            domain.add_rule(RateLimitRule { pattern, limits: vec![index], ..RateLimitRule::default() });
        }
    }
    domain
}

pub fn run(input: Input<'_>) {
    let (step, bytes) = input;
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let message = match (read(&single), read(&pieces)) {
        (Ok(single), Ok(pieces)) => {
            assert_eq!(single, pieces);
            assert!(single.len() <= MESSAGE_MAX);
            single
        }
        (Err(_), Err(_)) => Bytes::copy_from_slice(bytes),
        (single, pieces) => panic!("{single:?}\n{pieces:?}"),
    };
    if let Ok(question) = decode_message::<RateLimitRequest>(message.clone()) {
        let again = encode_message(&question).slice(5..);
        assert_eq!(decode_message::<RateLimitRequest>(again).unwrap(), question);
        if question.check_bounds().is_ok() {
            let domain = domain();
            for descriptor in &question.descriptors {
                let entries: Vec<DescriptorEntry<'_>> = descriptor
                    .entries
                    .iter()
                    .map(|entry| DescriptorEntry { key: &entry.key, value: &entry.value })
                    .collect();
                let _ = domain.find_rule(&entries);
            }
        }
    }
    if let Ok(question) = decode_message::<CheckRequest>(message) {
        let again = encode_message(&question).slice(5..);
        assert_eq!(decode_message::<CheckRequest>(again).unwrap(), question);
    }
}
