// SPDX-License-Identifier: GPL-2.0

//! Network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)
//!
//! Would become `rust/kernel/net/device.rs`.

use crate::bindings;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    fmt,
    prelude::*,
    str::BStr,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        rcu, //
    },
    types::Opaque, //
};

/// Length of a name with its final nul, in bytes (`IFNAMSIZ`).
const NAME_LEN: usize = 16;

/// A network device.
///
/// It may be down, or gone from its namespace: a reference keeps the memory, and delays the end of
/// its unregistration, but not its start.
///
/// # Invariants
///
/// `self` is a `struct net_device` whose reference count is not zero.
#[repr(transparent)]
pub struct NetDevice(Opaque<bindings::net_device>);

// SAFETY: `dev_put` may be called from any thread.
unsafe impl Send for NetDevice {}

// SAFETY: Only fields that may be read at any time are read, each by a single volatile load.
unsafe impl Sync for NetDevice {}

// SAFETY: `dev_hold` and `dev_put` (include/linux/netdevice.h) count references; unregistration
// waits until there is none before the memory is freed.
unsafe impl AlwaysRefCounted for NetDevice {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::dev_hold(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: By the contract of this function the caller owns a reference, which keeps the
        // device valid until here.
        unsafe { bindings::dev_put(obj.as_ptr().cast()) };
    }
}

/// Reads a field that the kernel may change meanwhile, as `READ_ONCE` does.
macro_rules! read_once {
    ($dev:expr, $field:ident) => {{
        // SAFETY: By the invariant of `NetDevice` the device is valid, and so is a pointer to its
        // field.
        let field = unsafe { &raw const (*$dev.as_raw()).$field };
        // SAFETY: As above; the field is an aligned scalar, for which a volatile load cannot tear.
        unsafe { ptr::read_volatile(field) }
    }};
}

impl NetDevice {
    /// Wraps a C device.
    ///
    /// # Safety
    ///
    /// `dev` must be valid and hold at least one reference for as long as `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(dev: *const bindings::net_device) -> &'a Self {
        // SAFETY: By the contract of this function; `NetDevice` is transparent.
        unsafe { &*dev.cast() }
    }

    /// The C device.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// The name that the device has at this moment.
    pub fn name(&self) -> Name {
        let mut name = [0; NAME_LEN];
        // SAFETY: By the type invariant the device is valid, and so is a pointer to its name.
        let from = unsafe { &raw const (*self.as_raw()).name };
        for (index, byte) in name.iter_mut().take(NAME_LEN - 1).enumerate() {
            let from = from.cast::<u8>().wrapping_add(index);
            // SAFETY: `index` is within the `IFNAMSIZ` bytes of the name. A rename at the same time
            // changes single bytes.
            *byte = unsafe { ptr::read_volatile(from) };
        }
        Name(name)
    }

    /// The index of the device, unique in its namespace.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        read_once!(self, ifindex).unsigned_abs()
    }

    /// The largest IP packet that it takes, in bytes.
    #[inline]
    pub fn mtu(&self) -> u32 {
        read_once!(self, mtu)
    }

    /// The number of bytes of its link-layer address; 0 for a device that has none.
    #[inline]
    pub fn addr_len(&self) -> u8 {
        read_once!(self, addr_len)
    }

    /// The first six bytes of its link-layer address, zero beyond [`NetDevice::addr_len`].
    pub fn mac(&self) -> [u8; 6] {
        let mut mac = [0; 6];
        let _rcu = rcu::Guard::new();
        // `dev_addr` points into a list entry that is freed only with the device.
        let from = read_once!(self, dev_addr);
        if from.is_null() {
            return mac;
        }
        let len = usize::from(self.addr_len());
        for (index, byte) in mac.iter_mut().take(len).enumerate() {
            // SAFETY: `dev_addr` has room for `MAX_ADDR_LEN` (32) bytes
            // (net/core/dev_addr_lists.c), and `index` is below 6.
            *byte = unsafe { ptr::read_volatile(from.wrapping_add(index)) };
        }
        mac
    }

    /// The type of its link layer, `ARPHRD_*` (1: Ethernet, 772: loopback, 65534: none).
    #[inline]
    pub fn hw_type(&self) -> u16 {
        read_once!(self, type_)
    }

    /// Whether it was brought up (`ip link set up`).
    #[inline]
    pub fn is_up(&self) -> bool {
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::netif_running(self.as_raw()) }
    }

    /// Whether its link has a carrier.
    #[inline]
    pub fn carrier(&self) -> bool {
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::netif_carrier_ok(self.as_raw()) }
    }

    /// Whether it is a loopback device.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        read_once!(self, flags) & bindings::net_device_flags_IFF_LOOPBACK != 0
    }

    /// Whether it is a VLAN on top of another device.
    #[inline]
    pub fn is_vlan(&self) -> bool {
        // SAFETY: By the type invariant the device is valid.
        unsafe { bindings::is_vlan_dev(self.as_raw()) }
    }

    /// The index of the device at the bottom of a stack of VLANs; its own index if it is no VLAN.
    pub fn real_ifindex(&self) -> u32 {
        if !self.is_vlan() {
            return self.ifindex();
        }
        let _rcu = rcu::Guard::new();
        // SAFETY: The device is valid by the type invariant, and a VLAN, as `vlan_dev_real_dev`
        // (net/8021q/vlan_core.c) wants.
        let real = unsafe { bindings::vlan_dev_real_dev(self.as_raw()) };
        if real.is_null() {
            return self.ifindex();
        }
        // SAFETY: A VLAN holds a reference on its real device until it is freed itself
        // (net/8021q/vlan_dev.c).
        unsafe { Self::from_raw(real) }.ifindex()
    }

    /// The VLAN id, if it is a VLAN.
    pub fn vlan_id(&self) -> Option<u16> {
        if !self.is_vlan() {
            return None;
        }
        // SAFETY: The device is valid by the type invariant, and a VLAN, as `vlan_dev_vlan_id`
        // (net/8021q/vlan_core.c) wants.
        Some(unsafe { bindings::vlan_dev_vlan_id(self.as_raw()) })
    }

    /// Which namespace it is in at this moment.
    pub fn net(&self) -> Namespace {
        let _rcu = rcu::Guard::new();
        // SAFETY: The device is valid by the type invariant, and the RCU read side lock is held.
        let net = unsafe { bindings::dev_net_rcu(self.as_raw()) };
        // SAFETY: The namespace of a device stays valid until the RCU read side lock is dropped
        // (`dev_net_rcu`, include/linux/netdevice.h). Its cookie never changes.
        Namespace(unsafe { (*net).net_cookie })
    }

    /// Whether it is registered, and not about to go away.
    #[inline]
    pub fn is_registered(&self) -> bool {
        u32::from(read_once!(self, reg_state)) == bindings::netdev_reg_state_NETREG_REGISTERED
    }

    /// The loopback device of its namespace, which keeps the namespace from being freed for as long
    /// as it is held.
    ///
    /// None if the device is not registered (any more).
    pub(crate) fn loopback(&self) -> Option<ARef<Self>> {
        let _rcu = rcu::Guard::new();
        if !self.is_registered() {
            return None;
        }
        // SAFETY: The device is valid by the type invariant, and the RCU read side lock is held.
        let net = unsafe { bindings::dev_net_rcu(self.as_raw()) };
        // SAFETY: The namespace is valid until the RCU read side lock is dropped, see `net`.
        let lo = NonNull::new(unsafe { (*net).loopback_dev })?;
        // SAFETY: The device was registered inside this RCU read side critical section, so its
        // namespace had not finished unregistering its devices, of which loopback is the last:
        // `unregister_netdevice_many_notify` (net/core/dev.c) waits for this section to end before
        // it lets go of them.
        let lo = unsafe { Self::from_raw(lo.as_ptr().cast()) };
        Some(lo.into())
    }
}

/// The name of a device: up to 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_LEN]);

impl Name {
    /// The name as a C string.
    pub fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"?")
    }

    /// The name without the final nul.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or(&[])
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(BStr::from_bytes(self.as_bytes()), f)
    }
}

/// The identity of a network namespace; not a reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(u64);

impl Namespace {
    /// A number that no other namespace has had or will have (`SO_NETNS_COOKIE`).
    pub fn cookie(self) -> u64 {
        self.0
    }
}
