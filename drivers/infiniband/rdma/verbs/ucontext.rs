// SPDX-License-Identifier: GPL-2.0

//! User contexts: one for each time that a program opens the device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/ucontext.rs`.

use super::{
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
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// A user context.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `space` and `drv` are initialised.
#[repr(C)]
pub struct Ucontext<D: Driver> {
    ib: Opaque<bindings::ib_ucontext>,
    space: Arc<Space>,
    drv: D::Ucontext,
}

// SAFETY: User contexts belong to no thread; `drv` is `Send`.
unsafe impl<D: Driver> Send for Ucontext<D> {}

// SAFETY: `&self` reads only what does not change, or has a lock; `drv` is `Sync`.
unsafe impl<D: Driver> Sync for Ucontext<D> {}

impl<D: Driver> Ucontext<D> {
    /// Borrows a user context.
    ///
    /// # Safety
    ///
    /// `ptr` must be null, or a live user context of driver `D` for the lifetime `'a`, whose creation
    /// succeeded.
    pub(super) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_ucontext) -> Option<&'a Self> {
        // SAFETY: The core allocated `size_of::<Self>()` bytes with the `ib_ucontext` at the start.
        unsafe { ptr.cast::<Self>().as_ref() }
    }

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
        unsafe { Self::from_raw(context) }
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
            // SAFETY: Only the address of the field is taken.
            let drv = unsafe { &raw mut (*this).drv };
            // SAFETY: `drv` is uninitialised memory that C does not move and, on failure, frees.
            unsafe { pin_init::raw_try_init(drv, D::alloc_ucontext(device)) }?;
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
        let this = context.cast::<Ucontext<D>>();
        // SAFETY: Only the address of the field is taken.
        let drv = unsafe { &raw mut (*this).drv };
        // SAFETY: It was initialised by `alloc`, and this is the last call for this object.
        unsafe { core::ptr::drop_in_place(drv) };
        // SAFETY: As above; this takes the value out.
        let space = unsafe { (&raw const (*this).space).read() };
        space.close();
    }

    /// `ib_device_ops.disassociate_ucontext`: present so that the device can be removed while
    /// programs have it open. Their objects are destroyed by the core.
    ///
    /// # Safety
    ///
    /// None: the argument is not used.
    pub(super) unsafe extern "C" fn disassociate(_context: *mut bindings::ib_ucontext) {}
}
