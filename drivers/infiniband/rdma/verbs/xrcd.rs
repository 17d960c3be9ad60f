// SPDX-License-Identifier: GPL-2.0

//! Domains of extended reliable connections: what shared receive queues and the queue pairs that may
//! fill them have in common, perhaps in several programs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/xrcd.rs`.

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

/// A domain of extended reliable connections.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `drv` is initialised.
#[repr(C)]
pub struct Xrcd<D: Driver> {
    ib: Part<bindings::ib_xrcd>,
    drv: D::Xrcd,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Xrcd<D> {
    type Raw = bindings::ib_xrcd;
    type Drv = D::Xrcd;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Xrcd<D> {
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
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Xrcd::<D>::init_drv(xrcd, D::alloc_xrcd(device)) }?;
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
        // SAFETY: This is the last call for this object.
        unsafe { Xrcd::<D>::drop_in_place(xrcd) };
        0
    }
}
