// SPDX-License-Identifier: GPL-2.0

//! What objects have in common that C's core knows: its part comes first, the driver's part is behind it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/object.rs`.

use kernel::{
    prelude::*,
    types::Opaque, //
};

/// C's part of an object.
#[repr(transparent)]
pub(super) struct Part<T>(Opaque<T>);

// SAFETY: C's objects belong to no thread.
unsafe impl<T> Send for Part<T> {}

// SAFETY: A shared reference gives the address only; whoever reads there says why that is right.
unsafe impl<T> Sync for Part<T> {}

impl<T> Part<T> {
    /// One of zeroes.
    pub(super) fn zeroed() -> Self {
        Self(Opaque::zeroed())
    }

    /// Where it is.
    #[inline]
    pub(super) fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// An object with a part of C's and one of the driver's.
///
/// # Safety
///
/// The type must be `repr(C)` and start with a [`Part`] of `Raw`; `DRV` must be the offset of a field of
/// type `Drv` in it. Where the core allocates objects, it must do so with room for all of it.
pub(super) unsafe trait Object: Sized {
    /// C's part.
    type Raw;
    /// The driver's part.
    type Drv;
    /// Where the driver's part is, in bytes from the start.
    const DRV: usize;

    /// Borrows an object.
    ///
    /// # Safety
    ///
    /// `raw` must be a live object of this type for the lifetime `'a`, whose creation succeeded.
    #[inline]
    unsafe fn from_raw<'a>(raw: *mut Self::Raw) -> &'a Self {
        // SAFETY: C's part is at the start of the object, and that is live by the safety requirement.
        unsafe { &*raw.cast() }
    }

    /// Borrows an object, unless `raw` is null.
    ///
    /// # Safety
    ///
    /// If `raw` is not null, as for [`Self::from_raw`].
    #[inline]
    unsafe fn from_nullable<'a>(raw: *mut Self::Raw) -> Option<&'a Self> {
        // SAFETY: As in `from_raw`.
        unsafe { raw.cast::<Self>().as_ref() }
    }

    /// Initialises the driver's part.
    ///
    /// # Safety
    ///
    /// `raw` must be the start of memory for the object, which nobody else uses yet, and which is not moved
    /// before [`Self::drop_in_place`]. If this fails, that must not be called.
    unsafe fn init_drv(raw: *mut Self::Raw, init: impl PinInit<Self::Drv, Error>) -> Result {
        let drv = raw.wrapping_byte_add(Self::DRV).cast();
        // SAFETY: A field of memory that is ours by the safety requirement, and does not move.
        unsafe { pin_init::raw_try_init(drv, init) }
    }

    /// Drops all but C's part.
    ///
    /// # Safety
    ///
    /// It must have been initialised, nobody may use it any more, and this is called once.
    unsafe fn drop_in_place(raw: *mut Self::Raw) {
        // SAFETY: By the safety requirement; C's part is at the start, and dropping that does nothing.
        unsafe { core::ptr::drop_in_place(raw.cast::<Self>()) }
    }
}
