//! A node's way to the store, which can be shut: a Unix socket of the node's own, which forwards to the store's socket.
//!
//! When it is shut, it ends all connections and accepts none, so that the store is away for this node.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The gate of one node.
#[derive(Debug)]
pub(super) struct Gate {
    open: watch::Sender<bool>,
    accepting: AbortHandle,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(false);
    }
}

impl Gate {
    /// An open gate at `path` that leads to `store`; it runs on `runtime`.
    pub(super) fn start(runtime: &Handle, path: &Path, store: PathBuf) -> io::Result<Self> {
        let _inside = runtime.enter();
        let listener = UnixListener::bind(path)?;
        let (open, is_open) = watch::channel(true);
        let store: Arc<Path> = store.into();
        let accepting = runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *is_open.borrow() {
                    tokio::spawn(carry(client, store.clone(), is_open.clone()));
                }
            }
        });
        Ok(Self { open, accepting: accepting.abort_handle() })
    }

    /// Opens or shuts it.
    pub(super) fn set(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// Whether it lets calls through.
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }
}

async fn carry(mut client: UnixStream, store: Arc<Path>, mut is_open: watch::Receiver<bool>) {
    let Ok(mut server) = UnixStream::connect(&store).await else { return };
    tokio::select! {
        // Whether this ends well or with an error, both sides see their connection closed.
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = is_open.wait_for(|open| !open) => {}
    }
}
