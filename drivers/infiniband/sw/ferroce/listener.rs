// SPDX-License-Identifier: GPL-2.0
//! Reception: one UDP socket for each network namespace that has devices of ours.
//!
//! # Lifetime
//!
//! The socket holds no reference to its namespace, so it must be gone before the namespace is: the
//! last port that leaves closes it, and a port leaves when its network interface is unregistered,
//! which happens when the namespace ends.

use crate::{
    counters::PortCounter,
    crc::FlowCrc,
    port::Port,
    qp::QueuePair, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        rcu,
        Arc,
        ArcBorrow,
        Mutex, //
    }, //
};
use rdma::{
    net::{
        MulticastAddr,
        NetDevice,
        RxPacket,
        UdpPort,
        UdpReceive, //
    },
    sync::RcuMap, //
};
use roce::{
    types::Qpn,
    wire::{
        Packet,
        UDP_PORT, //
    }, //
};

/// Ports of one network namespace, by the index of their network interface.
#[pin_data]
pub(crate) struct Listener {
    #[pin]
    ports: RcuMap<Port>,
    namespace: u64,
}

impl Listener {
    /// Adds a port.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is one for this interface, `ENOMEM`.
    pub(crate) fn insert(&self, ifindex: u32, port: Arc<Port>) -> Result {
        self.ports.insert(ifindex, port)
    }

    /// Removes a port; when this returns, nothing is received for it any more.
    ///
    /// # Context
    ///
    /// Process context, sleeps.
    pub(crate) fn remove(&self, ifindex: u32) {
        let _ = self.ports.remove(ifindex);
    }

    /// The port that a packet belongs to: that of the interface it came in on, or below a VLAN, or
    /// if it went through the loopback interface to an address, that which has the address.
    fn port<'g>(&'g self, rcu: &'g rcu::Guard, packet: &RxPacket) -> Option<ArcBorrow<'g, Port>> {
        let ifindex = if packet.on_loopback() && !packet.ip().is_multicast() {
            packet.owner_ifindex()?
        } else {
            packet.real_ifindex()
        };
        self.ports.get(rcu, ifindex)
    }
}

impl UdpReceive for Listener {
    fn receive(&self, mut packet: RxPacket) {
        let rcu = rcu::read_lock();
        let Some(port) = self.port(&rcu, &packet) else {
            return;
        };
        while let Some(qp) = dispatch(&port, &rcu, &mut packet) {
            match qp.put_aside(packet) {
                Some(others) => packet = others,
                None => return,
            }
        }
    }
}

/// Hands the datagrams of a packet to their QPs. Returns one that has to wait for a page, for which its
/// own of those that are left are to be kept.
// A packet and its headers are large: they are not moved about.
fn dispatch<'g>(
    port: &'g Port,
    rcu: &'g rcu::Guard,
    packet: &mut RxPacket,
) -> Option<ArcBorrow<'g, QueuePair>> {
    let counters = &port.counters;
    if packet.has_options() {
        counters.add(PortCounter::DropIpOptions, 1);
        return None;
    }
    while let Some(bytes) = packet.payloads().next() {
        let mut place = None;
        let parsed = match Packet::parse_into(&mut place, bytes, bytes.len()) {
            Ok(parsed) => parsed,
            Err(error) => {
                counters.unparsed(error);
                packet.skip(1);
                continue;
            }
        };
        let address = packet.ip().group();
        let to_group = parsed.bth.dest_qp == Qpn::MULTICAST;
        if to_group || address.is_some() {
            match address.filter(|_| to_group) {
                Some(address) => copy_to_members(port, rcu, address, packet, bytes, parsed),
                None => counters.add(PortCounter::DropBadAddress, 1),
            }
            packet.skip(1);
            continue;
        }
        let Some(qp) = port.qps.get(rcu, parsed.bth.dest_qp.get()) else {
            counters.add(PortCounter::DropNoQp, 1);
            packet.skip(1);
            continue;
        };
        if qp.receive(packet, parsed) {
            return Some(qp);
        }
        if packet.is_empty() {
            break;
        }
    }
    None
}

/// Hands the first datagram of `packet`, which is for the multicast group `address`, to those who are
/// attached to it. What its headers say is looked at by each of them.
fn copy_to_members(
    port: &Port,
    rcu: &rcu::Guard,
    address: MulticastAddr,
    packet: &RxPacket,
    bytes: &[u8],
    parsed: &Packet,
) {
    let counters = &port.counters;
    let Some(group) = port.groups.get(rcu, address) else {
        counters.add(PortCounter::DropNoGroup, 1);
        return;
    };
    let crc = FlowCrc::of(port, packet);
    if crc.is_some_and(|crc| !crc.of_length(bytes.len()).matches(bytes, packet.first_id())) {
        counters.add(PortCounter::DropBadIcrc, 1);
        return;
    }
    counters.add(PortCounter::ReceivedPackets, 1);
    counters.add(PortCounter::ReceivedBytes, bytes.len() as u64);
    counters.add(PortCounter::ReceivedMulticast, 1);
    for member in group.members(rcu) {
        member.qp.receive_copy(packet, bytes, parsed);
    }
}

struct Socket {
    /// Declared first, dropped first: nothing is received once it is gone.
    _udp: UdpPort<Listener>,
    listener: Arc<Listener>,
    users: usize,
}

/// The sockets of all namespaces.
#[pin_data]
pub(crate) struct Listeners {
    #[pin]
    sockets: Mutex<KVec<Socket>>,
}

impl Listeners {
    /// None so far.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                sockets <- new_mutex!(KVec::new(), "ferroce_listeners"),
            }),
            GFP_KERNEL,
        )
    }

    /// The listener of the namespace of `netdev`, opened if there is none. Each one must be given
    /// back to [`Self::leave`].
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if somebody else has the UDP port there, `ENOMEM`.
    pub(crate) fn join(&self, netdev: &NetDevice) -> Result<Arc<Listener>> {
        let namespace = netdev.net().cookie();
        let mut sockets = self.sockets.lock();
        for socket in sockets.iter_mut() {
            if socket.listener.namespace == namespace {
                socket.users = socket.users.wrapping_add(1);
                return Ok(socket.listener.clone());
            }
        }
        let listener = Arc::pin_init(
            try_pin_init!(Listener {
                ports <- RcuMap::new(4),
                namespace,
            }? Error),
            GFP_KERNEL,
        )?;
        sockets.reserve(1, GFP_KERNEL)?;
        let udp = UdpPort::new(netdev, UDP_PORT, listener.clone())?;
        sockets.push(
            Socket {
                _udp: udp,
                listener: listener.clone(),
                users: 1,
            },
            GFP_KERNEL,
        )?;
        Ok(listener)
    }

    /// Gives a listener back; the last one closes the socket.
    ///
    /// # Context
    ///
    /// Process context, sleeps.
    pub(crate) fn leave(&self, listener: Arc<Listener>) {
        let mut sockets = self.sockets.lock();
        let Some(index) = sockets
            .iter()
            .position(|s| s.listener.namespace == listener.namespace)
        else {
            return;
        };
        let Some(socket) = sockets.get_mut(index) else {
            return;
        };
        socket.users = socket.users.saturating_sub(1);
        if socket.users == 0 {
            let _ = sockets.remove(index);
        }
    }
}
