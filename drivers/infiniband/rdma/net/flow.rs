// SPDX-License-Identifier: GPL-2.0

//! What all packets of a connection have in common: the route, and the headers.
//!
//! C headers: [`include/net/ip.h`](srctree/include/net/ip.h),
//! [`include/net/ipv6.h`](srctree/include/net/ipv6.h)
//!
//! Would become `rust/kernel/net/flow.rs`.

use crate::{
    bindings, //
    crc32,
    net::{
        ip_header::{
            IPV4_LEN,
            IPV6_LEN,
            UDP_LEN, //
        },
        route::{
            Dst,
            Route, //
        },
        train::TxTrain,
        tx::{
            Headers,
            TxError,
            TxPacket, //
        },
        IpHeader,
        NetDevice, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};

/// The longest IP and UDP header, in bytes.
const MAX_HEADER: usize = IPV6_LEN + UDP_LEN;

/// Where the packets of a flow come from and go to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey {
    /// IPv4; otherwise IPv6.
    pub v4: bool,
    /// Source address; an IPv4 address in the last four bytes.
    pub saddr: [u8; 16],
    /// Destination address; an IPv4 address in the last four bytes.
    pub daddr: [u8; 16],
    /// UDP source port.
    pub sport: u16,
    /// UDP destination port.
    pub dport: u16,
    /// IPv4 TOS or IPv6 traffic class: the DSCP in the upper six bits.
    pub tclass: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label (20 bits).
    pub flow_label: u32,
    /// Index of the device to send by, for instance a VLAN device; 0 if the routing table decides.
    /// A destination that is an address of this host is reached through loopback whatever this
    /// says.
    pub oif: u32,
}

impl FlowKey {
    fn v4_of(address: &[u8; 16]) -> [u8; 4] {
        [address[12], address[13], address[14], address[15]]
    }

    fn v6_of(address: &[u8; 16]) -> bindings::in6_addr {
        let mut to: bindings::in6_addr = pin_init::zeroed();
        to.in6_u.u6_addr8 = *address;
        to
    }

    /// The source address, in network byte order.
    pub(super) fn saddr_v4(&self) -> u32 {
        u32::from_ne_bytes(Self::v4_of(&self.saddr))
    }

    /// The destination address, in network byte order.
    pub(super) fn daddr_v4(&self) -> u32 {
        u32::from_ne_bytes(Self::v4_of(&self.daddr))
    }

    pub(super) fn saddr_v6(&self) -> bindings::in6_addr {
        Self::v6_of(&self.saddr)
    }

    pub(super) fn daddr_v6(&self) -> bindings::in6_addr {
        Self::v6_of(&self.daddr)
    }

    /// Whether the destination is in fe80::/10.
    pub(super) fn is_link_local(&self) -> bool {
        self.daddr[0] == 0xfe && self.daddr[1] & 0xc0 == 0x80
    }

    pub(super) fn oif_raw(&self) -> i32 {
        i32::try_from(self.oif).unwrap_or(0)
    }

    /// The DSCP as the routing table has it: the TOS without its ECN bits.
    pub(super) fn dscp(&self) -> u8 {
        self.tclass & 0xfc
    }

    /// Traffic class and flow label, as in the first word of an IPv6 header.
    pub(super) fn flowinfo(&self) -> u32 {
        u32::from(self.tclass) << 20 | self.flow_label & 0xf_ffff
    }

    /// The headers of a packet, all but the lengths and the checksums.
    fn template(&self) -> [u8; MAX_HEADER] {
        let mut header = [0; MAX_HEADER];
        let [sport0, sport1] = self.sport.to_be_bytes();
        let [dport0, dport1] = self.dport.to_be_bytes();
        let udp = [sport0, sport1, dport0, dport1, 0, 0, 0, 0];
        const UDP: u8 = bindings::IPPROTO_UDP as u8;
        if self.v4 {
            // Version and length; TOS; length (2); identification (2); "don't fragment" and offset
            // (2); TTL; protocol; checksum (2).
            let [first, tos] = [0x45, self.tclass];
            let ip = [first, tos, 0, 0, 0, 0, 0x40, 0, self.hop_limit, UDP, 0, 0];
            let addresses = [Self::v4_of(&self.saddr), Self::v4_of(&self.daddr)];
            Self::join(&mut header, [&ip, addresses.as_flattened(), &udp]);
        } else {
            // Version, traffic class and flow label (4); length (2); next header; hop limit.
            let [a, b, c, d] = (6 << 28 | self.flowinfo()).to_be_bytes();
            let ip = [a, b, c, d, 0, 0, UDP, self.hop_limit];
            let addresses = [self.saddr, self.daddr];
            Self::join(&mut header, [&ip, addresses.as_flattened(), &udp]);
        }
        header
    }

    /// Writes `parts` one after the other.
    fn join(to: &mut [u8], parts: [&[u8]; 3]) {
        let from = parts.into_iter().flatten();
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// A flow of UDP datagrams, with its route.
///
/// The route is looked up when the first packet is built, kept, and looked up again when the
/// routing table or an address has changed. The neighbour is looked up by the IP stack for each
/// packet.
///
/// A flow keeps its namespace from being freed, see [`crate::net`].
pub struct Flow {
    route: Arc<Route>,
    key: FlowKey,
    template: [u8; MAX_HEADER],
    /// What the route's validity is checked against.
    cookie: u32,
    /// Bytes to leave in front of the IP header, for the route.
    headroom: u32,
    /// Spreads flows over queues, without anybody having to look into the packets.
    hash: u32,
    priority: u32,
    /// The route leads to the loopback device.
    loopback: bool,
    /// Then: the device of this host that has the destination address, if it is known.
    owner: Option<u32>,
}

impl Flow {
    /// Prepares a flow in the namespace of `dev`. Whether there is a route will show when a packet
    /// is built.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: `dev` is going away.
    /// - `ENOMEM`.
    pub fn new(dev: &NetDevice, key: FlowKey) -> Result<Self> {
        let route = Arc::new(Route::new(dev, key.v4)?, GFP_ATOMIC)?;
        let template = key.template();
        // SAFETY: `rt_tos2priority` (include/net/route.h) takes any TOS.
        let priority = unsafe { bindings::rt_tos2priority(key.tclass) };
        Ok(Self {
            route,
            key,
            hash: crc32::update(!0, &template),
            template,
            cookie: 0,
            headroom: 0,
            loopback: false,
            owner: None,
            priority: u32::from(priority),
        })
    }

    /// What the flow was made from.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Whether the packet that was built last goes through the loopback device of its namespace.
    #[inline]
    pub fn on_loopback(&self) -> bool {
        self.loopback
    }

    /// Whether the destination is an address of the device `ifindex` of this host, to which packets go
    /// through loopback, as far as the route that was looked up last says; that is looked up again if it
    /// has become stale.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    #[inline]
    pub fn leads_to(&mut self, ifindex: u32) -> bool {
        if self.owner != Some(ifindex) {
            return false;
        }
        let guard = rcu::Guard::new();
        self.route(&guard).is_ok() && self.owner == Some(ifindex)
    }

    /// Looks the route up now, if there is none yet.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn look_ahead(&mut self) {
        // Without a route, each packet looks for one.
        let _ = self.route(&rcu::Guard::new());
    }

    /// The largest UDP payload that the route takes at the moment, in bytes.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    ///
    /// # Errors
    ///
    /// [`TxError::NoRoute`].
    pub fn max_payload(&mut self) -> Result<usize, TxError> {
        let guard = rcu::Guard::new();
        let mtu = self.route(&guard)?.mtu().min(u32::from(u16::MAX));
        Ok((mtu as usize).saturating_sub(self.header_len()))
    }

    /// Builds a packet with room for a payload of `udp_payload_len` bytes, which the caller fills
    /// in.
    ///
    /// IPv4 packets have "don't fragment" set and identification 0. There is no UDP checksum.
    /// The priority is the one that the IP stack derives from the TOS (also for IPv6).
    ///
    /// # Context
    ///
    /// Any but hardirq, locks may be held.
    ///
    /// # Errors
    ///
    /// - [`TxError::NoRoute`].
    /// - [`TxError::NoMemory`].
    /// - [`TxError::Other`] with `-EMSGSIZE`: larger than the MTU of the route.
    #[inline]
    pub fn build(&mut self, udp_payload_len: usize) -> Result<TxPacket, TxError> {
        let guard = rcu::Guard::new();
        let dst = self.route(&guard)?;
        let headers = self
            .headers(udp_payload_len, dst.mtu())
            .ok_or(TxError::TOO_LONG)?;
        TxPacket::new(
            &self.route,
            &headers,
            self.headroom,
            self.hash,
            self.priority,
        )
    }

    /// Starts a train of datagrams with a payload of `size` bytes each; `None` if the way there takes
    /// no trains, or none with two of these.
    ///
    /// # Context
    ///
    /// Any but hardirq, locks may be held.
    ///
    /// # Errors
    ///
    /// As [`Self::build`].
    #[inline]
    pub fn train(&mut self, size: usize) -> Result<Option<TxTrain>, TxError> {
        let guard = rcu::Guard::new();
        let dst = self.route(&guard)?;
        let limit = dst.train_limit();
        let two = size.saturating_mul(2).saturating_add(self.header_len());
        if self.headers(size, dst.mtu()).is_none() || two > limit.bytes as usize {
            return Ok(None);
        }
        let headers = self.headers(0, dst.mtu()).ok_or(TxError::TOO_LONG)?;
        let packet = TxPacket::new(
            &self.route,
            &headers,
            self.headroom,
            self.hash,
            self.priority,
        )?;
        Ok(Some(TxTrain::new(packet, size as u32, limit)))
    }

    /// The IP header and the UDP header of all packets, but for lengths and checksums.
    pub fn headers_without_lengths(&self) -> (IpHeader<'_>, &[u8; UDP_LEN]) {
        const NONE: (IpHeader<'_>, &[u8; UDP_LEN]) = (IpHeader::V4(&[0; IPV4_LEN]), &[0; UDP_LEN]);
        if self.key.v4 {
            let Some((ip, rest)) = self.template.split_first_chunk() else {
                return NONE;
            };
            rest.first_chunk()
                .map_or(NONE, |udp| (IpHeader::V4(ip), udp))
        } else {
            let Some((ip, rest)) = self.template.split_first_chunk() else {
                return NONE;
            };
            rest.first_chunk()
                .map_or(NONE, |udp| (IpHeader::V6(ip), udp))
        }
    }

    #[inline]
    fn header_len(&self) -> usize {
        if self.key.v4 {
            IPV4_LEN + UDP_LEN
        } else {
            IPV6_LEN + UDP_LEN
        }
    }

    /// The headers of a packet of that size, None if the MTU is smaller.
    #[inline]
    fn headers(&self, udp_payload_len: usize, mtu: u32) -> Option<Headers> {
        let len = self.header_len();
        let total = u16::try_from(udp_payload_len.checked_add(len)?).ok()?;
        if u32::from(total) > mtu {
            return None;
        }
        let mut bytes = self.template;
        if self.key.v4 {
            [bytes[2], bytes[3]] = total.to_be_bytes();
            [bytes[24], bytes[25]] = total.wrapping_sub(IPV4_LEN as u16).to_be_bytes();
        } else {
            let udp_len = total.wrapping_sub(IPV6_LEN as u16).to_be_bytes();
            [bytes[4], bytes[5]] = udp_len;
            [bytes[44], bytes[45]] = udp_len;
        }
        Some(Headers { bytes, total })
    }

    /// The route, looked up if it is not there or has become stale.
    #[inline]
    fn route<'g>(&mut self, guard: &'g rcu::Guard) -> Result<Dst<'g>, TxError> {
        match self.route.get(guard) {
            Some(dst) if dst.is_valid(self.cookie) => Ok(dst),
            _ => self.look_up(guard),
        }
    }

    #[cold]
    fn look_up<'g>(&mut self, guard: &'g rcu::Guard) -> Result<Dst<'g>, TxError> {
        let dst = self.route.look_up(&self.key, guard)?;
        self.cookie = dst.cookie(self.key.v4);
        self.headroom = dst.headroom();
        self.loopback = dst.is_loopback();
        self.owner = dst.owner_ifindex(self.key.v4);
        Ok(dst)
    }
}
