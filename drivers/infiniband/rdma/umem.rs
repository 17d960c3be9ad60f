// SPDX-License-Identifier: GPL-2.0

//! Memory that work requests and remote peers name: pinned user memory, and the kernel's own.
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h).
//! In the tree this file would be `rust/kernel/rdma/umem.rs`.

use crate::{
    bindings,
    verbs::{
        Device,
        Driver, //
    },
};
use core::ptr::NonNull;
use kernel::{
    device,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Atomic, //
    }, //
};

/// Pages of a user program, pinned, to be copied from and to in any context.
///
/// The program can change the contents at any time: no reference to them is ever made.
///
/// # Invariants
///
/// - `raw` is from `ib_umem_get_va()` and owned. Its `ibdev` is the `ib_device` around `_device`.
/// - `pages` are its pages in order; the memory starts `first` bytes into the first, and `first + len`
///   bytes are not more than the pages have.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    pages: KVVec<NonNull<bindings::page>>,
    first: usize,
    len: usize,
    _device: ARef<device::Device>,
}

// SAFETY: Pinned pages belong to no thread, and `ib_umem_release()` may be called by any.
unsafe impl Send for Umem {}

// SAFETY: As above; `&self` only copies.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins the `len` bytes at `addr` of the current program for the accesses in `access`
    /// ([`super::verbs::access`]).
    ///
    /// # Context
    ///
    /// Process context of the program that owns the memory; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range wraps around or is empty, or if the current task is no user program;
    /// `EFAULT` if it is not mapped, or not writable where `access` needs it; `ENOMEM` also if
    /// `RLIMIT_MEMLOCK` is exceeded; `EPERM` if nothing may be locked; `EOPNOTSUPP` for on-demand
    /// paging.
    pub fn pin<D: Driver>(device: &Device<D>, addr: u64, len: usize, access: u32) -> Result<Self> {
        let addr = usize::try_from(addr).map_err(|_| EINVAL)?;
        // `ib_umem_get_va()` takes the address space of `current` for granted.
        if len == 0 || kernel::current!().mm().is_none() {
            return Err(EINVAL);
        }
        // CAST: C takes the flags as `int`.
        // SAFETY: The device is live, and `current` has an address space.
        let raw = kernel::error::from_err_ptr(unsafe {
            bindings::ib_umem_get_va(device.as_raw(), addr, len, access as c_int)
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // From here on, dropping `this` releases.
        // INVARIANT: There are no pages and no bytes yet.
        let mut this = Self {
            raw,
            pages: KVVec::new(),
            first: 0,
            len: 0,
            _device: device.as_ref().into(),
        };
        this.list_pages()?;
        let first = addr % PAGE_SIZE;
        let bytes = this.pages.len().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        if first.checked_add(len).ok_or(EINVAL)? > bytes {
            return Err(EINVAL);
        }
        // INVARIANT: Checked above.
        this.first = first;
        this.len = len;
        Ok(this)
    }

    /// Puts the pages into `self.pages`, so that any of them is found at once.
    fn list_pages(&mut self) -> Result {
        // SAFETY: By the type invariant `raw` is live.
        let sgt = unsafe { &raw const (*self.raw.as_ptr()).sgt_append.sgt };
        // SAFETY: `ib_umem_get_va()` has filled in the table; as above.
        let (sgl, nents) = unsafe { ((*sgt).sgl, (*sgt).orig_nents) };
        // SAFETY: As above. With `iova == address`, as set by `ib_umem_get_va()`, this counts them.
        let count = unsafe { bindings::ib_umem_num_pages(self.raw.as_ptr()) };
        self.pages.reserve(count, GFP_KERNEL)?;
        let mut iter = bindings::sg_page_iter::default();
        // SAFETY: `sgl` has `nents` entries with pages, as `lib/scatterlist.c:__sg_page_iter_start`
        // needs.
        unsafe { bindings::__sg_page_iter_start(&mut iter, sgl, nents, 0) };
        // SAFETY: `iter` was started above, and its table does not change.
        while unsafe { bindings::__sg_page_iter_next(&mut iter) } {
            // SAFETY: `iter` stands on a page since `__sg_page_iter_next` returned true.
            let page = unsafe { bindings::sg_page_iter_page(&mut iter) };
            // INVARIANT: The pages come in order.
            self.pages
                .push(NonNull::new(page).ok_or(EINVAL)?, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory was pinned for writing as well.
    pub fn is_writable(&self) -> bool {
        // SAFETY: By the type invariant `raw` is live.
        unsafe { (*self.raw.as_ptr()).writable() != 0 }
    }

    /// Calls `copy` with the kernel address and length of each piece of `[offset, offset + len)` that
    /// lies in one page.
    #[inline]
    fn for_each_piece(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(*mut u8, usize),
    ) -> Result {
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        // No overflow by the type invariant.
        let mut at = self.first.wrapping_add(offset);
        let mut left = len;
        while left > 0 {
            let page = self.pages.get(at / PAGE_SIZE).ok_or(EINVAL)?;
            let within = at % PAGE_SIZE;
            let piece = left.min(PAGE_SIZE.wrapping_sub(within));
            // SAFETY: By the type invariant the page is pinned.
            let addr = unsafe { bindings::kmap_local_page(page.as_ptr()) };
            copy(addr.cast::<u8>().wrapping_add(within), piece);
            // SAFETY: `addr` is the innermost mapping: `copy` makes none.
            unsafe { bindings::kunmap_local(addr) };
            at = at.wrapping_add(piece);
            left = left.wrapping_sub(piece);
        }
        Ok(())
    }

    /// Copies out the bytes at `offset` from the start of the memory. Each byte is read once.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all inside. Then nothing was copied.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result {
        let mut dst = out.as_mut_ptr();
        self.for_each_piece(offset, out.len(), |src, len| {
            // SAFETY: `src` is mapped for `len` bytes; the pieces add up to the length of `out`.
            unsafe { bindings::copy_opaque(dst.cast(), src.cast(), len) };
            dst = dst.wrapping_add(len);
        })
    }

    /// Copies `bytes` to `offset` from the start of the memory.
    ///
    /// The memory must have been pinned with an access that writes, or the program may not see it.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not all fit inside, then nothing was copied; `EPERM` if the memory was not
    /// pinned for writing.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result {
        if !self.is_writable() {
            return Err(EPERM);
        }
        let mut src = bytes.as_ptr();
        self.for_each_piece(offset, bytes.len(), |dst, len| {
            // SAFETY: `dst` is mapped for `len` bytes; the pieces add up to the length of `bytes`.
            unsafe { bindings::copy_opaque(dst.cast(), src.cast(), len) };
            src = src.wrapping_add(len);
        })
    }
}

impl Umem {
    /// Calls `f` with the 64 bits at `offset` from the start of the memory, which the program may
    /// change at the same time.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not aligned or not all inside, `EPERM` if the memory was not pinned for
    /// writing.
    pub fn with_word<T>(&self, offset: u64, f: impl FnOnce(&Atomic<u64>) -> T) -> Result<T> {
        // SAFETY: By the type invariant `raw` is live.
        if unsafe { (*self.raw.as_ptr()).writable() } == 0 {
            return Err(EPERM);
        }
        let mut f = Some(f);
        let mut result = Err(EINVAL);
        self.for_each_piece(offset, size_of::<u64>(), |ptr, len| {
            // An aligned word is in one piece.
            let ptr = ptr.cast::<u64>();
            if len == size_of::<u64>() && ptr.is_aligned() {
                // SAFETY: `ptr` is aligned and mapped for 8 bytes until this closure returns. The
                // kernel's own access to user memory is by atomics and opaque copies, the user's is
                // outside the kernel.
                let word = unsafe { Atomic::from_ptr(ptr) };
                if let Some(f) = f.take() {
                    result = Ok(f(word));
                }
            }
        })?;
        result
    }
}

impl Drop for Umem {
    /// May sleep.
    fn drop(&mut self) {
        // SAFETY: By the type invariant `raw` is owned, and its device is held by `_device`.
        unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
    }
}

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
    pub fn write(self, addr: u64, bytes: &[u8]) -> Result {
        let dst = Self::check(addr, bytes.len())? as *mut u8;
        // SAFETY: `dst` is mapped by the check above, and writable by the promise that comes with
        // `Self::new`; `bytes` is a Rust buffer of this size.
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
