// SPDX-License-Identifier: GPL-2.0

//! Memory windows.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/mw.rs`.
//!
//! Only user programs have memory windows. They are bound by work requests.

use super::{
    object::{
        Object,
        Part, //
    },
    Device,
    Driver,
    Pd, //
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

/// Kind of a memory window; C: `enum ib_mw_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MwKind {
    /// Of the protection domain.
    Type1,
    /// Of the queue pair that binds it.
    Type2,
}

/// A window that a driver made.
pub struct NewMw<I> {
    /// Its first key.
    pub rkey: u32,
    /// Initialises the driver's part.
    pub init: I,
}

/// A memory window.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device and a protection domain of driver `D`; `drv` is
/// initialised.
#[repr(C)]
pub struct Mw<D: Driver> {
    ib: Part<bindings::ib_mw>,
    drv: D::Mw,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Mw<D> {
    type Raw = bindings::ib_mw;
    type Drv = D::Mw;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Mw<D> {
    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Mw {
        &self.drv
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: By the type invariant; the device outlives its memory windows.
        unsafe { Device::from_raw((*self.ib.get()).device) }
    }
}

/// The thunks for memory windows.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.alloc_mw`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_cmd.c:ib_uverbs_alloc_mw`: `mw` is zeroed memory of `size_ib_mw` bytes with
    /// `device`, `pd` and `type` set.
    pub(super) unsafe extern "C" fn alloc(
        mw: *mut bindings::ib_mw,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `mw` is valid by the safety requirement.
            let kind = match unsafe { (*mw).type_ } {
                bindings::ib_mw_type_IB_MW_TYPE_1 => MwKind::Type1,
                bindings::ib_mw_type_IB_MW_TYPE_2 => MwKind::Type2,
                _ => return Err(EINVAL),
            };
            // SAFETY: The core has set `pd`, to a live one of this driver.
            let pd = unsafe { Pd::<D>::from_raw((*mw).pd) };
            let NewMw { rkey, init } = D::alloc_mw(pd, kind)?;
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Mw::<D>::init_drv(mw, init) }?;
            // SAFETY: `mw` is valid and exclusive by the safety requirement.
            unsafe { (*mw).rkey = rkey };
            Ok(0)
        })
    }

    /// `ib_device_ops.dealloc_mw`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_std_types.c:uverbs_free_mw`: `mw` is live, and freed afterwards.
    pub(super) unsafe extern "C" fn dealloc(mw: *mut bindings::ib_mw) -> c_int {
        // SAFETY: `mw` is live by the safety requirement.
        D::dealloc_mw(unsafe { Mw::<D>::from_raw(mw) });
        // SAFETY: This is the last call for this object.
        unsafe { Mw::<D>::drop_in_place(mw) };
        0
    }
}
