//! Event streams of the admin listener: `live` sends what the gateway does, once per second, to all its viewers;
//! `summary` builds its events. Listed in `pages`.

pub mod live;
mod summary;
