//! The QUIC endpoint: one UDP port for dialling and accepting, and the bounds of every connection.
//!
//! The port is the same for both, so that peers can dial a node at the address that its packets come from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, IdleTimeout, Runtime, ServerConfig, TransportConfig, VarInt,
};
use quinn_proto::HashedConnectionIdGenerator;

use super::congestion::Floored;
use super::identity::EndpointKeys;
use super::members::Owning;
use super::timers::Timers;
use super::tls::Credentials;

/// Streams that a peer may have open at once; each carries one frame.
const STREAMS: u32 = 16;
/// Streams that a peer may have open to ask on: one, and the one before it, which has yet to end.
const ASK_STREAMS: u32 = 2;
/// Streams that a peer may have open to look by.
const LOOK_STREAMS: u32 = 2;
/// Flow-control window of a stream: a whole frame and some more.
const STREAM_WINDOW: u32 = 128 << 10;
/// Flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Silence after which a connection is closed.
const IDLE_MS: u32 = 10_000;
/// Silence after which a peer is sent a keep-alive packet.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Handshakes that may wait to be accepted.
const HANDSHAKES_WAITING: usize = 256;
/// Bytes that may be buffered for one waiting handshake, and for all of them.
const WAITING_BYTES: (u64, u64) = (16 << 10, 1 << 20);

/// A socket of the operating system, bound to `listen`.
///
/// # Errors
/// It cannot be bound, or cannot be made non-blocking.
pub(crate) fn bind(listen: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Timers.wrap_udp_socket(UdpSocket::bind(listen)?)
}

/// An endpoint on a bound socket.
///
/// # Errors
/// The socket does not know its address.
pub(crate) fn endpoint(socket: Arc<dyn AsyncUdpSocket>, keys: EndpointKeys) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::new(Arc::new(keys.reset));
    // The reset key is not enough: a restarted node must also recognize its old connection ids as its own.
    let ids = keys.connection_ids;
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(Timers))
}

/// The settings with which connections are accepted. `owning` decides whether peers may open streams for asks.
pub(crate) fn server_config(credentials: &Credentials, owning: Owning) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(credentials.server.clone());
    config.transport_config(transport(owning)).migration(false);
    config.max_incoming(HANDSHAKES_WAITING);
    config.incoming_buffer_size(WAITING_BYTES.0).incoming_buffer_size_total(WAITING_BYTES.1);
    config
}

/// The settings with which peers are dialled.
pub(crate) fn client_config(credentials: &Credentials, owning: Owning) -> ClientConfig {
    let mut config = ClientConfig::new(credentials.client.clone());
    config.transport_config(transport(owning));
    config
}

fn transport(owning: Owning) -> Arc<TransportConfig> {
    let asks = if owning == Owning::Never { 0 } else { ASK_STREAMS };
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(asks + LOOK_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(u64::from(CONNECTION_WINDOW))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .congestion_controller_factory(Arc::new(Floored::default()))
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// The address at which peers reach a node that is bound to `bound`: the configured one, or else the one it listens
/// on, or else that of the interface that leads to `towards`. Port 0 stands for the bound port.
pub(crate) fn reachable(
    bound: SocketAddr,
    advertise: Option<SocketAddr>,
    towards: &[SocketAddr],
) -> Option<SocketAddr> {
    let address = advertise.unwrap_or(bound);
    let port = if address.port() == 0 { bound.port() } else { address.port() };
    if !address.ip().is_unspecified() {
        return Some(SocketAddr::new(address.ip(), port));
    }
    // Addresses that are reserved for documentation: only the routing table is consulted, and nothing is sent.
    let anywhere: [SocketAddr; 2] =
        [(Ipv4Addr::new(192, 0, 2, 1), 9).into(), (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into()];
    towards.iter().chain(&anywhere).find_map(|to| source_towards(*to)).map(|ip| SocketAddr::new(ip, port))
}

/// Whether `to` is an address of this machine on which `bound` listens. An address behind NAT is not recognized.
pub(crate) fn is_own(bound: SocketAddr, to: SocketAddr) -> bool {
    let listens = bound.ip().is_unspecified() || bound.ip() == to.ip();
    // Packets to an address of this machine are sent from that address.
    bound.port() == to.port() && listens && source_towards(to) == Some(to.ip())
}

/// The source address of packets to `to`.
fn source_towards(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_node_is_reached_where_it_says_with_the_port_it_bound() {
        let bound = address("0.0.0.0:7946");
        assert_eq!(reachable(bound, Some(address("10.0.0.17:0")), &[]), Some(address("10.0.0.17:7946")));
        assert_eq!(reachable(address("127.0.0.1:5"), None, &[]), Some(address("127.0.0.1:5")));
    }

    #[test]
    fn a_node_knows_its_own_addresses() {
        let bound = address("0.0.0.0:7946");
        assert!(is_own(bound, address("127.0.0.1:7946")));
        assert!(!is_own(bound, address("127.0.0.1:7947")) && !is_own(bound, address("192.0.2.1:7946")));
        assert!(!is_own(address("127.0.0.1:7946"), address("127.0.0.2:7946")));
    }

    #[test]
    fn a_node_that_listens_everywhere_asks_the_routing_table() {
        let towards = [address("127.0.0.1:7946")];
        assert_eq!(reachable(address("0.0.0.0:7946"), None, &towards), Some(address("127.0.0.1:7946")));
    }
}
