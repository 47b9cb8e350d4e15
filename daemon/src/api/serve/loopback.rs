//! Whose a connection over loopback is: the kernel knows the user at its other end, as it does on a Unix socket, but says
//! so only in its table of connections (proc(5), `/proc/net/tcp`).
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

/// `TCP_ESTABLISHED` (include/net/tcp_states.h). In any other state the user may be shown as 0, which is nobody's.
const ESTABLISHED: &str = "01";
/// Bytes of the table that are read: some 30,000 connections. Beyond it nobody is told apart, and a token is asked for.
const TABLE_MAX: usize = 4 << 20;

/// The user at the other end, if this machine has it. Read once, when the connection comes.
pub(super) fn user_of(stream: &TcpStream, peer: SocketAddr) -> Option<u32> {
    let ours = stream.local_addr().ok()?;
    if !peer.ip().to_canonical().is_loopback() {
        return None;
    }
    let table = match peer {
        SocketAddr::V4(_) => "/proc/net/tcp",
        SocketAddr::V6(_) => "/proc/net/tcp6",
    };
    let mut text = String::new();
    let file = std::fs::File::open(table).ok()?;
    let mut some = std::io::Read::take(file, TABLE_MAX as u64);
    std::io::Read::read_to_string(&mut some, &mut text).ok()?;
    find(&text, peer, ours)
}

/// The user of the connection from `theirs` to `ours`: the row of its other end.
fn find(table: &str, theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let (theirs, ours) = (shown(theirs), shown(ours));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        if local != theirs || remote != ours || state != ESTABLISHED {
            return None;
        }
        // tx:rx queues, timer, retransmits, uid, timeout, inode.
        let uid = fields.nth(3)?.parse().ok()?;
        // A socket that its process has given up has no inode, and shows user 0.
        let inode: u64 = fields.nth(1)?.parse().ok()?;
        (inode != 0).then_some(uid)
    })
}

/// An address as the table shows it: words of the address in the machine's order, in hexadecimal.
fn shown(address: SocketAddr) -> String {
    let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
    let ip = match address.ip() {
        IpAddr::V4(ip) => word(ip.octets()),
        IpAddr::V6(ip) => words(ip).map(word).concat(),
    };
    format!("{ip}:{:04X}", address.port())
}

fn words(ip: Ipv6Addr) -> [[u8; 4]; 4] {
    let o = ip.octets();
    [0, 4, 8, 12].map(|i| [o[i], o[i + 1], o[i + 2], o[i + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_user_of_an_own_connection_is_known() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = tokio::net::TcpListener::bind(listen).await else {
                continue; // a machine without IPv6
            };
            let client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let (server, peer) = listener.accept().await.unwrap();
            let own = nix::unistd::geteuid().as_raw();
            assert_eq!(user_of(&server, peer), Some(own), "{listen}");
            // Nobody's any more: never root's.
            drop(client);
            assert_eq!(user_of(&server, peer), None, "{listen}");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn only_an_established_end_with_an_owner_says_who_it_is() {
        let (theirs, ours) = (
            "127.0.0.1:40000".parse().unwrap(),
            "127.0.0.1:7420".parse().unwrap(),
        );
        let row = |state: &str, uid: u32, inode: u64| {
            format!(
                "  sl  local_address\n   0: 0100007F:1CFC 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  4242 \
                 0 77\n   1: 0100007F:9C40 0100007F:1CFC {state} 00000000:00000000 00:00000000 00000000  {uid} 0 \
                 {inode} 1 0 20 4 0 10 -1\n"
            )
        };
        assert_eq!(find(&row("01", 1000, 88), theirs, ours), Some(1000));
        assert_eq!(find(&row("05", 1000, 88), theirs, ours), None, "closing");
        assert_eq!(find(&row("01", 0, 0), theirs, ours), None, "given up");
        assert_eq!(find("", theirs, ours), None);
    }
}
