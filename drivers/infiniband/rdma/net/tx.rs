// SPDX-License-Identifier: GPL-2.0

//! Datagrams that go out.
//!
//! C headers: [`include/linux/skbuff.h`](srctree/include/linux/skbuff.h),
//! [`include/net/ip.h`](srctree/include/net/ip.h),
//! [`include/net/ipv6.h`](srctree/include/net/ipv6.h)
//!
//! Would become `rust/kernel/net/skbuff/tx.rs`.

use crate::{
    bindings,
    net::{
        ip_header::{
            IpHeader,
            IPV4_LEN,
            IPV6_LEN,
            UDP_LEN, //
        },
        route::Route, //
    },
    sync::BhDisabled, //
};
use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    },
    slice,
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};

/// Why a packet could not be built or sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxError {
    /// There is no route to the destination, or the source address is not (any more) an address of
    /// this host.
    NoRoute,
    /// No memory. Try again later.
    NoMemory,
    /// A queue on the way out is full, or the device is down. Try again later.
    Congested,
    /// Anything else, as the negative error number that the network stack gave: `-EPERM` for a
    /// packet that the firewall dropped, `-EMSGSIZE` for one that is larger than the MTU.
    Other(i32),
}

impl TxError {
    /// The packet is larger than the MTU.
    pub(super) const TOO_LONG: Self = Self::Other(-(bindings::EMSGSIZE as i32));
}

/// The IP and UDP header of a packet.
pub(super) struct Headers {
    /// 28 (IPv4) or 48 bytes are in use.
    pub(super) bytes: [u8; IPV6_LEN + UDP_LEN],
    /// Length of the packet, headers included.
    pub(super) total: u16,
}

/// A packet to be sent: headers and payload.
///
/// # Invariants
///
/// - `skb` is owned by this value; the first word of its control block is an `Arc<Route>` made into
///   a raw pointer.
/// - `data` points to its `len` bytes, which start with the IP header (`v4` says which) and the UDP
///   header.
pub struct TxPacket {
    skb: NonNull<bindings::sk_buff>,
    data: NonNull<u8>,
    len: u16,
    v4: bool,
}

// SAFETY: An skb without a device is not bound to the CPU or thread that allocated it; `Route` is
// `Send + Sync`.
unsafe impl Send for TxPacket {}

// SAFETY: Shared references only allow to read.
unsafe impl Sync for TxPacket {}

impl TxPacket {
    /// Allocates a packet and writes its headers. The length in `headers` covers at least these.
    pub(super) fn new(
        route: &Arc<Route>,
        headers: &Headers,
        headroom: u32,
        hash: u32,
        priority: u32,
    ) -> Result<Self, TxError> {
        let v4 = route.is_v4();
        let (ip_len, protocol) = if v4 {
            (IPV4_LEN, bindings::ETH_P_IP)
        } else {
            (IPV6_LEN, bindings::ETH_P_IPV6)
        };
        let len = u32::from(headers.total);
        let reserve = i32::try_from(headroom).map_err(|_| TxError::NoMemory)?;
        // SAFETY: `__alloc_skb` and `napi_build_skb` (net/core/skbuff.c), of which this is one, give
        // null or a new skb with room for that size, which is less than 2^17: the headroom of a route is
        // 16 bits wide, and so is `len`.
        let skb = NonNull::new(unsafe { bindings::alloc_tx_skb(headroom.saturating_add(len)) })
            .ok_or(TxError::NoMemory)?;
        let raw = skb.as_ptr();
        // SAFETY: The skb is new and empty, and has room for `headroom` and `len` bytes.
        unsafe { bindings::skb_reserve(raw, reserve) };
        // SAFETY: As above; `headroom` of it is used.
        let data = unsafe { bindings::skb_put(raw, len) }.cast::<u8>();
        // SAFETY: The data of the skb starts with the IP header.
        unsafe { bindings::skb_reset_network_header(raw) };
        // SAFETY: Behind which the UDP header follows, within the linear data.
        unsafe { bindings::skb_set_transport_header(raw, ip_len as i32) };
        // SAFETY: The skb is ours.
        unsafe { bindings::skb_set_protocol(raw, protocol as u16) };
        // SAFETY: As above.
        unsafe { bindings::skb_set_priority(raw, priority) };
        // SAFETY: As above.
        unsafe { bindings::skb_set_sw_hash(raw, hash) };
        let header = headers.bytes.get(..ip_len + UDP_LEN).unwrap_or(&[]);
        // SAFETY: `total`, and so what was put, is at least as long as the headers, and the memory
        // is new.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), data, header.len()) };
        let owner: *mut *const Route = Self::owner(raw);
        // SAFETY: The control block is ours while the skb is, has 48 bytes and is aligned to 8.
        unsafe { owner.write(Arc::into_raw(route.clone())) };
        // INVARIANT: All of it was set up above.
        Ok(Self {
            skb,
            // SAFETY: `skb_put` does not return null.
            data: unsafe { NonNull::new_unchecked(data) },
            len: headers.total,
            v4,
        })
    }

    /// The place in the control block for the route.
    #[inline]
    fn owner(skb: *mut bindings::sk_buff) -> *mut *const Route {
        // SAFETY: The callers pass a valid skb.
        unsafe { &raw mut (*skb).cb }.cast()
    }

    /// The skb.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    /// Length of the IP and the UDP header together.
    #[inline]
    pub(super) fn header_len(&self) -> usize {
        self.ip_len() + UDP_LEN
    }

    /// Writes the length of the payload to the headers.
    pub(super) fn set_lengths(&mut self, payload: u32) {
        let udp = (payload as u16).wrapping_add(UDP_LEN as u16);
        let ip_len = self.ip_len();
        // SAFETY: By the type invariants the headers are there, and nobody else has them.
        let header = unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.header_len()) };
        let (ip, at) = if self.v4 {
            (udp.wrapping_add(IPV4_LEN as u16), 2)
        } else {
            (udp, 4)
        };
        for (at, value) in [(at, ip), (ip_len + 4, udp)] {
            if let Some(field) = header.get_mut(at..at + 2) {
                field.copy_from_slice(&value.to_be_bytes());
            }
        }
    }

    /// Takes the packet apart.
    #[inline]
    fn into_skb(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).skb
    }

    /// Takes the route out of an skb, and clears the control block as the IP stack wants it.
    ///
    /// # Safety
    ///
    /// `skb` must be what [`TxPacket::into_skb`] returned, and this may be done once.
    #[inline]
    unsafe fn take_route(skb: *mut bindings::sk_buff) -> Arc<Route> {
        let owner = Self::owner(skb);
        // SAFETY: By the invariant of `TxPacket`, from which the skb came.
        let route = unsafe { owner.replace(ptr::null()) };
        // SAFETY: The pointer came from `Arc::into_raw` in `new`, and was replaced by null.
        unsafe { Arc::from_raw(route) }
    }

    #[inline]
    fn ip_len(&self) -> usize {
        if self.v4 {
            IPV4_LEN
        } else {
            IPV6_LEN
        }
    }

    /// The IP header. The IPv4 header checksum is not there yet.
    #[inline]
    pub fn ip(&self) -> IpHeader<'_> {
        if self.v4 {
            // SAFETY: By the type invariants these bytes are there.
            IpHeader::V4(unsafe { self.data.cast().as_ref() })
        } else {
            // SAFETY: As above.
            IpHeader::V6(unsafe { self.data.cast().as_ref() })
        }
    }

    /// The UDP header.
    #[inline]
    pub fn udp(&self) -> &[u8; UDP_LEN] {
        let udp = self.data.as_ptr().wrapping_add(self.ip_len());
        // SAFETY: By the type invariants these bytes are there.
        unsafe { &*udp.cast() }
    }

    /// The payload: as many bytes as [`Flow::build`](super::Flow::build) was asked for.
    ///
    /// All of it must be written before the packet is sent: it holds whatever the memory held
    /// before, unless the kernel zeroes what it allocates.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.ip_len() + UDP_LEN;
        let len = usize::from(self.len).saturating_sub(start);
        // SAFETY: By the type invariants these bytes are there, and nobody else has them. Memory
        // that comes from a function outside of the compiler's sight has some value.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().wrapping_add(start), len) }
    }

    /// The priority of the packet (`SO_PRIORITY`), by which queueing disciplines and VLAN devices
    /// sort.
    #[inline]
    pub fn priority(&self) -> u32 {
        // SAFETY: By the type invariant the skb is valid.
        unsafe { bindings::skb_get_priority(self.skb.as_ptr()) }
    }

    /// Sets the priority of the packet.
    #[inline]
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: By the type invariant the skb is valid and ours.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }
}

impl Drop for TxPacket {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the skb is as `new` made it, and it is not used again.
        drop(unsafe { Self::take_route(self.skb.as_ptr()) });
        // SAFETY: By the type invariant the skb is ours, and it is not used again.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}

/// What became of a queue of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct TxOutcome {
    /// How many datagrams were accepted.
    pub sent: u32,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// How many datagrams were lost on the way to a queue: no route, too long, dropped by the
    /// firewall.
    pub lost: u32,
    /// Why, for the last of these.
    pub error: Option<TxError>,
    /// Set if sending stopped early: [`TxError::Congested`] or [`TxError::NoMemory`]. The datagrams
    /// behind the first `sent + lost` were freed without having been sent.
    pub stopped: Option<TxError>,
}

impl TxOutcome {
    /// Counts a packet of `count` datagrams.
    fn accept(&mut self, count: u32, bytes: u32) {
        self.sent = self.sent.wrapping_add(count);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
    }
}

/// Packets to be sent, in this order.
///
/// # Invariants
///
/// `head` is a list of `len` skbs, linked by `next`, each of which was a [`TxPacket`]; `tail` is
/// its last, null if there is none.
pub struct TxQueue {
    head: *mut bindings::sk_buff,
    tail: *mut bindings::sk_buff,
    len: u32,
}

// SAFETY: As for `TxPacket`.
unsafe impl Send for TxQueue {}

// SAFETY: Shared references only allow to read `len`.
unsafe impl Sync for TxQueue {}

impl TxQueue {
    /// Creates an empty queue. Does not allocate.
    #[inline]
    pub const fn new() -> Self {
        Self {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            len: 0,
        }
    }

    /// The number of packets in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no packet in the queue.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a packet at the end.
    #[inline]
    pub fn push(&mut self, packet: TxPacket) {
        let skb = packet.into_skb().as_ptr();
        if self.tail.is_null() {
            self.head = skb;
        } else {
            // SAFETY: By the type invariant the tail is ours.
            unsafe { bindings::skb_set_next(self.tail, skb) };
        }
        self.tail = skb;
        self.len = self.len.wrapping_add(1);
    }

    /// Takes the first packet, with its route.
    #[inline]
    fn pop(&mut self) -> Option<(NonNull<bindings::sk_buff>, Arc<Route>)> {
        let skb = NonNull::new(self.head)?;
        // SAFETY: By the type invariant the skb is ours.
        self.head = unsafe { bindings::skb_get_next(skb.as_ptr()) };
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        }
        self.len = self.len.wrapping_sub(1);
        // SAFETY: As above. The IP stack wants a packet that is not on a list.
        unsafe { bindings::skb_set_next(skb.as_ptr(), ptr::null_mut()) };
        // SAFETY: By the type invariant the skb was a `TxPacket`, and it is not on the queue any
        // more.
        let route = unsafe { TxPacket::take_route(skb.as_ptr()) };
        Some((skb, route))
    }

    /// Frees what is in the queue.
    pub fn clear(&mut self) {
        while let Some((skb, route)) = self.pop() {
            drop(route);
            // SAFETY: `pop` gave us the skb.
            unsafe { bindings::consume_skb(skb.as_ptr()) };
        }
    }

    /// Hands all packets to the IP stack, in order, until a queue on the way out is full. The queue
    /// is empty afterwards.
    ///
    /// A packet that causes "congestion notification" (`NET_XMIT_CN`: it or another one was dropped
    /// to make room) counts as sent and stops. Losing a packet for another reason does not stop. A
    /// filter that drops packets in the egress path of `tc`, and a `veth` device whose peer is
    /// down, look like a full queue.
    ///
    /// Over `veth` and loopback keep queues well below `net.core.netdev_max_backlog` (1000): their
    /// receiver runs on this CPU, after the last packet, and what its backlog does not hold is
    /// refused (`veth`) or lost (loopback).
    ///
    /// # Context
    ///
    /// Process or softirq context, interrupts enabled. The caller must hold no lock that the
    /// receive path of this host, a qdisc or a firewall could need; best none. Packets for this
    /// host are queued, and received when softirqs run next.
    pub fn send(&mut self) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        if self.is_empty() {
            return outcome;
        }
        // Receivers on this CPU run once, after the last packet, instead of once for each.
        let _bh = BhDisabled::new();
        let guard = rcu::Guard::new();
        while let Some((skb, route)) = self.pop() {
            // SAFETY: `pop` gave us the skb.
            let count = unsafe { bindings::skb_datagrams(skb.as_ptr()) };
            // SAFETY: As above.
            let transport = unsafe { bindings::skb_transport_len(skb.as_ptr()) };
            let bytes = transport.saturating_sub(UDP_LEN as u32);
            let error = match Self::send_one(skb, &route, &guard) {
                NET_XMIT_SUCCESS => None,
                NET_XMIT_CN => {
                    outcome.accept(count, bytes);
                    outcome.stopped = Some(TxError::Congested);
                    break;
                }
                NET_XMIT_DROP | ENOBUFS => Some(TxError::Congested),
                ENOMEM => Some(TxError::NoMemory),
                EHOSTUNREACH | ENETUNREACH => Some(TxError::NoRoute),
                errno => Some(TxError::Other(errno)),
            };
            match error {
                None => outcome.accept(count, bytes),
                Some(TxError::Congested | TxError::NoMemory) => {
                    outcome.stopped = error;
                    break;
                }
                Some(TxError::NoRoute | TxError::Other(_)) => {
                    outcome.lost = outcome.lost.wrapping_add(count);
                    outcome.error = error;
                }
            }
        }
        self.clear();
        outcome
    }

    /// Hands one packet to the IP stack. Returns a negative error number, or one of the
    /// `NET_XMIT_*` values.
    #[inline]
    fn send_one(skb: NonNull<bindings::sk_buff>, route: &Route, guard: &rcu::Guard) -> i32 {
        let skb = skb.as_ptr();
        let Some(dst) = route.get(guard) else {
            // SAFETY: The caller gives the skb away.
            unsafe { bindings::kfree_skb(skb) };
            return EHOSTUNREACH;
        };
        // SAFETY: The skb is ours and has no route yet; the route is valid while the RCU read side
        // lock is held, which `skb_dst_set_noref` (include/linux/skbuff.h) asks for. Whoever keeps
        // the packet longer takes a reference.
        unsafe { bindings::skb_dst_set_noref(skb, dst.as_raw()) };
        let net = route.net(guard);
        let code = if route.is_v4() {
            // SAFETY: The namespace is valid, the skb ours and complete. `ip_local_out`
            // (net/ipv4/ip_output.c) takes no socket and consumes the skb whatever it returns.
            unsafe { bindings::ip_local_out(net, ptr::null_mut(), skb) }
        } else {
            // SAFETY: As above, for `ip6_local_out` (net/ipv6/output_core.c).
            unsafe { bindings::ip6_local_out(net, ptr::null_mut(), skb) }
        };
        // A driver's or qdisc's positive code may have flags beyond the mask, which do not matter
        // to us.
        if code > 0 {
            code & NET_XMIT_MASK
        } else {
            code
        }
    }
}

impl Default for TxQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

const NET_XMIT_SUCCESS: i32 = bindings::NET_XMIT_SUCCESS as i32;
const NET_XMIT_DROP: i32 = bindings::NET_XMIT_DROP as i32;
const NET_XMIT_CN: i32 = bindings::NET_XMIT_CN as i32;
const NET_XMIT_MASK: i32 = bindings::NET_XMIT_MASK as i32;
const ENOBUFS: i32 = -(bindings::ENOBUFS as i32);
const ENOMEM: i32 = -(bindings::ENOMEM as i32);
const EHOSTUNREACH: i32 = -(bindings::EHOSTUNREACH as i32);
const ENETUNREACH: i32 = -(bindings::ENETUNREACH as i32);
