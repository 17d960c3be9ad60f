// SPDX-License-Identifier: GPL-2.0

//! User contexts: one for each time that a program opens the device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/ucontext.rs`.

use super::{
    object::{
        Object,
        Part, //
    },
    Device,
    Driver, //
};
use crate::{
    bindings,
    mmap::{
        MmapEntry,
        Space, //
    },
    shared_memory::SharedMemory, //
};
use core::{
    marker::PhantomData,
    mem::offset_of, //
};
use kernel::{
    error::from_result,
    prelude::*,
    sync::Arc, //
};

/// A user context.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `space` and `drv` are initialised.
#[repr(C)]
pub struct Ucontext<D: Driver> {
    ib: Part<bindings::ib_ucontext>,
    space: Arc<Space>,
    drv: D::Ucontext,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Ucontext<D> {
    type Raw = bindings::ib_ucontext;
    type Drv = D::Ucontext;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Ucontext<D> {
    /// The user context of a call, if it is a user's.
    ///
    /// # Safety
    ///
    /// `udata` must be null, or the driver's udata in the attributes of a running uverbs call on a
    /// device of driver `D`.
    pub(super) unsafe fn from_udata<'a>(udata: *mut bindings::ib_udata) -> Option<&'a Self> {
        if udata.is_null() {
            return None;
        }
        // SAFETY: `ib_verbs.h:rdma_udata_to_uverbs_attr_bundle` needs what the caller promises.
        let context = unsafe { bindings::rdma_udata_to_ucontext(udata) };
        // SAFETY: The context of a running call stays; it is of the device's driver.
        unsafe { Self::from_nullable(context) }
    }

    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Ucontext {
        &self.drv
    }

    /// Gives `memory` an offset at which the user program can map it.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if there are no offsets left.
    pub fn map(&self, memory: Arc<SharedMemory>) -> Result<MmapEntry> {
        self.space.clone().insert(memory)
    }
}

/// The thunks for user contexts.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.alloc_ucontext`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_cmd.c:ib_init_ucontext`: `context` is zeroed memory of
    /// `size_ib_ucontext` bytes with `device` set, which stays until `dealloc`.
    pub(super) unsafe extern "C" fn alloc(
        context: *mut bindings::ib_ucontext,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set `device`, to one of this driver.
            let device = unsafe { Device::<D>::from_raw((*context).device) };
            // SAFETY: `dealloc` calls `Space::close`; until then `context` stays. If this fails
            // below, the space is dropped unused.
            let space = unsafe { Space::new(context) }?;
            let this = context.cast::<Ucontext<D>>();
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Ucontext::<D>::init_drv(context, D::alloc_ucontext(device)) }?;
            // SAFETY: `space` is a field of the memory that C allocated, uninitialised.
            unsafe { (&raw mut (*this).space).write(space) };
            Ok(0)
        })
    }

    /// `ib_device_ops.dealloc_ucontext`.
    ///
    /// # Safety
    ///
    /// As called by `rdma_core.c:ufile_destroy_ucontext`: `context` is live and freed afterwards; its
    /// objects have been destroyed.
    pub(super) unsafe extern "C" fn dealloc(context: *mut bindings::ib_ucontext) {
        // SAFETY: `context` is live by the safety requirement.
        unsafe { Ucontext::<D>::from_raw(context) }.space.close();
        // SAFETY: This is the last call for this object.
        unsafe { Ucontext::<D>::drop_in_place(context) };
    }

    /// `ib_device_ops.disassociate_ucontext`: present so that the device can be removed while
    /// programs have it open. Their objects are destroyed by the core.
    ///
    /// # Safety
    ///
    /// None: the argument is not used.
    pub(super) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
}
