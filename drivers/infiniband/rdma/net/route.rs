// SPDX-License-Identifier: GPL-2.0

//! Cached routes.
//!
//! C headers: [`include/net/dst.h`](srctree/include/net/dst.h),
//! [`include/net/route.h`](srctree/include/net/route.h),
//! [`include/net/ip6_route.h`](srctree/include/net/ip6_route.h)
//!
//! Would become `rust/kernel/net/route.rs`.

use crate::{
    bindings,
    net::{
        train::TrainLimit,
        FlowKey,
        NetDevice,
        TxError, //
    },
};
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        rcu, //
    },
};

/// A route of one namespace, or the place for one.
///
/// Packets that are built refer to this and not to the `dst_entry`, of which a reference must not
/// outlive the namespace.
///
/// # Invariants
///
/// - `dst` is null, or a `dst_entry` of the namespace of `loopback` of which this value owns a
///   reference.
/// - `loopback` is the loopback device of its namespace, which therefore is not freed.
pub(super) struct Route {
    dst: Atomic<*mut bindings::dst_entry>,
    loopback: ARef<NetDevice>,
    v4: bool,
}

// SAFETY: A `dst_entry` may be used and released by any thread.
unsafe impl Send for Route {}

// SAFETY: As above; it is exchanged atomically, and readers are protected by RCU.
unsafe impl Sync for Route {}

impl Route {
    /// An empty place for a route of the namespace of `dev`.
    ///
    /// # Errors
    ///
    /// `ENODEV`: `dev` is going away.
    pub(super) fn new(dev: &NetDevice, v4: bool) -> Result<Self> {
        Ok(Self {
            dst: Atomic::new(ptr::null_mut()),
            loopback: dev.loopback().ok_or(ENODEV)?,
            v4,
        })
    }

    /// Whether this is for IPv4.
    #[inline]
    pub(super) fn is_v4(&self) -> bool {
        self.v4
    }

    /// The namespace, valid for as long as `self`.
    #[inline]
    pub(super) fn net(&self, _guard: &rcu::Guard) -> *mut bindings::net {
        // SAFETY: The device is valid, and the RCU read side lock is held. A loopback device never
        // changes its namespace, and by being held (type invariant) keeps it from being freed.
        unsafe { bindings::dev_net_rcu(self.loopback.as_raw()) }
    }

    /// The route, if there is one.
    #[inline]
    pub(super) fn get<'g>(&self, guard: &'g rcu::Guard) -> Option<Dst<'g>> {
        Dst::new(self.dst.load(Acquire), guard)
    }

    /// Looks the route up, for whatever is there now.
    ///
    /// # Errors
    ///
    /// [`TxError::NoRoute`].
    pub(super) fn look_up<'g>(
        &self,
        key: &FlowKey,
        guard: &'g rcu::Guard,
    ) -> Result<Dst<'g>, TxError> {
        let found = if self.v4 {
            self.look_up_v4(key, guard)
        } else {
            self.look_up_v6(key, guard)
        };
        let dst = found.map_err(|_| TxError::NoRoute)?;
        // INVARIANT: The lookup gave us a reference.
        self.set(dst);
        Dst::new(dst, guard).ok_or(TxError::NoRoute)
    }

    /// Exchanges the route; takes over the caller's reference on `dst`.
    fn set(&self, dst: *mut bindings::dst_entry) {
        let old = self.dst.xchg(dst, Full);
        // SAFETY: By the type invariant we own a reference on what was there. `dst_release`
        // (net/core/dst.c) takes null, and frees after an RCU grace period only.
        unsafe { bindings::dst_release(old) };
    }

    /// The output device of `key` (null if it has none), for as long as the guard is held.
    fn device(
        &self,
        net: *mut bindings::net,
        key: &FlowKey,
        _guard: &rcu::Guard,
    ) -> *mut bindings::net_device {
        // SAFETY: The namespace is valid, and the RCU read side lock is held.
        unsafe { bindings::dev_get_by_index_rcu(net, key.oif_raw()) }
    }

    /// The interface that a lookup of a local destination names: none, so that it is found
    /// whichever device has it; but the routing domain (VRF) of the output device, if that is in
    /// one.
    fn local_oif(dev: *mut bindings::net_device, _guard: &rcu::Guard) -> i32 {
        // SAFETY: `dev` is null, which is fine, or valid while the RCU read side lock is held.
        unsafe { bindings::l3mdev_master_ifindex_rcu(dev) }
    }

    fn look_up_v4(&self, key: &FlowKey, guard: &rcu::Guard) -> Result<*mut bindings::dst_entry> {
        let net = self.net(guard);
        let dev = self.device(net, key, guard);
        let daddr = key.daddr_v4();
        // SAFETY: The namespace is valid; `dev` is null, which is fine, or valid while the RCU read
        // side lock is held.
        let kind = unsafe { bindings::inet_addr_type_dev_table(net, dev, daddr) };

        let mut flow: bindings::flowi4 = pin_init::zeroed();
        flow.__fl_common.flowic_proto = bindings::IPPROTO_UDP as u8;
        flow.__fl_common.flowic_dscp = key.dscp();
        flow.__fl_common.flowic_oif = if kind == bindings::RTN_LOCAL {
            Self::local_oif(dev, guard)
        } else {
            key.oif_raw()
        };
        flow.saddr = key.saddr_v4();
        flow.daddr = daddr;
        flow.uli.ports.sport = key.sport.to_be();
        flow.uli.ports.dport = key.dport.to_be();
        // SAFETY: The namespace is valid. `ip_route_output_flow` (net/ipv4/route.c) takes no socket,
        // and returns a route with a reference or an error pointer.
        let rt = unsafe { bindings::ip_route_output_flow(net, &mut flow, ptr::null()) };
        let rt = from_err_ptr(rt)?;
        // SAFETY: `rt` is a valid route.
        Ok(unsafe { bindings::rt_dst(rt) })
    }

    fn look_up_v6(&self, key: &FlowKey, guard: &rcu::Guard) -> Result<*mut bindings::dst_entry> {
        let net = self.net(guard);
        let dev = self.device(net, key, guard);
        let daddr = key.daddr_v6();
        // SAFETY: The namespace is valid; `dev` is null, which is fine, or valid while the RCU read
        // side lock is held.
        let local = unsafe { bindings::ipv6_chk_addr(net, &daddr, dev, 0) } != 0;

        let mut flow: bindings::flowi6 = pin_init::zeroed();
        flow.__fl_common.flowic_proto = bindings::IPPROTO_UDP as u8;
        // A link-local address means something on its link only.
        flow.__fl_common.flowic_oif = if local && !key.is_link_local() {
            Self::local_oif(dev, guard)
        } else {
            key.oif_raw()
        };
        flow.saddr = key.saddr_v6();
        flow.daddr = daddr;
        flow.flowlabel = key.flowinfo().to_be();
        flow.uli.ports.sport = key.sport.to_be();
        flow.uli.ports.dport = key.dport.to_be();
        // SAFETY: The namespace is valid. `ip6_dst_lookup_flow` (net/ipv6/ip6_output.c) takes no
        // socket and no final destination, and returns a route with a reference or an error
        // pointer.
        let dst =
            unsafe { bindings::ip6_dst_lookup_flow(net, ptr::null(), &mut flow, ptr::null()) };
        from_err_ptr(dst)
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we own a reference. `loopback` is dropped after this, and
        // with it the hold on the namespace, into which `dst_release` (net/core/dst.c) reaches now
        // but not later.
        unsafe { bindings::dst_release(self.dst.load(Relaxed)) };
    }
}

/// A route that is valid for as long as an RCU read side lock is held.
///
/// # Invariants
///
/// The `dst_entry` was in a [`Route`] while the lock was held.
#[derive(Clone, Copy)]
pub(super) struct Dst<'g>(NonNull<bindings::dst_entry>, PhantomData<&'g rcu::Guard>);

impl<'g> Dst<'g> {
    #[inline]
    fn new(dst: *mut bindings::dst_entry, _guard: &'g rcu::Guard) -> Option<Self> {
        // INVARIANT: The caller has just loaded it from, or stored it to, a `Route`.
        Some(Self(NonNull::new(dst)?, PhantomData))
    }

    /// The C route.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::dst_entry {
        self.0.as_ptr()
    }

    /// Whether it still is what a lookup would find.
    #[inline]
    pub(super) fn is_valid(&self, cookie: u32) -> bool {
        // SAFETY: By the type invariant it is valid: it is freed an RCU grace period after the
        // `Route` has let go of it.
        !unsafe { bindings::dst_check(self.as_raw(), cookie) }.is_null()
    }

    /// What [`Dst::is_valid`] wants to be given later.
    pub(super) fn cookie(&self, v4: bool) -> u32 {
        if v4 {
            return 0;
        }
        // SAFETY: By the type invariant it is valid, and an IPv6 route.
        unsafe { bindings::rt6_get_cookie(self.as_raw()) }
    }

    /// The largest IP packet that may take it, in bytes.
    #[inline]
    pub(super) fn mtu(&self) -> u32 {
        // SAFETY: By the type invariant it is valid.
        unsafe { bindings::dst_mtu(self.as_raw()) }
    }

    /// How many bytes the layers below IP put in front of a packet.
    pub(super) fn headroom(&self) -> u32 {
        // SAFETY: By the type invariant it is valid, and the RCU read side lock is held.
        let dev = unsafe { bindings::dst_dev_rcu(self.as_raw()) };
        // SAFETY: The device is valid while the RCU read side lock is held.
        let link = unsafe { bindings::LL_RESERVED_SPACE(dev) };
        // SAFETY: By the type invariant it is valid.
        link.saturating_add(unsafe { bindings::dst_header_len(self.as_raw()) })
    }

    /// Whether it leads to a loopback device.
    pub(super) fn is_loopback(&self) -> bool {
        // SAFETY: By the type invariant it is valid, and the RCU read side lock is held.
        let dev = unsafe { bindings::dst_dev_rcu(self.as_raw()) };
        // SAFETY: The device is valid while the RCU read side lock is held.
        unsafe { NetDevice::from_raw(dev.cast()) }.is_loopback()
    }

    /// The device of this host that has the destination address, if it leads to the loopback device:
    /// the one that reception finds for its packets.
    pub(super) fn owner_ifindex(&self, v4: bool) -> Option<u32> {
        if !self.is_loopback() {
            return None;
        }
        // SAFETY: By the type invariant it is valid, and the RCU read side lock is held. It is of the
        // protocol that `v4` says.
        let index = unsafe { bindings::dst_owner_ifindex(self.as_raw(), v4) };
        u32::try_from(index).ok().filter(|index| *index != 0)
    }

    /// How large the trains may be that it takes.
    ///
    /// Only devices without hardware of their own are given trains: they pass them on as they are, or
    /// have the kernel cut them up, which counts the IPv4 identification up for certain. `ethtool -K
    /// DEV tx-udp-segmentation off` ends that.
    pub(super) fn train_limit(&self) -> TrainLimit {
        // SAFETY: By the type invariant it is valid, and the RCU read side lock is held.
        let dev = unsafe { bindings::dst_dev_rcu(self.as_raw()) };
        // SAFETY: The device is valid while the RCU read side lock is held.
        let limits = unsafe { bindings::virtual_dev_udp_gso(dev) };
        // SAFETY: As above.
        let segments = unsafe { bindings::dev_gso_max_segs(dev) };
        TrainLimit {
            bytes: limits.min(u32::from(u16::MAX)),
            segments,
        }
    }
}
