// SPDX-License-Identifier: GPL-2.0

//! All devices of this module: who has to be gone before its code is.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/registry.rs`.
//!
//! `ib_unregister_driver()` would unregister all devices with the same driver number, also those of
//! another module that serves the same user space driver. So this module keeps a list of its own.
//!
//! # Lifetimes
//!
//! An entry holds a reference to the `struct device`, so that its memory stays. It is added before the
//! device is registered and removed, under [`REGISTERING`], when nothing of the device is left:
//!
//! - `dealloc_driver`, the last call of the core, has been made (`dead`) and has returned, for which
//!   `ib_unregister_device()` on an unregistered device waits: it takes the lock that the other
//!   unregistration holds;
//! - the driver's part has been dropped, with the last `ARef`.
//!
//! # Locks
//!
//! [`REGISTERING`] is taken first, and held while a device is registered, or all are unregistered. It
//! is never taken under RTNL, which registration takes. [`REGISTRY`] is innermost.

use super::device::Head;
use crate::bindings;
use core::{
    any::TypeId,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        global_lock,
        GlobalGuard, //
    },
};

global_lock! {
    // SAFETY: Initialised by `init`, which all users have called, or have checked `STATE`.
    unsafe(uninit) static REGISTERING: Mutex<()> = ();
}

global_lock! {
    // SAFETY: As above.
    unsafe(uninit) static REGISTRY: Mutex<Registry> = Registry {
        links: KVec::new(),
        entries: KVec::new(),
    };
}

/// The locks are: 0 not initialised, 1 being initialised, 2 initialised.
static STATE: Atomic<u32> = Atomic::new(0);

/// A link type whose owner unregisters devices.
struct Link {
    kind: TypeId,
    ops: NonNull<bindings::rdma_link_ops>,
}

/// A device.
struct Entry {
    kind: TypeId,
    head: NonNull<Head>,
    link: NonNull<bindings::rdma_link_ops>,
    /// For comparison only, while not `dead`.
    netdev: *const bindings::net_device,
    /// `dealloc_driver` was called.
    dead: bool,
}

/// # Invariants
///
/// For each of `entries`, a reference to the `struct device` at its `head` is owned.
struct Registry {
    links: KVec<Link>,
    entries: KVec<Entry>,
}

// SAFETY: Neither links nor devices belong to a thread.
unsafe impl Send for Registry {}

/// Proof that no other device is being registered.
pub(crate) struct Registering(#[expect(dead_code, reason = "a guard")] GlobalGuard<REGISTERING>);

/// Initialises the locks, once.
fn init() -> Result {
    match STATE.cmpxchg(0, 1, Full) {
        Ok(_) => {
            // SAFETY: Only one thread ever gets from 0 to 1.
            unsafe { REGISTERING.init() };
            // SAFETY: As above.
            unsafe { REGISTRY.init() };
            STATE.store(2, Release);
            Ok(())
        }
        Err(2) => Ok(()),
        Err(_) => Err(EBUSY),
    }
}

/// Begins a registration, and forgets what is left of devices that have gone.
///
/// # Errors
///
/// `ENODEV` if there has never been a link type.
pub(super) fn begin() -> Result<Registering> {
    if STATE.load(Acquire) != 2 {
        return Err(ENODEV);
    }
    let registering = Registering(REGISTERING.lock());
    reap(&registering);
    Ok(registering)
}

/// Adds a link type, whose owner must call [`retire_link`] and [`close_link`].
pub(crate) fn open_link(kind: TypeId, ops: NonNull<bindings::rdma_link_ops>) -> Result {
    init()?;
    REGISTRY.lock().links.push(Link { kind, ops }, GFP_KERNEL)?;
    Ok(())
}

/// A link type of a driver. It stays as long as the core keeps it from being unregistered.
pub(crate) fn link(kind: TypeId) -> Option<NonNull<bindings::rdma_link_ops>> {
    if STATE.load(Acquire) != 2 {
        return None;
    }
    let registry = REGISTRY.lock();
    let link = registry.links.iter().find(|link| link.kind == kind)?;
    Some(link.ops)
}

/// The link type that will own new devices of a driver; makes room for one in the list.
///
/// # Errors
///
/// `ENODEV` if there is none; `EEXIST` if `netdev` has a device already; `ENOMEM`.
pub(super) fn prepare(
    _registering: &Registering,
    kind: TypeId,
    netdev: *const bindings::net_device,
) -> Result<NonNull<bindings::rdma_link_ops>> {
    let mut registry = REGISTRY.lock();
    let link = registry.links.iter().find(|link| link.kind == kind);
    let ops = link.ok_or(ENODEV)?.ops;
    if registry.find(kind, netdev).is_some() {
        return Err(EEXIST);
    }
    registry.entries.reserve(1, GFP_KERNEL)?;
    Ok(ops)
}

/// Adds a device. There is room for it if [`prepare`] was called under the same `Registering`.
///
/// # Safety
///
/// `head` must be a device of the driver `kind`, to whose `struct device` a reference is handed over.
pub(super) unsafe fn add(
    _registering: &Registering,
    kind: TypeId,
    head: NonNull<Head>,
    link: NonNull<bindings::rdma_link_ops>,
    netdev: *const bindings::net_device,
) {
    let entry = Entry {
        kind,
        head,
        link,
        netdev,
        dead: false,
    };
    // INVARIANT: By the safety requirement. Entries are only added under `REGISTERING`.
    let _ = REGISTRY.lock().entries.push_within_capacity(entry);
}

/// Marks a device whose `dealloc_driver` runs.
pub(super) fn mark_dead(head: *const Head) {
    let mut registry = REGISTRY.lock();
    for entry in registry.entries.iter_mut() {
        if core::ptr::eq(entry.head.as_ptr(), head) {
            entry.dead = true;
        }
    }
}

/// Takes a registration reference (`ib_device_put()`) to the device on `netdev`, if it is registered.
pub(super) fn get_by_netdev(
    kind: TypeId,
    netdev: *const bindings::net_device,
) -> Option<NonNull<Head>> {
    if STATE.load(Acquire) != 2 {
        return None;
    }
    let registry = REGISTRY.lock();
    let head = registry.find(kind, netdev)?.head;
    // SAFETY: By the invariant of `Registry` the memory of the device is referenced.
    unsafe { bindings::ib_device_try_get(head.cast().as_ptr()) }.then_some(head)
}

impl Registry {
    /// Frees the memory of empty lists: nothing is dropped of a static when the module goes.
    fn give_up_memory(&mut self) {
        if self.links.is_empty() {
            self.links = KVec::new();
        }
        if self.entries.is_empty() {
            self.entries = KVec::new();
        }
    }

    fn find(&self, kind: TypeId, netdev: *const bindings::net_device) -> Option<&Entry> {
        let same = |e: &&Entry| !e.dead && e.kind == kind && core::ptr::eq(e.netdev, netdev);
        self.entries.iter().find(same)
    }
}

/// Waits until `dealloc_driver` of a device has returned, unregistering the device if need be.
///
/// # Safety
///
/// A reference to the `struct device` at `head` must be held.
unsafe fn unregister(head: NonNull<Head>) {
    // SAFETY: `device.c:ib_unregister_device` needs a device in memory. If it is not registered, this
    // only waits for who unregisters it, as in `ib_unregister_driver`.
    unsafe { bindings::ib_unregister_device(head.cast().as_ptr()) };
}

/// Puts the reference of an entry that was taken off the list.
///
/// # Safety
///
/// The entry's reference must be handed over.
unsafe fn put(head: NonNull<Head>) {
    let ib = head.cast::<bindings::ib_device>().as_ptr();
    // SAFETY: Only the address of the field is taken.
    let dev = unsafe { &raw mut (*ib).__bindgen_anon_1.dev }.cast();
    // SAFETY: By the safety requirement.
    unsafe { bindings::put_device(dev) };
}

/// Takes those devices off the list of which nothing is left.
pub(super) fn reap(_registering: &Registering) {
    loop {
        let mut registry = REGISTRY.lock();
        let gone = registry.entries.iter().position(|entry| {
            // SAFETY: By the invariant of `Registry` the memory of the device is referenced.
            entry.dead && unsafe { entry.head.as_ref() }.is_released()
        });
        let Some(Ok(entry)) = gone.map(|index| registry.entries.remove(index)) else {
            return;
        };
        drop(registry);
        // SAFETY: The reference of the entry is held until `put`.
        unsafe { unregister(entry.head) };
        // SAFETY: The entry is off the list.
        unsafe { put(entry.head) };
    }
}

/// Takes a link type off the list: it gets no new devices, but from a registration that has begun.
pub(crate) fn retire_link(ops: NonNull<bindings::rdma_link_ops>) {
    // Opened, so the lock is initialised.
    let mut registry = REGISTRY.lock();
    // Not `retain`: its bounds checks are not always optimised away, and nothing here may panic.
    if let Some(at) = registry.links.iter().position(|link| link.ops == ops) {
        // It is there, so this is no error.
        let _ = registry.links.remove(at);
    }
    registry.give_up_memory();
}

/// Unregisters all devices of a retired link type and waits until nothing of them is left.
pub(crate) fn close_link(ops: NonNull<bindings::rdma_link_ops>) {
    // Waits for a registration that has begun. Opened, so the lock is initialised.
    let registering = Registering(REGISTERING.lock());
    loop {
        let registry = REGISTRY.lock();
        let Some(entry) = registry.entries.iter().find(|entry| entry.link == ops) else {
            break;
        };
        let head = entry.head;
        drop(registry);
        // Entries are only removed under `REGISTERING`, so this one stays.
        // SAFETY: The reference of the entry is held.
        unsafe { unregister(head) };
        // SAFETY: As above.
        unsafe { head.as_ref() }.wait_released();
        // As in `retire_link`: no `retain`.
        let mut registry = REGISTRY.lock();
        if let Some(at) = registry.entries.iter().position(|entry| entry.head == head) {
            let _ = registry.entries.remove(at);
        }
        registry.give_up_memory();
        drop(registry);
        // SAFETY: The entry is off the list.
        unsafe { put(head) };
    }
    drop(registering);
}
