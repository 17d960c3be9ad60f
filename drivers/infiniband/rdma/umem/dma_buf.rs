// SPDX-License-Identifier: GPL-2.0

//! Memory that another driver shares as a DMA-BUF.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h).
//! In the tree this file would be `rust/kernel/rdma/umem/dma_buf.rs`.
//!
//! A device in software has no DMA: it looks at the buffer through a mapping in the kernel's address
//! space, which the exporter keeps valid, and the buffer in place, until it is undone.

use crate::{
    bindings,
    umem::SharedBytes, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::atomic::Atomic, //
};

/// A part of a DMA-BUF, mapped into the kernel.
///
/// # Invariants
///
/// - A reference to `buf` is owned, and access by the CPU was begun.
/// - `map` is from `dma_buf_vmap_unlocked()`; `offset + len` bytes are not more than the buffer has.
pub struct DmaBuf {
    buf: NonNull<bindings::dma_buf>,
    map: bindings::iosys_map,
    offset: usize,
    len: usize,
    writable: bool,
}

// SAFETY: The buffer and its mapping belong to no thread.
unsafe impl Send for DmaBuf {}

// SAFETY: As above; `&self` only copies.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Maps `len` bytes at `offset` of the buffer that the current program has as `fd`.
    ///
    /// # Context
    ///
    /// Process context of that program; may sleep.
    ///
    /// # Errors
    ///
    /// `EBADF` or `EINVAL` if `fd` is no DMA-BUF; `EINVAL` for a range that is empty or not inside; `EACCES`
    /// for writing to one that was opened for reading; `EOPNOTSUPP` if the exporter has no such mapping;
    /// any other from the exporter.
    pub fn map(fd: i32, offset: u64, len: u64, writable: bool) -> Result<Self> {
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        let len = usize::try_from(len).map_err(|_| EINVAL)?;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        // SAFETY: `dma_buf_get()` takes any number.
        let raw = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        let buf = NonNull::new(raw).ok_or(EINVAL)?;
        let map = Self::map_whole(raw, len, end, writable).inspect_err(|_| {
            // SAFETY: The reference is from `dma_buf_get` above.
            unsafe { bindings::dma_buf_put(raw) };
        })?;
        // INVARIANT: Begun and mapped by `map_whole`, which has checked the range.
        Ok(Self {
            buf,
            map,
            offset,
            len,
            writable,
        })
    }

    /// Begins access and maps the buffer, to which the caller holds a reference, if it has `end` bytes.
    fn map_whole(
        raw: *mut bindings::dma_buf,
        len: usize,
        end: usize,
        writable: bool,
    ) -> Result<bindings::iosys_map> {
        // SAFETY: The buffer is live while the caller's reference is.
        if len == 0 || end > unsafe { bindings::dma_buf_size(raw) } {
            return Err(EINVAL);
        }
        // SAFETY: As above.
        if writable && !unsafe { bindings::dma_buf_is_writable(raw) } {
            return Err(EACCES);
        }
        // SAFETY: The buffer is live while the caller's reference is; the caller may sleep.
        to_result(unsafe { bindings::dma_buf_begin_access(raw) })?;
        let mut map: bindings::iosys_map = pin_init::zeroed();
        // SAFETY: As above; `map` is a local.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(raw, &mut map) })
            .map(|()| map)
            .map_err(|error| {
                // SAFETY: Access was begun above, under the caller's reference.
                unsafe { bindings::dma_buf_end_access(raw) };
                match error {
                    // `dma-buf.c:dma_buf_vmap`: the exporter has none.
                    EINVAL => EOPNOTSUPP,
                    error => error,
                }
            })
    }

    /// Whether it may be written to.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The place in the buffer of `len` bytes at `offset`.
    fn locate(&self, offset: u64, len: usize) -> Result<usize> {
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        if offset.checked_add(len).ok_or(EINVAL)? > self.len {
            return Err(EINVAL);
        }
        // No overflow by the type invariant.
        Ok(self.offset.wrapping_add(offset))
    }

    /// Copies out the bytes at `offset` from the start of the memory.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all inside.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result {
        let at = self.locate(offset, out.len())?;
        // SAFETY: By the type invariant the buffer is mapped, with these bytes in it.
        unsafe {
            bindings::iosys_map_read(out.as_mut_ptr().cast(), &self.map, at, out.len());
        }
        Ok(())
    }

    /// Copies `bytes` to `offset` from the start of the memory.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not all fit inside, `EPERM` if it is not for writing.
    pub fn write(&self, offset: u64, bytes: SharedBytes<'_>) -> Result {
        if !self.writable {
            return Err(EPERM);
        }
        let at = self.locate(offset, bytes.len())?;
        // SAFETY: As in `read`.
        unsafe {
            bindings::iosys_map_write(&self.map, at, bytes.as_ptr().cast(), bytes.len());
        }
        Ok(())
    }

    /// Calls `f` with the 64 bits at `offset`, which others may change at the same time.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// As [`Self::write`], and `EINVAL` if they are not aligned, or lie in the memory of a device.
    pub fn with_word<T>(&self, offset: u64, f: impl FnOnce(&Atomic<u64>) -> T) -> Result<T> {
        if !self.writable {
            return Err(EPERM);
        }
        let at = self.locate(offset, size_of::<u64>())?;
        // SAFETY: By the type invariant the buffer is mapped, with these bytes in it.
        let ptr = unsafe { bindings::iosys_map_word(&self.map, at) };
        if ptr.is_null() || !ptr.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: `ptr` is aligned and mapped as long as `self`. The kernel's own access to the
        // buffer is by atomics and opaque copies.
        Ok(f(unsafe { Atomic::from_ptr(ptr) }))
    }
}

impl Drop for DmaBuf {
    /// May sleep.
    fn drop(&mut self) {
        // SAFETY: By the type invariant the mapping is from `dma_buf_vmap_unlocked()`, and not used again.
        unsafe { bindings::dma_buf_vunmap_unlocked(self.buf.as_ptr(), &mut self.map) };
        // SAFETY: By the type invariant access was begun.
        unsafe { bindings::dma_buf_end_access(self.buf.as_ptr()) };
        // SAFETY: By the type invariant the reference is owned.
        unsafe { bindings::dma_buf_put(self.buf.as_ptr()) };
    }
}
