//! Takes TLS off a connection: a task between the client's socket and one end of a pair, whose other end is served
//! as a client of the daemon's own socket is.
//!
//! So the bounds on memory, stalled clients and incomplete requests apply to the decrypted bytes, and no code on the
//! path of a check knows TLS. The price is one more copy and one more wake-up for each turn of a conversation.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

/// Longest time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Longest time in which a client that has bytes to read reads none. The served end cannot tell, because the bytes have
/// left it.
const STALL: Duration = Duration::from_secs(60);

/// Bytes that are carried at once, each way.
const PIECE: usize = 16 << 10;

/// The end that is served, and the task that carries bytes between it and the client; the task must be run.
pub(super) fn split(
    client: TcpStream,
    config: Arc<rustls::ServerConfig>,
) -> io::Result<(UnixStream, impl Future<Output = ()> + Send + 'static)> {
    let (served, inner) = UnixStream::pair()?;
    let carrying = async move {
        let handshake = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client));
        let outer = match handshake.await {
            Ok(Ok(outer)) => outer,
            Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => return tracing::debug!("a TLS handshake was not completed in time"),
        };
        let (from_client, to_client) = tokio::io::split(outer);
        let (from_served, to_served) = inner.into_split();
        let asking = async {
            if carry(from_client, to_served).await.is_err() {
                return;
            }
            // The client sends nothing more, but may still read.
            std::future::pending::<()>().await;
        };
        // The daemon closes a connection whether or not its client does, so the last of its bytes ends it.
        tokio::select! {
            () = asking => {}
            _ = carry(from_served, to_client) => {}
        }
    };
    Ok((served, carrying))
}

/// Carries bytes until the reading side ends, and then closes the other side for writing.
///
/// # Errors
/// One side is broken, or takes nothing for [`STALL`].
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let len = from.read(&mut piece).await?;
        let taken = async {
            if len == 0 {
                return to.shutdown().await;
            }
            to.write_all(&piece[..len]).await?;
            to.flush().await
        };
        tokio::time::timeout(STALL, taken).await.map_err(|_| io::ErrorKind::TimedOut)??;
        if len == 0 {
            return Ok(());
        }
    }
}
