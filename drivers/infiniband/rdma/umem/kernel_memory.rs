// SPDX-License-Identifier: GPL-2.0

//! The kernel's memory, in regions of kernel users.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`ib_dma_map_*`).
//! In the tree this file would be `rust/kernel/rdma/umem/kernel_memory.rs`.

use crate::{
    bindings,
    umem::SharedBytes, //
};
use kernel::{
    prelude::*,
    sync::atomic::Atomic, //
};

/// The kernel's memory, as kernel users of the device name it in scatter/gather elements.
///
/// A device without a DMA device gets kernel virtual addresses from `ib_dma_map_*()`. As with
/// hardware, whoever posts a work request promises that the memory that it names stays until the
/// completion; the value is a token that only this crate makes, for a DMA memory region.
#[derive(Clone, Copy)]
pub struct KernelMemory(());

impl KernelMemory {
    /// The token.
    ///
    /// # Safety
    ///
    /// It must only be given to the memory region of a kernel user, and the addresses that are used
    /// with it must come from that user's work requests or, with the region's R_Key, from peers
    /// that the user gave it to.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }

    /// Checks that the range is in the kernel's map of all memory, where DMA addresses point to.
    fn check(addr: u64, len: usize) -> Result<usize> {
        let addr = usize::try_from(addr).map_err(|_| EINVAL)?;
        let last = addr.checked_add(len.saturating_sub(1)).ok_or(EINVAL)?;
        // SAFETY: `virt_addr_valid()` takes any address.
        let first_ok = unsafe { bindings::virt_addr_valid(addr) };
        // SAFETY: As above.
        let last_ok = unsafe { bindings::virt_addr_valid(last) };
        if first_ok && last_ok {
            Ok(addr)
        } else {
            Err(EINVAL)
        }
    }

    /// Copies out the bytes at `addr`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `addr` cannot be a DMA address.
    #[inline]
    pub fn read(self, addr: u64, out: &mut [u8]) -> Result {
        let src = Self::check(addr, out.len())? as *const u8;
        // SAFETY: `src` is mapped by the check above, and readable by the promise that comes with
        // `Self::new`; `out` is a Rust buffer of this size.
        unsafe { bindings::copy_opaque(out.as_mut_ptr().cast(), src.cast(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `addr`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `addr` cannot be a DMA address.
    #[inline]
    pub fn write(self, addr: u64, bytes: SharedBytes<'_>) -> Result {
        let dst = Self::check(addr, bytes.len())? as *mut u8;
        // SAFETY: `dst` is mapped by the check above, and writable by the promise that comes with
        // `Self::new`; `bytes` are mapped and of this size.
        unsafe { bindings::copy_opaque(dst.cast(), bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }

    /// Calls `f` with the 64 bits at `addr`, which others may change at the same time.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `addr` is not aligned or cannot be a DMA address.
    pub fn with_word<T>(self, addr: u64, f: impl FnOnce(&Atomic<u64>) -> T) -> Result<T> {
        let ptr = Self::check(addr, size_of::<u64>())? as *mut u64;
        if !ptr.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: `ptr` is aligned, mapped by the check above, and accessible by the promise that
        // comes with `Self::new`. This crate accesses it by atomics and opaque copies; the user who
        // gave it to peers expects changes.
        Ok(f(unsafe { Atomic::from_ptr(ptr) }))
    }
}
