//! Whatever path or host a request names: its canonical form is read as itself, and a server that resolves
//! it once more finds nothing left to resolve.

use sluicegate::config::Strictness;
use sluicegate::fuzzing::{CanonicalPath, FaultPolicy, canonicalize_path, parse_authority};

fn check_path(raw: &str, strictness: Strictness) {
    let Ok(form) = canonicalize_path(raw, &mut FaultPolicy::new(strictness)) else { return };
    let sent = form.to_send(raw);
    let form = form.to_read(raw);
    assert!(form.starts_with('/'), "{raw:?} became {form:?}");
    assert!(!form.contains("//"), "{raw:?} became {form:?}");
    assert!(!form.split('/').any(|segment| segment == "." || segment == ".."), "{raw:?} became {form:?}");
    assert!(form.bytes().all(|byte| byte.is_ascii_graphic()), "{raw:?} became {form:?}");
    let again = canonicalize_path(form, &mut FaultPolicy::new(strictness));
    assert_eq!(again, Ok(CanonicalPath::default()), "{raw:?} became {form:?}");
    let read = canonicalize_path(sent, &mut FaultPolicy::new(strictness));
    assert_eq!(read.map(|read| read.to_read(sent).to_owned()), Ok(form.to_owned()), "{raw:?} is sent as {sent:?}");
}

fn check_host(text: &[u8]) {
    let Some(found) = parse_authority(text) else { return };
    let form = found.rewritten.as_deref().map_or(text, str::as_bytes);
    let again = parse_authority(form).expect("a canonical host is a host");
    assert_eq!((again.rewritten, again.host_len, again.port), (None, found.host_len, found.port));
    assert!(form.iter().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
}

pub type Input<'a> = (&'a str, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (raw, host) = input;
    if raw.starts_with('/') {
        for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
            check_path(raw, strictness);
        }
    }
    check_host(host);
}
