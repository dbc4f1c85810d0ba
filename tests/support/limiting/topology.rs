//! Redis Cluster, Redis Sentinel, and a load for tests of failover.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};
use sluicegate::limiting::decision::{ErrorKind, Op};
use sluicegate::limiting::limit::Limit;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::limiting::store::redis::slot;
use tokio::task::JoinSet;

use super::{RedisServer, check};
use crate::support::machine::Lateness;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

pub fn run_command<T: FromRedisValue>(client: &mut Connection, words: &[&str]) -> T {
    words[1..].iter().fold(&mut redis::cmd(words[0]), |cmd, word| cmd.arg(*word)).query(client).unwrap()
}

/// Three masters, each with this many replicas.
pub struct RedisCluster {
    pub nodes: Vec<ClusterNode>,
}

impl RedisCluster {
    pub fn start(replicas: usize) -> RedisCluster {
        let cluster = RedisCluster::create(replicas);
        for node in &cluster.nodes {
            wait_until("the cluster is up", || is_up(node));
            wait_until("the node knows all others", || knows_all(node, cluster.nodes.len()));
            wait_until("replicas follow", || {
                let info: String = run_command(&mut node.client(), &["INFO", "replication"]);
                info.contains("role:master") || info.contains("master_link_status:up")
            });
        }
        wait_until("masters have their replicas", || {
            (0..slot::SLOTS).step_by(5461).all(|slot| {
                let info: String = run_command(&mut cluster.owner(slot).client(), &["INFO", "replication"]);
                info.contains(&format!("connected_slaves:{replicas}"))
            })
        });
        cluster
    }

    fn create(replicas: usize) -> RedisCluster {
        // Without a replica, no failover needs the short timeout, after which a busy machine makes nodes give each
        // other up.
        let timeout = if replicas == 0 { ["--cluster-node-timeout", "15000"].as_slice() } else { &[] };
        let nodes: Vec<ClusterNode> = (0..3 * (1 + replicas)).map(|_| cluster_node(timeout)).collect();
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)))
            .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
            .output()
            .expect("redis-cli does not start; install it: apt-get install redis-tools");
        assert!(created.status.success(), "no cluster comes up: {created:?}");
        RedisCluster { nodes }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().take(2).map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The master of `slot`, as the first living node sees it.
    pub fn owner(&self, slot: usize) -> &RedisServer {
        &self.nodes[self.owner_index(slot)]
    }

    pub fn owner_index(&self, slot: usize) -> usize {
        let seen = self.nodes.iter().filter(|node| node.is_running()).find_map(|node| {
            let reply: redis::Value = run_command(&mut node.client(), &["CLUSTER", "SLOTS"]);
            let node = slot::parse_redirect_node(&format!("127.0.0.1:{}", node.port), &any()).unwrap();
            let ranges = slot::parse_ranges(&reply, &node).unwrap();
            ranges.into_iter().find(|range| (range.first..=range.last).contains(&slot)).map(|range| range.master)
        });
        let seen = seen.expect("a node has the slot");
        let at = |node: &RedisServer| slot::parse_redirect_node(&format!("127.0.0.1:{}", node.port), &any()).unwrap();
        self.nodes.iter().position(|node| at(node) == seen).expect("a node of the cluster")
    }

    pub fn masters(&self) -> Vec<&ClusterNode> {
        self.nodes.iter().filter(|node| node.is_running() && is_master(node)).collect()
    }
}

fn any() -> sluicegate::limiting::store::address::ServerAddr {
    sluicegate::limiting::store::address::ServerAddr::Tcp(String::new(), 0)
}

/// A server that uses a second port for the other nodes of its cluster.
pub struct ClusterNode {
    server: RedisServer,
    _bus: ReservedPort,
}

impl Deref for ClusterNode {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}

impl DerefMut for ClusterNode {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.server
    }
}

pub fn cluster_node(more: &[&str]) -> ClusterNode {
    let bus = ReservedPort::new();
    let port = bus.port().to_string();
    let mut args = vec!["--cluster-enabled", "yes", "--cluster-port", &port, "--cluster-node-timeout", "1000"];
    args.extend(["--repl-diskless-sync-delay", "0"]);
    args.extend(more);
    ClusterNode { server: RedisServer::start(&args), _bus: bus }
}

pub fn is_up(node: &RedisServer) -> bool {
    let info: String = run_command(&mut node.client(), &["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok")
}

/// Returns whether `node` has a connection to each of `count` nodes, itself included, and knows its role.
fn knows_all(node: &RedisServer, count: usize) -> bool {
    let known: String = run_command(&mut node.client(), &["CLUSTER", "NODES"]);
    let flags = |line: &str| line.split(' ').nth(2).unwrap_or_default().replace("myself,", "");
    let is_known = |line: &str| matches!(&*flags(line), "master" | "slave") && line.contains(" connected");
    known.lines().count() == count && known.lines().all(is_known)
}

pub fn is_master(node: &RedisServer) -> bool {
    let info: String = run_command(&mut node.client(), &["INFO", "replication"]);
    info.contains("role:master")
}

/// A master, a replica, and three sentinels.
pub struct SentinelSetup {
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    child: Child,
    pub port: u16,
    _port: ReservedPort,
    _dir: tempfile::TempDir,
}

pub const PASSWORD: &str = "of-the-servers";
pub const SENTINEL_PASSWORD: &str = "of-the-sentinels";

impl SentinelSetup {
    pub fn start() -> SentinelSetup {
        let login = ["--requirepass", PASSWORD, "--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start(&login);
        let port = master.port.to_string();
        let replica = RedisServer::start(&[&login[..], &["--replicaof", "127.0.0.1", &port]].concat());
        let mut watched = SentinelSetup { servers: vec![master, replica], sentinels: Vec::new() };
        wait_until("the replica follows", || watched.info(1).contains("master_link_status:up"));
        watched.sentinels = (0..3).map(|_| Sentinel::watching(watched.servers[0].port)).collect();
        wait_until("the sentinels know each other", || {
            watched.sentinels.iter().all(|sentinel| {
                let known: redis::Value = run_command(&mut sentinel.client(), &["SENTINEL", "MASTER", "mine"]);
                let known = format!("{known:?}");
                let has = |name: &str, value: &str| {
                    known.contains(&format!("bulk-string('\"{name}\"'), bulk-string('\"{value}\"')"))
                };
                has("num-other-sentinels", "2") && has("num-slaves", "1")
            })
        });
        watched
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://:{PASSWORD}@{}/mine/0?sentinel_password={SENTINEL_PASSWORD}", hosts.join(","))
    }

    pub fn client(&self, server: usize) -> Connection {
        self.try_client(server).unwrap()
    }

    fn try_client(&self, server: usize) -> redis::RedisResult<Connection> {
        let url = self.servers[server].url().replace("//", &format!("//:{PASSWORD}@"));
        redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))
    }

    /// Returns `INFO replication`; empty while the server closes its connections because its role changes.
    pub fn info(&self, server: usize) -> String {
        let info = |mut client: Connection| redis::cmd("INFO").arg("replication").query(&mut client);
        self.try_client(server).and_then(info).unwrap_or_default()
    }

    /// Returns the port of the master that the sentinels report.
    pub fn reported_master_port(&self) -> u16 {
        let words = ["SENTINEL", "get-master-addr-by-name", "mine"];
        run_command::<(String, u16)>(&mut self.sentinels[0].client(), &words).1
    }

    pub fn order_failover(&self) -> bool {
        redis::cmd("SENTINEL").arg("FAILOVER").arg("mine").exec(&mut self.sentinels[0].client()).is_ok()
    }

    pub fn stop_sentinels(&mut self) {
        self.sentinels.clear();
    }
}

impl Sentinel {
    fn watching(master: u16) -> Sentinel {
        Sentinel::start(|port| {
            format!(
                "port {port}\nrequirepass {SENTINEL_PASSWORD}\nsentinel sentinel-pass {SENTINEL_PASSWORD}\n\
                 sentinel monitor mine 127.0.0.1 {master} 2\nsentinel auth-pass mine {PASSWORD}\n\
                 sentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 3000\n"
            )
        })
    }

    /// Starts a sentinel. `config` returns the config for a port.
    pub fn start(config: impl FnOnce(u16) -> String) -> Sentinel {
        let reserved = ReservedPort::new();
        let port = reserved.port();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sentinel.conf");
        std::fs::write(&file, format!("bind 127.0.0.1\ndir {}\n{}", dir.path().display(), config(port))).unwrap();
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server does not start; install it: apt-get install redis-server");
        let sentinel = Sentinel { child, port, _port: reserved, _dir: dir };
        wait_until("the sentinel listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        sentinel
    }

    fn client(&self) -> Connection {
        let url = format!("redis://:{SENTINEL_PASSWORD}@127.0.0.1:{}", self.port);
        redis::Client::open(url).unwrap().get_connection_with_timeout(Duration::from_secs(5)).unwrap()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A decision under load: when its result arrived, how long it took, and the result.
#[derive(Clone, Copy, Debug)]
pub struct TimedDecision {
    pub at: Instant,
    pub took: Duration,
    pub outcome: Result<bool, ErrorKind>,
}

/// Twenty clients that each use one limit with several keys until they are stopped.
pub struct Load {
    seen: Rc<RefCell<Vec<TimedDecision>>>,
    stop: Rc<Cell<bool>>,
    running: JoinSet<()>,
    lateness: Lateness,
}

impl Load {
    pub fn start(redis: &Rc<RedisStore>, limit: &Arc<Limit>, keys: &[&'static str]) -> Load {
        let (seen, stop) = Default::default();
        let mut load = Load { seen, stop, running: JoinSet::new(), lateness: Lateness::watch() };
        for i in 0..20_u64 {
            let (redis, limit, seen, stop) = (redis.clone(), limit.clone(), load.seen.clone(), load.stop.clone());
            let key = keys[usize::try_from(i).unwrap() % keys.len()];
            load.running.spawn_local(async move {
                tokio::time::sleep(Duration::from_micros(250 * i)).await;
                while !stop.get() {
                    let started = Instant::now();
                    let outcome = redis.run(Op::Take, &vec![check(&limit, key, 1)].into()).await;
                    let outcome = outcome.map(|decision| decision.admitted);
                    seen.borrow_mut().push(TimedDecision { at: Instant::now(), took: started.elapsed(), outcome });
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        load
    }

    pub fn admitted(&self) -> usize {
        self.seen.borrow().iter().filter(|seen| seen.outcome == Ok(true)).count()
    }

    pub fn count(&self, of: impl Fn(&TimedDecision) -> bool) -> usize {
        self.seen.borrow().iter().filter(|seen| of(seen)).count()
    }

    /// Stops the clients and returns the results, without the delays caused by the machine.
    pub async fn stop(self) -> Vec<TimedDecision> {
        self.stop.set(true);
        self.running.join_all().await;
        let own = self.lateness.allowance();
        self.seen.take().into_iter().map(|seen| TimedDecision { took: seen.took.saturating_sub(own), ..seen }).collect()
    }
}

pub fn longest(seen: &[TimedDecision]) -> Duration {
    seen.iter().map(|seen| seen.took).max().unwrap_or_default()
}

pub fn failures(seen: &[TimedDecision]) -> Vec<ErrorKind> {
    let mut kinds: Vec<ErrorKind> = seen.iter().filter_map(|seen| seen.outcome.err()).collect();
    kinds.sort_by_key(|kind| *kind as usize);
    kinds.dedup();
    kinds
}
