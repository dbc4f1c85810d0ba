//! placeholder
#[derive(Debug)]
pub struct RouteTable {}
