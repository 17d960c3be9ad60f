// SPDX-License-Identifier: GPL-2.0

//! What happens to network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)
//!
//! Would become `rust/kernel/net/notifier.rs`.

use crate::{
    bindings,
    net::NetDevice, //
};
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_ulong,
        c_void, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    types::Opaque, //
};

/// Something that happened to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetdevEvent {
    /// It is being unregistered, or moved to another namespace. Let go of it.
    ///
    /// Comes again every second for as long as somebody, maybe the one who is told, has a reference
    /// on it (`netdev_wait_allrefs_any`, net/core/dev.c).
    Unregister,
    /// It was brought up.
    Up,
    /// It was taken down.
    Down,
    /// Its state, such as the carrier, has changed.
    Change,
    /// Its MTU has changed.
    ChangeMtu,
    /// Its link-layer address has changed.
    ChangeAddr,
    /// It has another name.
    ChangeName,
}

impl NetdevEvent {
    /// The event of that number, if it is one that is passed on.
    fn from_raw(event: c_ulong) -> Option<Self> {
        Some(match u32::try_from(event).ok()? {
            bindings::netdev_cmd_NETDEV_UNREGISTER => Self::Unregister,
            bindings::netdev_cmd_NETDEV_UP => Self::Up,
            bindings::netdev_cmd_NETDEV_DOWN => Self::Down,
            bindings::netdev_cmd_NETDEV_CHANGE => Self::Change,
            bindings::netdev_cmd_NETDEV_CHANGEMTU => Self::ChangeMtu,
            bindings::netdev_cmd_NETDEV_CHANGEADDR => Self::ChangeAddr,
            bindings::netdev_cmd_NETDEV_CHANGENAME => Self::ChangeName,
            _ => return None,
        })
    }
}

/// Who is told.
pub trait NetdevEvents: 'static {
    /// `event` happened to `dev`, in whatever namespace that is.
    ///
    /// # Context
    ///
    /// Process context, may sleep. The RTNL is held, and maybe the lock of the device: nothing may
    /// be called that takes one of them, nothing waited for that needs them.
    fn event(event: NetdevEvent, dev: &NetDevice);
}

/// # Invariants
///
/// `block` is registered, with `Inner::callback` as its function.
#[pin_data]
#[repr(C)]
struct Inner {
    // First, so that the callback finds the rest.
    #[pin]
    block: Opaque<bindings::notifier_block>,
    /// Whether events are passed on: not those that registering and unregistering make up for each
    /// existing device.
    active: Atomic<bool>,
}

/// A registration for the events of all network devices.
///
/// Only what happens after [`Notifier::register`] has returned and before the value is dropped is
/// reported. After the drop
/// [`NetdevEvents::event`] neither runs nor is called.
pub struct Notifier<T: NetdevEvents> {
    inner: Pin<KBox<Inner>>,
    _events: PhantomData<fn() -> T>,
}

// SAFETY: Notifiers may be unregistered from any thread.
unsafe impl<T: NetdevEvents> Send for Notifier<T> {}

// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: NetdevEvents> Sync for Notifier<T> {}

impl<T: NetdevEvents> Notifier<T> {
    /// Starts to report.
    ///
    /// # Context
    ///
    /// Process context, may sleep; takes the RTNL.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn register() -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(Inner {
                block: Opaque::new(bindings::notifier_block {
                    notifier_call: Some(Self::callback),
                    next: core::ptr::null_mut(),
                    priority: 0,
                }),
                active: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block is initialised, pinned, and lives until `drop` has unregistered it.
        to_result(unsafe { bindings::register_netdevice_notifier(inner.block.get()) })?;
        inner.active.store(true, Relaxed);
        // INVARIANT: Registered just now.
        Ok(Self {
            inner,
            _events: PhantomData,
        })
    }

    /// # Safety
    ///
    /// To be called by the notifier chain only, with the block of an [`Inner`].
    unsafe extern "C" fn callback(
        block: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        const DONE: c_int = bindings::NOTIFY_DONE as c_int;
        // SAFETY: The block is the first field of a `repr(C)` `Inner`, which lives while it is
        // registered (type invariant).
        let inner = unsafe { &*block.cast::<Inner>() };
        let Some(event) = NetdevEvent::from_raw(event) else {
            return DONE;
        };
        if !inner.active.load(Relaxed) {
            return DONE;
        }
        // SAFETY: The argument of every netdevice notifier starts with a `struct
        // netdev_notifier_info` (include/linux/netdevice.h).
        let dev = unsafe { (*info.cast::<bindings::netdev_notifier_info>()).dev };
        // SAFETY: The caller of the chain holds the device for as long as the call lasts.
        T::event(event, unsafe { NetDevice::from_raw(dev) });
        DONE
    }
}

impl<T: NetdevEvents> Drop for Notifier<T> {
    /// # Context
    ///
    /// Process context, may sleep; takes the RTNL.
    fn drop(&mut self) {
        self.inner.active.store(false, Relaxed);
        // SAFETY: By the type invariant the block is registered. The call fails only if it is not,
        // and waits for running callbacks (it takes the RTNL, which they hold).
        unsafe { bindings::unregister_netdevice_notifier(self.inner.block.get()) };
    }
}
