//! What the daemon cannot live without takes it with it when it panics; what it can live without does not.
//!
//! Each fault is injected into a daemon in a process of its own: this test once more, with the fault's name.

#![cfg(debug_assertions)]

use crate::support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use rationd::core::call::{Call, Grant, StoreError};
use rationd::serve::vital::{fault, on_abort};
use rationd::serve::{Backend, RemoteStore};
use rationd::store::turns::Asker;
use support::daemon::{TestDaemon, until};

const FAULT: &str = "RATIOND_TEST_FAULT";
const LAST_WORDS: &str = "last words";
const SIGABRT: i32 = 6;

/// Panics at a call, at once or after it had to wait.
struct Breaks {
    at_once: bool,
}

impl RemoteStore for Breaks {
    fn call<'a>(
        &'a self,
        _: Asker,
        _: &'a Call,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        Box::pin(async move {
            if !self.at_once {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("a bug in the store");
        })
    }
}

fn with_fault(name: &str) -> Output {
    let this = std::env::current_exe().expect("it runs");
    let mut command = Command::new(this);
    command.args(["--exact", "vital::breaks_when_it_is_told_to", "--nocapture", "--ignored"]).env(FAULT, name);
    command.output().expect("it is there")
}

#[test]
#[ignore = "the other tests run it in a process of its own"]
fn breaks_when_it_is_told_to() {
    let Ok(name) = std::env::var(FAULT) else { return };
    on_abort(|| eprintln!("{LAST_WORDS}"));
    let store = match &*name {
        "a store call" => Backend::Remote(Arc::new(Breaks { at_once: true })),
        "a store call that waits" => Backend::Remote(Arc::new(Breaks { at_once: false })),
        "the way to the store" => Backend::Remote(Arc::new(Breaks { at_once: true })),
        _ => Backend::Memory,
    };
    let reload = |_| panic!("a bug in a reload");
    let daemon = TestDaemon::with(|options| {
        options.store = store;
        options.reload = Some(Arc::new(reload));
    });
    let mut client = daemon.client();
    if name.starts_with("a store call") {
        client.ask("RATION.CHECK api user:1");
    } else if name == "a command" {
        let answer = client.ask("RATION.RELOAD");
        assert_eq!(answer, "-ERR the answer could not be made: see the daemon's log");
        assert_eq!(client.ask("PING"), "PONG");
        return;
    } else {
        fault::inject(&name);
    }
    until("it has aborted", || false);
}

#[test]
fn a_panic_in_what_is_vital_ends_the_process() {
    let faults = ["the alarm", "the way to the store", "data thread 0", "a store call", "a store call that waits"];
    let outputs = std::thread::scope(|scope| {
        let running: Vec<_> = faults.map(|name| scope.spawn(move || (name, with_fault(name)))).into_iter().collect();
        running.into_iter().map(|one| one.join().expect("it ends")).collect::<Vec<_>>()
    });
    for (name, output) in outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(SIGABRT), "{name}: {:?}\n{said}", output.status);
        assert!(said.contains(LAST_WORDS), "{name}: {said}");
    }
}

#[test]
fn a_panic_in_a_command_is_an_error_to_its_client_alone() {
    let output = with_fault("a command");
    assert!(output.status.success(), "{output:?}");
}

/// A data thread that hangs gives no sign of life.
#[test]
fn livez_knows_of_a_loop_that_has_ended_or_hangs() {
    let daemon = TestDaemon::start();
    let state = daemon.daemon().state().clone();
    let now = state.node.clock.now();
    assert_eq!(state.vitals.still(now), None);
    // Nothing has moved in a far future.
    let later = rationd::core::time::Instant(now.0 + 60_000_000);
    let told = state.vitals.still(later).expect("all of it stands still then");
    assert!(told.contains("has not moved for 6"), "{told}");
}
