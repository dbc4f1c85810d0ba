//! Which responses of a connection are sent first (RFC 9218), seen by the order of their bytes.

use std::cell::RefCell;

use futures_util::future::join_all;

use super::Http3Gateway;
use crate::support::h3::{Exchange, H3Client, H3Options, SETTINGS, frame, get, head, varint};
use crate::support::upstream::{Upstream, ok};

const SIZE: usize = 1 << 20;
/// Bytes that a client accepts before it reads: a small part of a response.
const WINDOW: u32 = 64 * 1024;
/// Bytes of a response that may arrive while others have precedence: a few windows, and every eighth turn.
const LITTLE: usize = SIZE / 2;
/// Bytes of a download that lasts for much more than eight turns.
const LONG: usize = 8 * SIZE;

fn start() -> (Upstream, Http3Gateway) {
    let upstream = Upstream::fixed(ok(&"x".repeat(SIZE)));
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    (upstream, gateway)
}

fn connect(gateway: &Http3Gateway) -> H3Client {
    H3Client::raw(gateway.addr(), &H3Options { window: WINDOW, ..H3Options::trusting(&gateway.ca) }).unwrap()
}

fn get_with(priority: &str) -> Vec<u8> {
    get_path_with("/", priority)
}

fn get_path_with(path: &str, priority: &str) -> Vec<u8> {
    let fields: Vec<(&str, &str)> = get(path).into_iter().chain([("priority", priority)]).collect();
    head(&fields)
}

fn priority_update(stream: u64, priority: &str) -> Vec<u8> {
    frame(0xf0700, &[&varint(stream)[..], priority.as_bytes()].concat())
}

/// Reads all responses at the same time. Returns, for each, how many bytes of all of them had arrived at its end.
fn read_all(client: &H3Client, exchanges: Vec<Exchange<'_>>) -> Vec<Vec<usize>> {
    let received = RefCell::new(vec![0; exchanges.len()]);
    let reads = exchanges.into_iter().enumerate().map(async |(number, mut exchange)| {
        while let Some(chunk) = exchange.receive.read_chunk(4096, true).await.unwrap() {
            received.borrow_mut()[number] += chunk.bytes.len();
        }
        received.borrow().clone()
    });
    client.runtime.block_on(join_all(reads))
}

/// Reads all responses like [`read_all`], and checks that none is cut off.
fn read_whole(client: &H3Client, exchanges: Vec<Exchange<'_>>) -> Vec<Vec<usize>> {
    let ends = read_all(client, exchanges);
    assert!(ends.iter().enumerate().all(|(number, received)| received[number] > SIZE), "{ends:?}");
    ends
}

/// Opens request streams. The first response fills the window of the connection before the others begin.
fn open<'a>(client: &'a H3Client, heads: &[Vec<u8>]) -> Vec<Exchange<'a>> {
    let mut exchanges = Vec::new();
    for head in heads {
        let mut exchange = client.open(head);
        exchange.finish();
        exchanges.push(exchange);
        client.wait(std::time::Duration::from_millis(200));
    }
    exchanges
}

#[test]
fn an_urgent_response_overtakes_others() {
    let (_upstream, gateway) = start();
    let client = connect(&gateway);
    let exchanges = open(&client, &[get_with("u=5"), head(&get("/")), get_with("u=1, i")]);
    let ends = read_whole(&client, exchanges);
    assert!(ends[2][0] < LITTLE && ends[2][1] < LITTLE, "u=1 is first: {ends:?}");
    assert!(ends[1][0] < LITTLE, "u=3 is the default: {ends:?}");
}

#[test]
fn a_priority_update_has_more_weight_than_the_header() {
    let (_upstream, gateway) = start();
    let client = connect(&gateway);
    let control = [&[0][..], &frame(SETTINGS, b""), &priority_update(8, "u=2")].concat();
    let mut control = client.open_uni(&control);
    client.wait(std::time::Duration::from_millis(200));
    let exchanges = open(&client, &[get_with("u=1"), get_with("u=4"), get_with("u=7")]);
    client.runtime.block_on(async { control.write_all(&priority_update(0, "u=6")).await.unwrap() });
    client.wait(std::time::Duration::from_millis(200));
    let ends = read_whole(&client, exchanges);
    assert!(ends[2][0] < LITTLE && ends[2][1] < LITTLE, "u=2 came before its request: {ends:?}");
    assert!(ends[1][0] < LITTLE, "u=6 came after its request: {ends:?}");
}

/// Nobody waits for the end of another response of the same urgency.
#[test]
fn responses_of_the_same_urgency_take_turns() {
    let (_upstream, gateway) = start();
    let client = connect(&gateway);
    let exchanges = open(&client, &vec![head(&get("/")); 8]);
    let ends = read_whole(&client, exchanges);
    let first = ends.iter().min_by_key(|received| received.iter().sum::<usize>()).unwrap();
    assert!(first.iter().all(|received| *received > SIZE / 4), "{first:?}");
}

/// Urgency does not count in every eighth turn.
#[test]
fn a_small_response_does_not_wait_for_the_end_of_a_more_urgent_download() {
    let (long, small) = (Upstream::fixed(ok(&"x".repeat(LONG))), Upstream::text("small"));
    let rest = format!(
        "[[route]]\npath = \"/long\"\nupstream = \"{}\"\n[[route]]\npath = \"/small\"\nupstream = \"{}\"\n",
        long.url(),
        small.url()
    );
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let client = connect(&gateway);
    let exchanges = open(&client, &[get_path_with("/long", "u=0"), get_path_with("/small", "u=1")]);
    let ends = read_all(&client, exchanges);
    assert!(ends[0][0] > LONG, "the download arrives whole: {ends:?}");
    assert!(ends[1][1] > 5 && ends[1][0] < LONG / 2, "the small response ends early: {ends:?}");
}
