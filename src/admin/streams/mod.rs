//! Event streams of the admin listener: `live` sends what the gateway does, once per second, to all its viewers
//! (`summary` builds its events), and `tap` sends requests as they end. Listed in `pages`.

pub mod live;
mod summary;
pub mod tap;
