//! On a cluster a decision over several slots charges one after another and gives back what it
//! cannot use: nobody is refused for that later than at the moment itself.

use crate::stores::topology::RedisCluster;
use crate::support::client::get;
use crate::support::gateway::Gateway;

fn gateway(cluster: &RedisCluster, limits: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [{limits}]\n\n[limit.one]\nrate = \"1/h\"\nburst = 1\nkey = [\"header:x-a\"]\n\n\
         [limit.two]\nrate = \"100/h\"\nkey = [\"header:x-b\"]\n",
        cluster.url()
    ));
    gateway.until_connected();
    gateway
}

#[test]
fn a_refusal_for_want_of_what_is_given_back_is_not_remembered() {
    let cluster = RedisCluster::start(0);
    let fields = "x-a: a\r\nx-b: b\r\n";
    let other = gateway(&cluster, "\"one\"");
    let asks = |gateway: &Gateway| gateway.ask(&get("/", fields)).status();
    let gives_back = || {
        let path = "/-/limits/one/state?key=a";
        let reset = format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let answer = crate::support::client::ask(other.admin, &reset);
        assert!(answer.status() < 300, "{}", answer.head);
    };
    // Where the limit is asked together with one of another key, a charge may be for the moment.
    let several = gateway(&cluster, "\"one\", \"two\"");
    assert_eq!(asks(&other), 200);
    for _ in 0..3 {
        assert_eq!(asks(&several), 429);
        gives_back();
        assert_eq!(asks(&several), 200);
    }
    assert_eq!(several.metric("store_denial_cache_hits_total", &[]), Some(0.0));
    // Where it is not, a refusal is remembered.
    assert_eq!([asks(&other), asks(&other), asks(&other)], [429; 3]);
    assert!(other.metric("store_denial_cache_hits_total", &[]) >= Some(1.0));
}
