// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/pd.rs`.

use super::{
    object::{
        Object,
        Part, //
    },
    Device,
    Driver, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    mem::offset_of, //
};
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A protection domain.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `drv` is initialised.
#[repr(C)]
pub struct Pd<D: Driver> {
    ib: Part<bindings::ib_pd>,
    drv: D::Pd,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Pd<D> {
    type Raw = bindings::ib_pd;
    type Drv = D::Pd;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Pd<D> {
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
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Pd::<D>::init_drv(pd, D::alloc_pd(device)) }?;
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
        // SAFETY: This is the last call for this object.
        unsafe { Pd::<D>::drop_in_place(pd) };
        0
    }
}
