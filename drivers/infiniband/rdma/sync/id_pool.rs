// SPDX-License-Identifier: GPL-2.0

//! Numbers that are handed out and taken back.
//!
//! C header: [`include/linux/idr.h`](srctree/include/linux/idr.h)
//!
//! Would become `rust/kernel/sync/id_pool.rs`, next to `rust/kernel/id_pool.rs`, which hands out
//! the lowest free number: here a number that was given back comes round again as late as possible,
//! so that a stale packet or a stale key does not meet a new owner.

use crate::{
    bindings,
    new_spinlock_irqsave,
    sync::SpinLockIrqSave, //
};
use core::ops::Range;
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// An initialised `struct idr`, used through a mutable reference only.
struct Idr(Opaque<bindings::idr>);

// SAFETY: A `struct idr` is not bound to a CPU or a thread, and holds no pointers but to its own
// nodes.
unsafe impl Send for Idr {}

impl Idr {
    fn new(cursor: u32) -> impl PinInit<Self> {
        let init = move |slot: *mut Self| {
            let idr: *mut bindings::idr = Opaque::cast_into(slot.cast());
            // SAFETY: `idr_init` initialises all of the memory that it is given, and cannot fail.
            unsafe { bindings::idr_init(idr) };
            // SAFETY: Just initialised, and nobody else has it yet (`idr.h:idr_set_cursor`).
            unsafe { (*idr).idr_next = cursor };
        };
        // SAFETY: The closure initialises the slot: `Idr` is nothing but the `Opaque<idr>`.
        unsafe {
            pin_init::pin_init_from_closure(move |slot| {
                init(slot);
                Ok(())
            })
        }
    }
}

impl Drop for Idr {
    fn drop(&mut self) {
        // SAFETY: `self.0` was initialised in `new`, and the exclusive reference stands for the
        // lock that `idr_destroy` (lib/radix-tree.c) wants.
        unsafe { bindings::idr_destroy(self.0.get()) };
    }
}

/// A pool of numbers.
///
/// # Examples
///
/// ```
/// let id = pool.alloc(1..1 << 24)?;
/// pool.free(id);
/// ```
#[pin_data]
pub struct IdPool {
    #[pin]
    idr: SpinLockIrqSave<Idr>,
}

impl IdPool {
    /// Creates a pool with every number free.
    pub fn new() -> impl PinInit<Self> {
        Self::starting_at(0)
    }

    /// The same, but the first number that is taken is `first`, or the start of the range if that is
    /// greater. A random one keeps the owners of two pools apart that live one after the other.
    pub fn starting_at(first: u32) -> impl PinInit<Self> {
        pin_init!(Self {
            idr <- new_spinlock_irqsave!(Idr::new(first), "IdPool::idr"),
        })
    }

    /// Takes the next free number of `range` after the one that was taken last, starting over at
    /// its end.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `ENOSPC` when all are taken, `ENOMEM`, `EINVAL` for an empty range or one beyond `i32::MAX`.
    pub fn alloc(&self, range: Range<u32>) -> Result<u32> {
        let start = i32::try_from(range.start).map_err(|_| EINVAL)?;
        let end = i32::try_from(range.end).map_err(|_| EINVAL)?;
        if start >= end {
            return Err(EINVAL);
        }
        let mut guard = self.idr.lock();
        let idr = Self::raw(guard.as_mut());
        // SAFETY: `idr` is initialised, and the lock that `idr_alloc_cyclic` (lib/idr.c) wants is
        // held. It stores the null pointer and never follows it.
        let id = unsafe {
            bindings::idr_alloc_cyclic(
                idr,
                core::ptr::null_mut(),
                start,
                end,
                bindings::GFP_ATOMIC | bindings::__GFP_NOWARN,
            )
        };
        drop(guard);
        u32::try_from(id).map_err(|_| to_result(id).err().unwrap_or(EINVAL))
    }

    /// Gives `id` back. A number that is not taken is ignored.
    ///
    /// # Context
    ///
    /// Any.
    pub fn free(&self, id: u32) {
        let mut guard = self.idr.lock();
        let idr = Self::raw(guard.as_mut());
        // SAFETY: `idr` is initialised, and the lock that `idr_remove` (lib/idr.c) wants is held.
        unsafe { bindings::idr_remove(idr, id as usize) };
    }

    fn raw(idr: Pin<&mut Idr>) -> *mut bindings::idr {
        // The `Opaque` gives the address without moving out of the pin.
        idr.into_ref().get_ref().0.get()
    }
}
