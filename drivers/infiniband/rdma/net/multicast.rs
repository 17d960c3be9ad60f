// SPDX-License-Identifier: GPL-2.0

//! Multicast groups of IP, and interfaces that listen to them.
//!
//! C headers: [`include/linux/igmp.h`](srctree/include/linux/igmp.h),
//! [`include/net/addrconf.h`](srctree/include/net/addrconf.h)
//!
//! What [`NetDevice::join`] does is what a socket's membership does: the IP stack takes packets to
//! the group, the interface's filter lets their Ethernet address pass, switches and routers are
//! told (IGMP, MLD), and what this host sends to the group by this interface comes back to it.
//!
//! Would become `rust/kernel/net/multicast.rs`.

use crate::{
    bindings,
    net::{
        NetDevice,
        Rtnl, //
    },
    sync::MapKey, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The address of a multicast group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MulticastAddr {
    /// In 224.0.0.0/4.
    V4([u8; 4]),
    /// In ff00::/8.
    V6([u8; 16]),
}

impl MulticastAddr {
    /// The group of an IPv6 address, or of an IPv4 address that is mapped (::ffff:a.b.c.d). None if
    /// that is not a multicast address.
    #[inline]
    pub fn from_mapped(address: &[u8; 16]) -> Option<Self> {
        match *address {
            [0xff, ..] => Some(Self::V6(*address)),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Self::from_v4([a, b, c, d]),
            _ => None,
        }
    }

    /// The group of an IPv4 address.
    #[inline]
    pub fn from_v4(address: [u8; 4]) -> Option<Self> {
        (address[0] & 0xf0 == 0xe0).then_some(Self::V4(address))
    }
}

impl MapKey for MulticastAddr {
    /// FNV-1a.
    fn hash(self) -> u32 {
        let bytes = match &self {
            Self::V4(address) => address.as_slice(),
            Self::V6(address) => address.as_slice(),
        };
        bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        })
    }
}

impl NetDevice {
    /// Makes the interface listen to a group, until [`Self::leave`] is called as often as this, or the
    /// interface leaves its namespace, or loses its IPv4 or IPv6 for another reason.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// - `EAFNOSUPPORT`: the interface does not do IPv4, or IPv6.
    /// - `ENOMEM`.
    pub fn join(&self, _rtnl: &Rtnl, group: MulticastAddr) -> Result {
        let ret = match group {
            MulticastAddr::V4(address) => {
                let address = u32::from_ne_bytes(address);
                // SAFETY: By the type invariant the device is valid, and the RTNL is held.
                to_result(unsafe { bindings::netdev_join_ipv4(self.as_raw(), address) })
            }
            MulticastAddr::V6(address) => {
                let address = in6_addr(address);
                // SAFETY: By the type invariant the device is valid. `ipv6_dev_mc_inc`
                // (net/ipv6/mcast.c) copes with one that has no IPv6, and copies the address.
                to_result(unsafe { bindings::ipv6_dev_mc_inc(self.as_raw(), &address) })
            }
        };
        match ret {
            Err(EINVAL | ENODEV) => Err(EAFNOSUPPORT),
            ret => ret,
        }
    }

    /// Ends what [`Self::join`] did.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub fn leave(&self, _rtnl: &Rtnl, group: MulticastAddr) {
        match group {
            MulticastAddr::V4(address) => {
                let address = u32::from_ne_bytes(address);
                // SAFETY: By the type invariant the device is valid, and the RTNL is held. Nothing is
                // done if it has no IPv4, or is no member.
                unsafe { bindings::netdev_leave_ipv4(self.as_raw(), address) };
            }
            MulticastAddr::V6(address) => {
                let address = in6_addr(address);
                // SAFETY: By the type invariant the device is valid. `ipv6_dev_mc_dec`
                // (net/ipv6/mcast.c) does nothing if it has no IPv6, or is no member.
                let _ = unsafe { bindings::ipv6_dev_mc_dec(self.as_raw(), &address) };
            }
        }
    }
}

fn in6_addr(address: [u8; 16]) -> bindings::in6_addr {
    let mut to: bindings::in6_addr = pin_init::zeroed();
    to.in6_u.u6_addr8 = address;
    to
}
