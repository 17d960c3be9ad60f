// SPDX-License-Identifier: GPL-2.0

//! Domains of extended reliable connections: what shared receive queues and the queue pairs that may
//! fill them have in common, perhaps in several programs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/xrcd.rs`.

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*,
    types::Opaque, //
};

/// A domain of extended reliable connections.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `drv` is initialised.
#[repr(C)]
pub struct Xrcd<D: Driver> {
    ib: Opaque<bindings::ib_xrcd>,
    drv: D::Xrcd,
}

// SAFETY: Domains belong to no thread; `drv` is `Send`.
unsafe impl<D: Driver> Send for Xrcd<D> {}

// SAFETY: `&self` reads only what does not change; `drv` is `Sync`.
unsafe impl<D: Driver> Sync for Xrcd<D> {}

impl<D: Driver> Xrcd<D> {
    /// Borrows a domain.
    ///
    /// # Safety
    ///
    /// `ptr` must be null, or a live domain of driver `D` for the lifetime `'a`, whose creation
    /// succeeded.
    pub(super) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_xrcd) -> Option<&'a Self> {
        // SAFETY: The core allocated `size_of::<Self>()` bytes with the `ib_xrcd` at the start.
        unsafe { ptr.cast::<Self>().as_ref() }
    }

    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Xrcd {
        &self.drv
    }

    /// A number that no other domain has while this one lives.
    pub fn id(&self) -> usize {
        self.ib.get().addr()
    }
}

/// The thunks for domains.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.alloc_xrcd`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_alloc_xrcd_user`: `xrcd` is zeroed memory of `size_ib_xrcd` bytes with
    /// `device` set.
    pub(super) unsafe extern "C" fn alloc(
        xrcd: *mut bindings::ib_xrcd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set `device`, to one of this driver.
            let device = unsafe { Device::<D>::from_raw((*xrcd).device) };
            // SAFETY: Only the address of the field is taken.
            let drv = unsafe { &raw mut (*xrcd.cast::<Xrcd<D>>()).drv };
            // SAFETY: `drv` is uninitialised memory that C does not move and, on failure, frees.
            unsafe { pin_init::raw_try_init(drv, D::alloc_xrcd(device)) }?;
            Ok(0)
        })
    }

    /// `ib_device_ops.dealloc_xrcd`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_dealloc_xrcd_user`: `xrcd` is live, nothing is in it any more, and it
    /// is freed afterwards.
    pub(super) unsafe extern "C" fn dealloc(
        xrcd: *mut bindings::ib_xrcd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: Only the address of the field is taken.
        let drv = unsafe { &raw mut (*xrcd.cast::<Xrcd<D>>()).drv };
        // SAFETY: It was initialised by `alloc`, and this is the last call for this object.
        unsafe { core::ptr::drop_in_place(drv) };
        0
    }
}
