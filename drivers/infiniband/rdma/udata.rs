// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a verb's arguments and answer.
//!
//! C header: [`include/rdma/uverbs_ioctl.h`](srctree/include/rdma/uverbs_ioctl.h).
//! In the tree this file would be `rust/kernel/rdma/udata.rs`.

use crate::bindings;
use kernel::{
    prelude::*,
    types::Opaque, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// What a user program passed to the driver along with a verb, and where it wants the answer.
///
/// # Invariants
///
/// The wrapped `ib_udata` is the driver's udata of a uverbs call that has not returned yet, and the
/// current task is the one that made the call.
#[repr(transparent)]
pub struct Udata(Opaque<bindings::ib_udata>);

impl Udata {
    /// Borrows the udata of the running call, if it was made by a user program.
    ///
    /// # Safety
    ///
    /// `ptr` must be null, or meet the type invariant for the lifetime `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_udata) -> Option<&'a Self> {
        // SAFETY: The caller promises that a pointer that is not null is valid for `'a`; the type is
        // transparent over `ib_udata`.
        unsafe { ptr.cast::<Self>().as_ref() }
    }

    /// Length of what the user program passed, in bytes.
    pub fn inlen(&self) -> usize {
        // SAFETY: By the type invariant the object is live; nobody writes to it during the call.
        unsafe { (*self.0.get()).inlen }
    }

    /// Length of the buffer for the answer, in bytes.
    pub fn outlen(&self) -> usize {
        // SAFETY: By the type invariant the object is live; nobody writes to it during the call.
        unsafe { (*self.0.get()).outlen }
    }

    /// Reads what the user program passed, once.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is shorter than `T`, `EOPNOTSUPP` if it is longer and what is beyond is not zero,
    /// `EFAULT` if it is not mapped.
    pub fn read<T: FromBytes + IntoBytes>(&self) -> Result<T> {
        let mut request = T::new_zeroed();
        let bytes = request.as_mut_bytes();
        let len = bytes.len();
        // SAFETY: By the type invariant this is the udata of the running call, as
        // `ib_core_uverbs.c:_ib_copy_validate_udata_in` needs; `bytes` is valid for writes of `len`.
        let ret = unsafe {
            bindings::_ib_copy_validate_udata_in(self.0.get(), bytes.as_mut_ptr().cast(), len, len)
        };
        kernel::error::to_result(ret)?;
        Ok(request)
    }

    /// Writes the answer. What is left of the user's buffer is cleared.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the user's buffer is too small for `answer`, `EFAULT` if it is not mapped.
    pub fn write<T: IntoBytes + Immutable>(&self, answer: &T) -> Result {
        let bytes = answer.as_bytes();
        if self.outlen() < bytes.len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant this is the udata of the running call, as
        // `ib_core_uverbs.c:_ib_respond_udata` needs; `bytes` is valid for reads of its length.
        let ret = unsafe {
            bindings::_ib_respond_udata(self.0.get(), bytes.as_ptr().cast(), bytes.len())
        };
        kernel::error::to_result(ret)
    }
}
