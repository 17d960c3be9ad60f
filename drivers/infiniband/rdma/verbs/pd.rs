// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/pd.rs`.

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

/// A protection domain.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `drv` is initialised.
#[repr(C)]
pub struct Pd<D: Driver> {
    ib: Opaque<bindings::ib_pd>,
    drv: D::Pd,
}

// SAFETY: Protection domains belong to no thread; `drv` is `Send`.
unsafe impl<D: Driver> Send for Pd<D> {}

// SAFETY: `&self` reads only what does not change; `drv` is `Sync`.
unsafe impl<D: Driver> Sync for Pd<D> {}

impl<D: Driver> Pd<D> {
    /// Borrows a protection domain.
    ///
    /// # Safety
    ///
    /// `ptr` must be a live protection domain of driver `D` for the lifetime `'a`, whose creation
    /// succeeded.
    pub(super) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_pd) -> &'a Self {
        // SAFETY: The core allocated `size_of::<Self>()` bytes with the `ib_pd` at the start.
        unsafe { &*ptr.cast() }
    }

    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Pd {
        &self.drv
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: By the type invariant; the device outlives its protection domains.
        unsafe { Device::from_raw((*self.ib.get()).device) }
    }

    /// A number that no other protection domain has while this one lives.
    pub fn id(&self) -> usize {
        self.ib.get().addr()
    }
}

/// The thunks for protection domains.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.alloc_pd`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:__ib_alloc_pd` and `uverbs_cmd.c:ib_uverbs_alloc_pd`: `pd` is zeroed
    /// memory of `size_ib_pd` bytes with `device` set.
    pub(super) unsafe extern "C" fn alloc(
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set `device`, to one of this driver.
            let device = unsafe { Device::<D>::from_raw((*pd).device) };
            // SAFETY: Only the address of the field is taken.
            let drv = unsafe { &raw mut (*pd.cast::<Pd<D>>()).drv };
            // SAFETY: `drv` is uninitialised memory that C does not move and, on failure, frees.
            unsafe { pin_init::raw_try_init(drv, D::alloc_pd(device)) }?;
            Ok(0)
        })
    }

    /// `ib_device_ops.dealloc_pd`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_dealloc_pd_user`: `pd` is live and freed afterwards.
    pub(super) unsafe extern "C" fn dealloc(
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: Only the address of the field is taken.
        let drv = unsafe { &raw mut (*pd.cast::<Pd<D>>()).drv };
        // SAFETY: It was initialised by `alloc`, and this is the last call for this object.
        unsafe { core::ptr::drop_in_place(drv) };
        0
    }
}
