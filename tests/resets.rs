//! When a window ends is told alike by all nodes that share a store, and does not wobble.

use crate::support;

use std::collections::BTreeMap;

use rationd::client::Client;
use support::process::Daemon;
use support::server::Server;

const REPLIES: usize = 1_000;
const LIMIT: u64 = 300;
/// Of `aligned`.
const PERIOD_MS: u64 = 30 * 86_400_000;

/// Policies whose window is the whole test's; the store is waited for longer than a busy machine takes.
fn config(store: &Server) -> String {
    format!(
        "[store]\nurl = {:?}\ntimeout = \"2s\"\n\
         [policy.aligned]\nlimits = [\"{LIMIT}/30d fixed\"]\n\
         [policy.first]\nlimits = [\"{LIMIT}/1d fixed from-first\"]\n",
        store.url()
    )
}

/// Asks in turn, costs and peeks mixed, and counts the replies by the end of their window; and who was admitted.
fn ask(clients: &mut [Client], policy: &str, key: &str, replies: usize) -> (BTreeMap<u64, usize>, u64) {
    let (mut ends, mut admitted) = (BTreeMap::new(), 0);
    for index in 0..replies {
        let count = clients.len();
        let client = &mut clients[index * 7 % count];
        // The first one is charged: a window from the first request begins with it.
        let cost = (index as u64 + 1) % 3;
        let decision = client.check(policy, key, cost).expect("an answer");
        *ends.entry(decision.reset_at_ms).or_insert(0) += 1;
        admitted += if decision.is_allowed() { cost } else { 0 };
    }
    (ends, admitted)
}

fn connected(daemons: &[Daemon]) -> Vec<Client> {
    daemons.iter().map(|daemon| Client::connect(daemon.socket()).expect("it listens")).collect()
}

#[test]
fn a_thousand_replies_of_three_nodes_tell_one_end_of_a_window() {
    let store = Server::plain();
    let mut daemons = [(); 3].map(|()| Daemon::start(&config(&store)));
    for policy in ["aligned", "first"] {
        // Two windows of thirty days may meet in the middle of it, but not twice.
        let told = (0..2).map(|run| {
            let key = format!("key:{run}");
            let (mut ends, mut admitted) = ask(&mut connected(&daemons), policy, &key, REPLIES / 2);
            // One that knows nothing yet tells the same.
            daemons[1].restart();
            let (later, more) = ask(&mut connected(&daemons), policy, &key, REPLIES / 2);
            for (end, count) in later {
                *ends.entry(end).or_insert(0) += count;
            }
            admitted += more;
            (ends, admitted)
        });
        let told: Vec<_> = told.collect();
        let (ends, admitted) = told.iter().find(|(ends, _)| ends.len() == 1).unwrap_or_else(|| panic!("{told:?}"));
        let (end, count) = ends.first_key_value().expect("there is one");
        assert_eq!(*count, REPLIES);
        assert!((1..=LIMIT).contains(admitted), "some were admitted and some were not: {admitted}");
        if policy == "aligned" {
            assert_eq!(end % PERIOD_MS, 0, "windows are aligned to the Unix epoch");
        }
    }
}
