//! One message to a name server and its response, over TCP (RFC 7766): updates with signatures do not always fit into a
//! packet of UDP, and nobody can forge the address of a connection.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;

use crate::acme::dns::DnsFault;

/// Time limit of an exchange.
const EXCHANGE: Duration = Duration::from_secs(10);

/// Sends a message to a name server and returns its response, whose signature nobody has verified.
pub async fn exchange(server: impl ToSocketAddrs + Display, message: &[u8]) -> Result<Vec<u8>, DnsFault> {
    let remedy = "check `server` in `dns`, and that its port is open for TCP from here";
    match timeout(EXCHANGE, send_and_receive(&server, message)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(DnsFault::new(format!("the name server {server} cannot be reached: {error}"), remedy)),
        Err(_) => Err(DnsFault::new(
            format!("the name server {server} did not respond within {} seconds", EXCHANGE.as_secs()),
            remedy,
        )),
    }
}

async fn send_and_receive(server: impl ToSocketAddrs, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    // In one write, because some servers expect both in one segment.
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await?;
    Ok(response)
}

/// Asks a name server for records of a name, without recursion.
pub async fn query(server: impl ToSocketAddrs + Display, name: &Name, kind: RecordType) -> Result<Message, DnsFault> {
    let mut message = Message::query();
    message.metadata.recursion_desired = false;
    message.add_query(Query::query(name.clone(), kind));
    let shown = server.to_string();
    let bytes = message.to_vec().map_err(|error| DnsFault::new(error, "this is a bug in this program"))?;
    parse_response(&exchange(server, &bytes).await?, &message, &shown)
}

/// Parses a response to `request`.
pub fn parse_response(response: &[u8], request: &Message, server: &str) -> Result<Message, DnsFault> {
    let garbled = || {
        let what = format!("{server} sent no response of DNS");
        DnsFault::new(what, "see that `server` in `dns` is the address of a name server")
    };
    let parsed = Message::from_vec(response).map_err(|_| garbled())?;
    let is_response = parsed.message_type == MessageType::Response && parsed.id == request.id;
    // A server that does not know an operation may respond with another one.
    let has_operation = parsed.op_code == request.op_code || parsed.response_code != ResponseCode::NoError;
    match is_response && (has_operation || request.op_code == OpCode::Query) {
        true => Ok(parsed),
        false => Err(garbled()),
    }
}
