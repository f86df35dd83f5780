//! Takes TLS off a connection: a task between the client's socket and one end of a pair, whose other end is served
//! as a client of the daemon's own socket is.
//!
//! So bounds on memory, on stalled clients and on half requests apply to what the client says and hears, and no line
//! of a check's way knows TLS. The price is one more copy and one more wake-up for each turn of a conversation.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

/// Longest time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Bytes that are carried at once, each way.
const PIECE: usize = 16 << 10;

/// The end that is served, and the task that carries bytes between it and the client; the task must be run.
pub(super) fn split(
    client: TcpStream,
    config: Arc<rustls::ServerConfig>,
) -> io::Result<(UnixStream, impl Future<Output = ()> + Send + 'static)> {
    let (served, mut inner) = UnixStream::pair()?;
    let carrying = async move {
        let handshake = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client));
        let mut outer = match handshake.await {
            Ok(Ok(outer)) => outer,
            Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => return tracing::debug!("a TLS handshake was not completed in time"),
        };
        match copy_bidirectional_with_sizes(&mut outer, &mut inner, PIECE, PIECE).await {
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection with TLS ended badly");
                let _ = outer.shutdown().await;
            }
        }
    };
    Ok((served, carrying))
}
