//! What a Redis server reports of itself that can endanger counters: eviction, slot coverage, replicas; and whether it is
//! a single server, which takes several keys in one call.
//!
//! Pure parsing of `INFO` and `CONFIG GET`. An ACL may forbid both; then the facts stay unknown and are not assumed.
//! Called by `monitor.rs` when a connection is made, and each minute.

use redis::{Pipeline, Value};

use super::reply::text;

/// Facts about one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) maxmemory_policy: Option<String>,
    pub(crate) full_coverage: Option<bool>,
    /// Replicas that are online and have answered lately.
    pub(crate) replicas: Option<u32>,
    /// All connected replicas, whether or not they lag.
    pub(crate) connected: Option<u32>,
    /// It says that it is a single server: no part of a cluster, and no proxy before several.
    pub(crate) is_single: bool,
}

/// A replica that has not been heard of for longer than this many seconds cannot confirm in time.
const LARGEST_LAG: u32 = 1;

/// The commands that ask for the facts. The setting of clusters is asked of clusters only, because single servers
/// report a value for it, too; and what kind of server it is of what should be a single one.
pub(crate) fn questions(cluster: bool) -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("PING");
    pipeline.cmd("INFO").arg("replication");
    pipeline.cmd("INFO").arg("memory");
    if cluster {
        pipeline.cmd("CONFIG").arg("GET").arg("cluster-require-full-coverage");
    } else {
        pipeline.cmd("INFO").arg("server");
    }
    pipeline
}

/// Reads the answers to [`questions`].
pub(crate) fn read(answers: &[Value]) -> Health {
    let info = |index: usize| answers.get(index).and_then(text);
    let replication = info(1);
    Health {
        maxmemory_policy: info(2).and_then(|info| field(&info, "maxmemory_policy").map(str::to_owned)),
        full_coverage: answers.get(3).and_then(only_setting).map(|value| value == "yes"),
        replicas: replication.as_deref().map(count_replicas),
        connected: replication.as_deref().map(count_connected),
        is_single: info(3).is_some_and(|info| field(&info, "redis_mode") == Some("standalone")),
    }
}

/// The command that asks about replicas alone. It is sent each second, so it is much smaller than [`questions`].
pub(crate) fn replica_question() -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(1);
    pipeline.cmd("INFO").arg("replication");
    pipeline
}

/// Reads the answer to [`replica_question`]: replicas in step, and all connected ones; `None` when it was refused.
pub(crate) fn read_replicas(answers: &[Value]) -> Option<(u32, u32)> {
    let info = answers.first().and_then(text)?;
    Some((count_replicas(&info), count_connected(&info)))
}

fn count_connected(info: &str) -> u32 {
    field(info, "connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Counts lines like `slave0:ip=127.0.0.1,port=7003,state=online,offset=1330,lag=1`.
fn count_replicas(info: &str) -> u32 {
    let in_step = |line: &&str| {
        let parts = || line.split(',');
        let lag = parts().find_map(|part| part.trim().strip_prefix("lag=")?.parse().ok()).unwrap_or(u32::MAX);
        line.starts_with("slave") && parts().any(|part| part == "state=online") && lag <= LARGEST_LAG
    };
    u32::try_from(info.lines().filter(in_step).count()).unwrap_or(u32::MAX)
}

/// The value in the reply to a `CONFIG GET` of one name, in RESP2 or RESP3.
fn only_setting(reply: &Value) -> Option<String> {
    let value = match reply {
        Value::Map(pairs) => &pairs.first()?.1,
        Value::Array(items) => items.get(1)?,
        _ => return None,
    };
    text(value).map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_redis_says() {
        let replication = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
            slave0:ip=127.0.0.1,port=1,state=online,offset=9,lag=0\r\n\
            slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\n\
            slave2:ip=127.0.0.1,port=3,state=online,offset=9,lag=7\r\n";
        let setting = |text: &str| Value::BulkString(text.into());
        let health = read(&[
            Value::SimpleString("PONG".into()),
            Value::BulkString(replication.into()),
            Value::BulkString(b"# Memory\r\nmaxmemory_policy:allkeys-lru\r\n".to_vec()),
            Value::Map(vec![(setting("cluster-require-full-coverage"), setting("no"))]),
        ]);
        assert_eq!((health.replicas, health.connected), (Some(1), Some(3)));
        assert_eq!(health.maxmemory_policy.as_deref(), Some("allkeys-lru"));
        assert_eq!(health.full_coverage, Some(false));
    }

    #[test]
    fn what_is_forbidden_is_not_known() {
        let denied = redis::parse_redis_value(b"-NOPERM no\r\n").expect("a reply");
        assert_eq!(read(&[denied.clone(), denied.clone(), denied.clone(), denied]), Health::default());
    }
}
