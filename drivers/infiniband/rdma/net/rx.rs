// SPDX-License-Identifier: GPL-2.0

//! Datagrams that came in: one, or a train of them.
//!
//! C header: [`include/linux/skbuff.h`](srctree/include/linux/skbuff.h)
//!
//! Would become `rust/kernel/net/skbuff/rx.rs`.

use crate::{
    bindings,
    net::{
        ip_header::{
            IpHeader,
            IPV4_LEN,
            IPV6_LEN,
            UDP_LEN, //
        },
        NetDevice, //
    },
};
use core::{
    ptr::NonNull,
    slice, //
};

/// Length of an Ethernet header without a VLAN tag, in bytes.
const ETHERNET_LEN: usize = 14;

/// A UDP datagram, as it was received: owned, cut to its UDP length. Or a train of datagrams of one
/// flow, all but the last of the same size (see [`super::train`]), with the headers of the first but
/// for the lengths.
///
/// It may be kept and taken to another context: it holds no reference on a device, a route, a
/// socket or a namespace.
///
/// # Invariants
///
/// - `skb` is owned by this value, and nobody moves or writes its data.
/// - `ip` points to the 20 or (`!v4`) 40 bytes of an IP header, `udp` to the 8 bytes of a UDP
///   header and the `linear` bytes of payload behind it, `mac` to the six bytes of an address, all of
///   them within the linear data of `skb`.
/// - No datagram lies across two pieces of the payload, which are these `linear` bytes and the
///   fragments of `skb`: each but the last is a multiple of `segment` long, and none is a user's page.
pub struct RxPacket {
    skb: NonNull<bindings::sk_buff>,
    ip: NonNull<u8>,
    udp: NonNull<u8>,
    mac: Option<NonNull<u8>>,
    linear: usize,
    segment: usize,
    skipped: usize,
    /// Datagrams that are left.
    limit: usize,
    ifindex: u32,
    real_ifindex: u32,
    owner_ifindex: Option<u32>,
    vlan_id: Option<u16>,
    v4: bool,
    options: bool,
    loopback: bool,
}

// SAFETY: An skb without a device, a route and a socket is not bound to the CPU or thread that
// received it.
unsafe impl Send for RxPacket {}

// SAFETY: Shared references only allow to read what nobody writes.
unsafe impl Sync for RxPacket {}

impl RxPacket {
    /// Takes an skb as `encap_rcv` gets it. A malformed one, and one for which there is no memory,
    /// is freed.
    ///
    /// # Safety
    ///
    /// - `skb` must be owned by the caller, who gives it away, and come from
    ///   `udp_queue_rcv_one_skb` (net/ipv4/udp.c, `V4`) or `udpv6_queue_rcv_one_skb`
    ///   (net/ipv6/udp.c): data at the UDP header, the network header set and before it, `dev` set.
    /// - The RCU read side lock must be held.
    pub(super) unsafe fn new<const V4: bool>(skb: *mut bindings::sk_buff) -> Option<Self> {
        let owned = OwnedSkb(NonNull::new(skb)?);

        // SAFETY: The skb is valid.
        let len = usize::try_from(unsafe { (*skb).len }).ok()?;
        // SAFETY: The skb is valid, with its data at the UDP header.
        let segment = match unsafe { bindings::skb_udp_segment_size(skb) } {
            0 => len.checked_sub(UDP_LEN)?.max(1),
            size => size as usize,
        };
        // SAFETY: As above.
        if !unsafe { bindings::skb_udp_is_cut(skb, segment as u32) } {
            // SAFETY: The skb is valid and ours.
            if unsafe { bindings::skb_linearize(skb) } != 0 {
                return None;
            }
        }
        // SAFETY: The skb is valid.
        let linear = usize::try_from(unsafe { bindings::skb_headlen(skb) }).ok()?;
        let linear = linear.checked_sub(UDP_LEN)?;
        // SAFETY: As above.
        let udp = NonNull::new(unsafe { (*skb).data })?;
        // SAFETY: The network header was set by the IP layer.
        let ip = NonNull::new(unsafe { bindings::skb_network_header(skb) })?;
        let ip_len = (udp.as_ptr() as usize).checked_sub(ip.as_ptr() as usize)?;
        let fixed_len = if V4 { IPV4_LEN } else { IPV6_LEN };
        if ip_len < fixed_len {
            return None;
        }
        // SAFETY: There are at least `UDP_LEN` bytes at `udp`, checked above. The array has no
        // alignment.
        let header = unsafe { udp.cast::<[u8; UDP_LEN]>().as_ref() };
        // UDP has trimmed the packet to this length, but for an IPv6 jumbogram, whose length field
        // is 0.
        if usize::from(u16::from_be_bytes([header[4], header[5]])) != len {
            return None;
        }

        // SAFETY: The skb is valid.
        let dev = unsafe { bindings::skb_dev(skb) };
        // SAFETY: `dev` is valid for as long as the RCU read side lock is held (net/core/dev.c:
        // `__netif_receive_skb_core`).
        let dev = unsafe { NetDevice::from_raw(NonNull::new(dev)?.as_ptr().cast()) };
        let ifindex = dev.ifindex();
        let vlan_id = dev.vlan_id();
        let loopback = dev.is_loopback();
        // SAFETY: The skb is valid.
        let has_mac = unsafe { bindings::skb_mac_header_was_set(skb) };
        let mac = if has_mac && dev.addr_len() == 6 && !loopback {
            // SAFETY: The MAC header was set, checked above.
            let mac = unsafe { bindings::skb_mac_header(skb) };
            let distance = (ip.as_ptr() as usize).checked_sub(mac as usize);
            // The source address is the second of the Ethernet header, which is before the IP
            // header or not there at all.
            NonNull::new(mac.wrapping_add(6)).filter(|_| distance >= Some(ETHERNET_LEN))
        } else {
            None
        };
        let owner_ifindex = if loopback {
            // SAFETY: The skb is valid, its `dev` and route are while the RCU read side lock is
            // held, and the IP header is there, checked above.
            unsafe { Self::owner::<V4>(skb, dev, ip) }
        } else {
            None
        };
        let real_ifindex = if vlan_id.is_some() {
            dev.real_ifindex()
        } else {
            ifindex
        };

        // One without payload counts as well.
        let payload = len.checked_sub(UDP_LEN)?;
        let count = payload.checked_div(segment)?.max(1);
        let count = match payload > count.saturating_mul(segment) {
            true => count.saturating_add(1),
            false => count,
        };

        // What outlives the RCU read side critical section must not refer to anything that it
        // protects.
        // SAFETY: The skb is valid and ours.
        unsafe { bindings::skb_dst_drop(skb) };
        // SAFETY: As above.
        unsafe { bindings::skb_orphan(skb) };
        // SAFETY: As above.
        unsafe { bindings::skb_ext_reset(skb) };
        // SAFETY: As above.
        unsafe { bindings::skb_clear_dev(skb) };

        // INVARIANT: The skb is ours, linear or cut at the borders of datagrams, and the lengths were
        // checked above. Clones of it
        // may exist (a packet socket), but whoever has one of those must not write to the data
        // (Documentation/networking/skbuff.rst).
        Some(Self {
            skb: owned.into_inner(),
            ip,
            udp,
            mac,
            linear,
            segment,
            skipped: 0,
            limit: count,
            ifindex,
            real_ifindex,
            owner_ifindex,
            vlan_id,
            v4: V4,
            options: ip_len > fixed_len,
            loopback,
        })
    }

    /// The device that has the destination address of a packet that came through loopback.
    ///
    /// # Safety
    ///
    /// As for `new`; `dev` must be the device of `skb`, and `ip` point to an IP header.
    unsafe fn owner<const V4: bool>(
        skb: *mut bindings::sk_buff,
        dev: &NetDevice,
        ip: NonNull<u8>,
    ) -> Option<u32> {
        // The route that the sender looked up is still on the packet, and knows.
        let index = if V4 {
            // SAFETY: By the contract of this function the skb and its route are valid.
            unsafe { bindings::inet_iif(skb) }
        } else {
            // SAFETY: By the contract of this function the skb is valid, and IPv6 has filled its
            // control block.
            unsafe { bindings::inet6_iif(skb) }
        };
        let index = u32::try_from(index).ok().filter(|index| *index != 0);
        if let Some(index) = index.filter(|index| *index != dev.ifindex()) {
            return Some(index);
        }
        // SAFETY: `dev` is valid, and the RCU read side lock is held by the contract of this
        // function.
        let net = unsafe { bindings::dev_net_rcu(dev.as_raw()) };
        let owner = if V4 {
            // SAFETY: By the contract of this function the IP header is there; the destination is
            // at byte 16.
            let daddr = unsafe { ip.add(16).cast::<u32>().read_unaligned() };
            // SAFETY: The namespace is valid while the RCU read side lock is held. `__ip_dev_find`
            // (net/ipv4/devinet.c) returns a device that is valid for as long, when it is not asked
            // for a reference.
            unsafe { bindings::__ip_dev_find(net, daddr, false) }
        } else {
            // SAFETY: By the contract of this function the IP header is there; the destination is
            // at byte 24.
            let daddr = unsafe { ip.add(24).cast::<bindings::in6_addr>().read_unaligned() };
            // SAFETY: As above, for `ipv6_dev_find` (net/ipv6/addrconf.c).
            unsafe { bindings::ipv6_dev_find(net, &daddr, core::ptr::null_mut()) }
        };
        // SAFETY: The device is valid while the RCU read side lock is held.
        NonNull::new(owner).map(|owner| unsafe { NetDevice::from_raw(owner.as_ptr()) }.ifindex())
    }

    /// Passes over the first `count` datagrams of those that are left.
    #[inline]
    pub fn skip(&mut self, count: usize) {
        self.skipped = self.skipped.saturating_add(count);
        self.limit = self.limit.saturating_sub(count);
    }

    /// Whether no datagrams are left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.limit == 0
    }

    /// A copy of the first `count` datagrams that are left, which shares their memory. None if there is
    /// no memory for the rest.
    ///
    /// # Context
    ///
    /// Any.
    pub fn first(&self, count: usize) -> Option<Self> {
        // SAFETY: By the type invariant the skb is valid. `skb_clone` (net/core/skbuff.c) gives
        // another one of the same data, which is freed with the last.
        let skb = unsafe { bindings::skb_clone(self.skb.as_ptr(), bindings::GFP_ATOMIC) };
        // INVARIANT: The new skb is ours, and has the same data and fragments; nobody writes to
        // those of a clone.
        Some(Self {
            skb: NonNull::new(skb)?,
            limit: self.limit.min(count),
            ..*self
        })
    }

    /// The IPv4 identification of the first datagram that is left; it counts up from there.
    #[inline]
    pub fn first_id(&self) -> u16 {
        match self.ip() {
            IpHeader::V4(ip) => {
                u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(self.skipped as u16)
            }
            IpHeader::V6(_) => 0,
        }
    }

    /// The payloads of the datagrams that are left, at first at least one.
    #[inline]
    pub fn payloads(&self) -> Payloads<'_> {
        let (linear, skipped) = match self.limit {
            0 => (0, 0),
            _ => (self.linear, self.skipped),
        };
        let start = self.udp.as_ptr().wrapping_add(UDP_LEN);
        // SAFETY: By the type invariants these bytes are there, and nobody writes them.
        let piece = unsafe { slice::from_raw_parts(start, linear) };
        let mut payloads = Payloads {
            packet: self,
            piece,
            next: 0,
            first: true,
            limit: usize::MAX,
        };
        if let Some(last) = skipped.checked_sub(1) {
            let _ = payloads.nth(last);
        }
        payloads.limit = self.limit;
        payloads
    }

    /// Fragment `index` of the payload.
    fn fragment(&self, index: u32) -> Option<&[u8]> {
        let skb = self.skb.as_ptr();
        // SAFETY: By the type invariant the skb is valid.
        let info = unsafe { bindings::skb_shinfo(skb) };
        // SAFETY: Every skb has this, and nobody changes ours.
        if index >= u32::from(unsafe { (*info).nr_frags }) {
            return None;
        }
        // SAFETY: There is such a fragment, checked above.
        let size = unsafe { bindings::skb_fragment_size(skb, index) };
        // SAFETY: As above. By the type invariant it is in the kernel's memory.
        let data = unsafe { bindings::skb_fragment_address(skb, index) };
        // SAFETY: The fragment has so many bytes there, and by the type invariants nobody writes
        // them.
        Some(unsafe { slice::from_raw_parts(data.cast(), size as usize) })
    }

    /// The IP header.
    #[inline]
    pub fn ip(&self) -> IpHeader<'_> {
        if self.v4 {
            // SAFETY: By the type invariants these bytes are there, and nobody writes them.
            IpHeader::V4(unsafe { self.ip.cast().as_ref() })
        } else {
            // SAFETY: As above.
            IpHeader::V6(unsafe { self.ip.cast().as_ref() })
        }
    }

    /// The UDP header.
    #[inline]
    pub fn udp(&self) -> &[u8; UDP_LEN] {
        // SAFETY: By the type invariants these bytes are there, and nobody writes them.
        unsafe { self.udp.cast().as_ref() }
    }

    /// Whether there are IPv4 options or IPv6 extension headers, which [`RxPacket::ip`] does not
    /// show.
    #[inline]
    pub fn has_options(&self) -> bool {
        self.options
    }

    /// The device that it came in by: for a tagged packet the VLAN device.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The device below all VLANs that it came in by.
    #[inline]
    pub fn real_ifindex(&self) -> u32 {
        self.real_ifindex
    }

    /// Whether it came through the loopback device, from this host.
    #[inline]
    pub fn on_loopback(&self) -> bool {
        self.loopback
    }

    /// For a packet that came through loopback: the device of the namespace that the destination
    /// address belongs to.
    #[inline]
    pub fn owner_ifindex(&self) -> Option<u32> {
        self.owner_ifindex
    }

    /// The id of the VLAN that it came in by.
    #[inline]
    pub fn vlan_id(&self) -> Option<u16> {
        self.vlan_id
    }

    /// The Ethernet address of the sender, or of the last router.
    #[inline]
    pub fn src_mac(&self) -> Option<[u8; 6]> {
        // SAFETY: By the type invariants these bytes are there, and nobody writes them.
        self.mac.map(|mac| unsafe { mac.cast().read() })
    }
}

/// The payloads of the datagrams of an [`RxPacket`].
pub struct Payloads<'a> {
    packet: &'a RxPacket,
    /// What is left of the piece of memory at hand.
    piece: &'a [u8],
    /// The next fragment.
    next: u32,
    /// Nothing was returned yet: a datagram without payload counts as well.
    first: bool,
    /// Datagrams that are left.
    limit: usize,
}

impl<'a> Payloads<'a> {
    /// The memory that starts with the payload of the next datagram and has those of others behind it,
    /// as far as they lie there one behind the other; empty at the end.
    #[inline]
    pub fn piece(&mut self) -> &'a [u8] {
        if self.limit != 0 {
            self.load();
        }
        let most = self.limit.saturating_mul(self.packet.segment);
        self.piece.get(..most).unwrap_or(self.piece)
    }

    /// Goes on with the next piece of memory if this one is used up; returns whether there is any.
    #[inline]
    fn load(&mut self) -> bool {
        while self.piece.is_empty() {
            let Some(piece) = self.packet.fragment(self.next) else {
                return false;
            };
            self.piece = piece;
            self.next = self.next.wrapping_add(1);
        }
        true
    }
}

impl<'a> Iterator for Payloads<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.limit = self.limit.checked_sub(1)?;
        if !self.load() {
            return core::mem::take(&mut self.first).then_some(&[]);
        }
        self.first = false;
        let (payload, rest) = self
            .piece
            .split_at_checked(self.packet.segment)
            .unwrap_or((self.piece, &[]));
        self.piece = rest;
        Some(payload)
    }
}

impl Drop for RxPacket {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the skb is ours, and it is not used again. `napi_consume_skb`
        // (net/core/skbuff.c) is told whether softirqs can interfere.
        unsafe { bindings::recycle_skb(self.skb.as_ptr()) };
    }
}

/// An skb that is freed as a drop unless it is taken out.
struct OwnedSkb(NonNull<bindings::sk_buff>);

impl OwnedSkb {
    fn into_inner(self) -> NonNull<bindings::sk_buff> {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for OwnedSkb {
    fn drop(&mut self) {
        // SAFETY: The skb is valid and ours by construction.
        unsafe { bindings::kfree_skb(self.0.as_ptr()) };
    }
}
