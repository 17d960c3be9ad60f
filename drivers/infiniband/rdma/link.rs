// SPDX-License-Identifier: GPL-2.0

//! Link types: how `rdma link add NAME type TYPE netdev DEV` makes devices.
//!
//! C header: [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h).
//! In the tree this file would be `rust/kernel/rdma/link.rs`.

use crate::{
    bindings,
    net::NetDevice,
    verbs::{
        registry,
        Driver, //
    },
};
use core::{
    any::TypeId,
    marker::PhantomData,
    ptr::{
        addr_eq,
        NonNull, //
    },
};
use kernel::{
    error::from_result,
    prelude::*,
    str::CStr,
    types::Opaque, //
};

/// A driver whose devices users add and delete by name.
pub trait LinkDriver: Driver {
    /// What all devices share. Owned by the [`LinkOps`], and dropped after its last device.
    type Shared: Send + Sync;

    /// Adds a device: prepares what it needs and calls [`Device::register`].
    ///
    /// # Context
    ///
    /// Process, may sleep. Not serialised. May be called as soon as the [`LinkOps`] is made, before
    /// its constructor has returned.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is one already; any other.
    fn new_link(shared: &Self::Shared, name: &CStr, netdev: &NetDevice) -> Result;
}

/// A registered link type. It owns the devices of its driver: dropping it unregisters them all, and
/// waits until nothing is left of them. If a driver has several, the first one owns the devices, and its
/// `shared` is what all of them use.
///
/// It has to be dropped before the module's code goes, so it belongs into the module's structure; and
/// as it waits for the last [`ARef`] of each device, before anything that would keep one for good.
///
/// [`ARef`]: kernel::sync::aref::ARef
///
/// # Invariants
///
/// `ops` is in the core's list of link types and in the registry.
#[pin_data(PinnedDrop)]
#[repr(C)]
pub struct LinkOps<D: LinkDriver> {
    // First, so that `newlink` finds the rest.
    #[pin]
    ops: Opaque<bindings::rdma_link_ops>,
    shared: D::Shared,
    _driver: PhantomData<D>,
}

// SAFETY: Link types belong to no thread; `shared` is `Send`.
unsafe impl<D: LinkDriver> Send for LinkOps<D> {}

// SAFETY: A `&LinkOps` gives a `&D::Shared` at most, which is `Sync`.
unsafe impl<D: LinkDriver> Sync for LinkOps<D> {}

impl<D: LinkDriver> LinkOps<D> {
    /// Registers the link type with this name.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is one with this name, after a warning by the core; `ENOMEM`.
    pub fn new(name: &'static CStr, shared: D::Shared) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            shared: shared,
            ops <- Opaque::try_ffi_init(move |ops: *mut bindings::rdma_link_ops| {
                // SAFETY: `ops` is memory for the structure.
                unsafe {
                    ops.write(bindings::rdma_link_ops {
                        list: pin_init::zeroed(),
                        type_: name.as_char_ptr(),
                        newlink: Some(Self::newlink),
                        dellink: Some(Self::dellink),
                    })
                };
                // SAFETY: Only the address of the field is taken.
                let list = unsafe { &raw mut (*ops).list };
                // SAFETY: Written above. An empty list, to see whether it gets into another.
                unsafe { (*list).next = list };
                // SAFETY: As above.
                unsafe { (*list).prev = list };
                let link = NonNull::new(ops).ok_or(EINVAL)?;
                registry::open_link(TypeId::of::<D>(), link)?;
                // SAFETY: `ops` stays in place until it is dropped, which unregisters it.
                unsafe { bindings::rdma_link_register(ops) };
                // SAFETY: The core changes this only when neighbours in the list come and go.
                if addr_eq(unsafe { (&raw const (*list).next).read_volatile() }, list) {
                    // SAFETY: The list is an empty one, from which `ops` can be taken as well.
                    unsafe { close(link) };
                    return Err(EEXIST);
                }
                // INVARIANT: It is in both lists.
                Ok(())
            }),
            _driver: PhantomData,
        }? Error)
    }

    /// `rdma_link_ops.newlink`.
    ///
    /// # Safety
    ///
    /// As called by `nldev.c:nldev_newlink`: `name` ends with a nul, `netdev` is referenced.
    unsafe extern "C" fn newlink(
        name: *const kernel::ffi::c_char,
        netdev: *mut bindings::net_device,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `name` ends with a nul by the safety requirement.
            let name = unsafe { borrow(name) };
            let link = registry::link(TypeId::of::<D>()).ok_or(ENODEV)?;
            // SAFETY: By the type invariant of `LinkOps` and the `repr(C)`, the link types of `D` in the
            // registry are at the start of a `LinkOps<D>`. It stays: `nldev_newlink` holds the lock that
            // `close` takes after it has taken the link type off the registry.
            let this = unsafe { link.cast::<Self>().as_ref() };
            // SAFETY: `netdev` is referenced by the safety requirement.
            let netdev = unsafe { NetDevice::from_raw(netdev) };
            D::new_link(&this.shared, name, netdev)?;
            Ok(0)
        })
    }

    /// `rdma_link_ops.dellink`: a user deletes a device. There is nothing to do, the core unregisters it
    /// afterwards; until then its users take their connections down.
    extern "C" fn dellink(_ib: *mut bindings::ib_device) -> c_int {
        // An error would make the core forget to put its reference.
        0
    }
}

/// Borrows a string. Not inlined, so that its arithmetic, which can panic in theory, stays in this crate.
///
/// # Safety
///
/// `name` must end with a nul and stay for the lifetime `'a`.
#[inline(never)]
unsafe fn borrow<'a>(name: *const kernel::ffi::c_char) -> &'a CStr {
    // SAFETY: By the safety requirement.
    unsafe { CStr::from_char_ptr(name) }
}

/// Unregisters a link type: makes sure that nobody uses it, then removes its devices.
///
/// # Safety
///
/// `link` must have been added by [`registry::open_link`], and its `list` be in the core's list or an
/// empty one of its own.
unsafe fn close(link: NonNull<bindings::rdma_link_ops>) {
    // From here on, `newlink` (perhaps of another link type of the driver) does not find it any more.
    registry::retire_link(link);
    // SAFETY: By the safety requirement. Those that have found it are waited for, as they hold the lock
    // for reading (`nldev.c:link_ops_rwsem`).
    unsafe { bindings::rdma_link_unregister(link.as_ptr()) };
    registry::close_link(link);
}

#[pinned_drop]
impl<D: LinkDriver> PinnedDrop for LinkOps<D> {
    fn drop(self: Pin<&mut Self>) {
        if let Some(link) = NonNull::new(self.ops.get()) {
            // SAFETY: By the type invariant it is in both lists.
            unsafe { close(link) };
        }
    }
}
