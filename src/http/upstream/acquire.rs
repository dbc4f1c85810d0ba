//! A connection for a request, at the server whose turn it is. Called by `forward`.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;

use super::asked::AskedServer;
use super::connect::{ConnectError, ConnectFault};
use super::course::{Acquired, Course, Unserved};
use super::servers::Servers;
use crate::http::complaints::UpstreamTrouble;
use crate::http::deadline::RequestDeadline;
use crate::metrics::RetryReason;
use crate::upstream::caps::{CapRule, InFlight};

impl Servers {
    /// A connection: one that there is, unless the course is renewed, else a new one, at the servers' turns, to
    /// one that has not failed the request.
    ///
    /// # Errors
    /// When no server accepted one, or none had room.
    pub async fn acquire(
        &self,
        course: &mut Course,
        connect: Duration,
        deadline: &RequestDeadline,
    ) -> Result<Acquired, Unserved> {
        course.asked_ms = self.pools.now_ms();
        if let Some(rule) = &self.upstream.settings.caps {
            return Box::pin(self.acquire_capped(rule, course, connect, deadline)).await;
        }
        let server = self.pick(course)?;
        let mut acquired = match server.ready(&course.need, self.max_idle) {
            Some(connection) => Acquired { server, connection },
            // Rare, and larger than all the rest that a request keeps.
            None => Box::pin(self.connect(server, course, connect)).await?,
        };
        if self.upstream.settings.counts_all() {
            acquired.connection.count(InFlight::of(&acquired.server.state));
        }
        Ok(acquired)
    }

    /// Connects to `server`, or to others when it does not accept.
    async fn connect(
        &self,
        mut server: Rc<AskedServer>,
        course: &mut Course,
        limit: Duration,
    ) -> Result<Acquired, ConnectFault> {
        let mut shortages = 0;
        loop {
            let _counted = self.upstream.settings.counts_all().then(|| InFlight::of(&server.state));
            let error = match server.connect(&course.need, limit, self.max_idle).await {
                Ok(connection) => return Ok(Acquired { server, connection }),
                Err(error) => error,
            };
            if error.fault == ConnectFault::Descriptors {
                match self.frees_descriptors(&mut shortages).await {
                    true => continue,
                    false => return Err(error.fault),
                }
            }
            self.complain(&server, &error);
            if !self.may_again(course, &server, RetryReason::ConnectError) {
                return Err(error.fault);
            }
            server = self.pick(course)?;
            if let Some(connection) = server.ready(&course.need, self.max_idle) {
                return Ok(Acquired { server, connection });
            }
        }
    }

    /// A connection to a server with room, at the servers' turns.
    ///
    /// # Errors
    /// When there is none in time, or no server accepted one.
    async fn acquire_capped(
        &self,
        rule: &CapRule,
        course: &mut Course,
        connect: Duration,
        deadline: &RequestDeadline,
    ) -> Result<Acquired, Unserved> {
        let mut shortages = 0;
        loop {
            let (server, permit) = match course.turn.take() {
                Some(turn) => turn,
                None => self.turn(rule, course, deadline).await?,
            };
            let connected = loop {
                let connected = match server.ready(&course.need, self.max_idle) {
                    Some(connection) => Ok(connection),
                    None => server.connect(&course.need, connect, self.max_idle).await,
                };
                match connected {
                    // The server has not seen it: the request keeps its turn.
                    Err(error) if error.fault == ConnectFault::Descriptors => {
                        if !self.frees_descriptors(&mut shortages).await {
                            return Err(Unserved::Connect(error.fault));
                        }
                    }
                    connected => break connected,
                }
            };
            let error = match connected {
                Ok(mut connection) => {
                    connection.count(permit);
                    return Ok(Acquired { server, connection });
                }
                Err(error) => error,
            };
            drop(permit);
            // Another request was quicker, or what there is was not wanted: better that than none.
            if error.fault == ConnectFault::MaxConnections {
                if !server.give_way() {
                    course.need.since_ms = None;
                }
                yield_now().await;
                continue;
            }
            self.complain(&server, &error);
            if !self.may_again(course, &server, RetryReason::ConnectError) {
                return Err(Unserved::Connect(error.fault));
            }
        }
    }

    fn complain(&self, server: &AskedServer, error: &ConnectError) {
        let kind = match error.fault {
            ConnectFault::Tls => UpstreamTrouble::Tls,
            _ => UpstreamTrouble::Connect,
        };
        self.complaints.tell(kind, server.label(), error);
    }
}
