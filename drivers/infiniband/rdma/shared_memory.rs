// SPDX-License-Identifier: GPL-2.0

//! Memory that user programs may map and change at any time.
//!
//! C header: [`include/linux/shmem_fs.h`](srctree/include/linux/shmem_fs.h).
//! In the tree this file would be `rust/kernel/mm/shared.rs`.
//!
//! Much of what is offered is never touched: rings are made for the worst case. So the memory is that of a file
//! without a name (shmem): a page is there from the beginning, or comes when a user program touches it first. That is
//! the business of the core of the kernel alone: mappings stay usable when this module is gone. A page that is not
//! there reads as zeros. Pages are never swapped out; one that was used from here stays where it is.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

/// Zeroed pages that user programs can map.
///
/// No reference to the contents is ever made: they are copied in and out, or read and written as
/// single words.
///
/// # Invariants
///
/// `file` is from `shmem_file_setup()` and owned. Each of `pages` is 0 or the address, in the kernel's direct map, of a page
/// of the file, to which a reference is held; it changes once at most, from 0. There is one at least. `first` is the first of
/// them.
pub struct SharedMemory {
    file: NonNull<bindings::file>,
    pages: KVVec<Atomic<usize>>,
    first: NonNull<u8>,
}

// SAFETY: The memory belongs to no thread; all access is by atomics and copies. Files are counted.
unsafe impl Send for SharedMemory {}

// SAFETY: As above: `&self` gives no reference to the contents.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Memory of `len` bytes, rounded up to whole pages, zeroed. The pages of the first `ready` bytes, and always the first
    /// page, are there at once: only these can be written to from here whatever user programs do.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero or too large to be rounded up, `ENOMEM`.
    pub fn new(len: usize, ready: usize) -> Result<Arc<Self>> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        let size = i64::try_from(len).map_err(|_| EINVAL)?;
        let count = len / PAGE_SIZE;
        if count == 0 {
            return Err(EINVAL);
        }
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            pages.push(Atomic::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: The helper takes any size (`mm/shmem.c:shmem_file_setup`).
        let file = from_err_ptr(unsafe { bindings::rdma_shmem_file(size) });
        // Without memory for an inode it says that there is no space.
        let file = file.map_err(|error| if error == ENOSPC { ENOMEM } else { error })?;
        // INVARIANT: The file is new and ours; no page is known. The first one is, below, before anybody else
        // sees the value.
        let mut memory = Self {
            file: NonNull::new(file).ok_or(ENOMEM)?,
            pages,
            first: NonNull::dangling(),
        };
        for index in 0..ready.div_ceil(PAGE_SIZE).clamp(1, count) {
            // SAFETY: By the type invariant the file is of shmem; the page is inside.
            let page = unsafe { bindings::rdma_shmem_new_page(file, index) };
            let page = memory.keep(index, page as usize).ok_or(ENOMEM)?;
            if index == 0 {
                memory.first = page;
            }
        }
        Ok(Arc::new(memory, GFP_KERNEL)?)
    }

    /// Length in bytes: a multiple of the page size.
    #[expect(
        clippy::len_without_is_empty,
        reason = "never empty by the type invariant"
    )]
    pub fn len(&self) -> usize {
        self.pages.len().wrapping_mul(PAGE_SIZE)
    }

    /// Makes `vma` a mapping of the start of the memory. Returns 0 or a negative errno.
    ///
    /// # Safety
    ///
    /// `vma` is being set up by the running `mmap()` of a file.
    pub(crate) unsafe fn map(&self, vma: *mut bindings::vm_area_struct) -> c_int {
        // SAFETY: By the safety requirement. The file is live; the mapping takes a reference of its own.
        unsafe { bindings::rdma_shmem_mmap(vma, self.file.as_ptr(), self.len()) }
    }

    /// The page with this number, if it is there. Valid as long as `self`.
    #[inline]
    fn page(&self, index: usize) -> Option<NonNull<u8>> {
        if index == 0 {
            // Indices of rings are there, and looked at all the time.
            return Some(self.first);
        }
        match self.pages.get(index)?.load(Acquire) {
            0 => self.find(index),
            page => NonNull::new(page as *mut u8),
        }
    }

    /// Looks for a page that was not there before.
    #[cold]
    fn find(&self, index: usize) -> Option<NonNull<u8>> {
        // SAFETY: By the type invariant the file is of shmem.
        let page = unsafe { bindings::rdma_shmem_page(self.file.as_ptr(), index) };
        self.keep(index, page as usize)
    }

    /// Notes that the page with this number is at the address `page`, if it is there: not 0. Takes over the
    /// caller's reference to it.
    fn keep(&self, index: usize, page: usize) -> Option<NonNull<u8>> {
        let found = NonNull::new(page as *mut u8)?;
        // INVARIANT: From 0 to a page to which there is a reference.
        match self.pages.get(index)?.cmpxchg(0, page, Full) {
            Ok(_) => Some(found),
            Err(other) => {
                // SAFETY: This is the caller's reference; another thread has noted its own.
                unsafe { bindings::rdma_put_direct_page(found.as_ptr().cast()) };
                NonNull::new(other as *mut u8)
            }
        }
    }

    /// Checks that `len` bytes at `offset` are inside.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// The word at `offset` in `page`.
    #[inline]
    fn word(&self, page: NonNull<u8>, offset: usize) -> &Atomic<u32> {
        let ptr = page.as_ptr().wrapping_add(offset % PAGE_SIZE & !3);
        // SAFETY: `ptr` is aligned, within a page of `self` and so valid as long as that. The kernel's
        // own access to it is by atomics and opaque copies, the user's is outside the kernel.
        unsafe { Atomic::from_ptr(ptr.cast()) }
    }

    /// The word at `offset`, if it is aligned and there.
    #[inline]
    fn present(&self, offset: usize) -> Option<&Atomic<u32>> {
        if offset % 4 != 0 {
            return None;
        }
        Some(self.word(self.page(offset / PAGE_SIZE)?, offset))
    }

    /// Reads the word at `offset`, before everything that follows. 0 if it is not aligned or not inside.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.present(offset).map_or(0, |word| word.load(Acquire))
    }

    /// Reads the word at `offset`. 0 if it is not aligned or not inside.
    #[inline]
    pub fn load_relaxed(&self, offset: usize) -> u32 {
        self.present(offset).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes the word at `offset`, after everything that came before. Does nothing if it is not
    /// aligned or not inside, or if its page is not there.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u32) {
        if let Some(word) = self.present(offset) {
            word.store(value, Release);
        }
    }

    /// Copies out the bytes at `offset`. Each byte is read once.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all inside.
    #[inline]
    pub fn read(&self, mut offset: usize, mut out: &mut [u8]) -> Result {
        self.check(offset, out.len())?;
        while !out.is_empty() {
            let within = offset % PAGE_SIZE;
            let n = out.len().min(PAGE_SIZE.wrapping_sub(within));
            let (piece, rest) = out.split_at_mut_checked(n).ok_or(EINVAL)?;
            match self.page(offset / PAGE_SIZE) {
                Some(page) => {
                    let src = page.as_ptr().wrapping_add(within);
                    // SAFETY: `src` is valid for reads of `n` bytes, which end in the page, `piece` for writes,
                    // and they do not overlap since no reference to the shared memory exists.
                    unsafe { bindings::copy_opaque(piece.as_mut_ptr().cast(), src.cast(), n) };
                }
                None => piece.fill(0),
            }
            out = rest;
            offset = offset.wrapping_add(n);
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not all fit inside, `ENOMEM` if a page is not there.
    #[inline]
    pub fn write(&self, mut offset: usize, mut bytes: &[u8]) -> Result {
        self.check(offset, bytes.len())?;
        while !bytes.is_empty() {
            let within = offset % PAGE_SIZE;
            let n = bytes.len().min(PAGE_SIZE.wrapping_sub(within));
            let (piece, rest) = bytes.split_at_checked(n).ok_or(EINVAL)?;
            let page = self.page(offset / PAGE_SIZE).ok_or(ENOMEM)?;
            let dst = page.as_ptr().wrapping_add(within);
            // SAFETY: `dst` is valid for writes of `n` bytes, which end in the page, `piece` for reads, and
            // they do not overlap since no reference to the shared memory exists.
            unsafe { bindings::copy_opaque(dst.cast(), piece.as_ptr().cast(), n) };
            bytes = rest;
            offset = offset.wrapping_add(n);
        }
        Ok(())
    }
}

impl Drop for SharedMemory {
    /// User programs that still map the pages keep them: file and pages are counted.
    fn drop(&mut self) {
        for page in &self.pages {
            if let Some(page) = NonNull::new(page.load(Relaxed) as *mut u8) {
                // SAFETY: By the type invariant a reference to the page is held.
                unsafe { bindings::rdma_put_direct_page(page.as_ptr().cast()) };
            }
        }
        // SAFETY: By the type invariant the file is owned.
        unsafe { bindings::fput(self.file.as_ptr()) };
    }
}

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_shared_memory)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_of_zeros() -> Result {
        for (asked, got) in [
            (1, PAGE_SIZE),
            (PAGE_SIZE, PAGE_SIZE),
            (PAGE_SIZE + 1, 2 * PAGE_SIZE),
        ] {
            let memory = SharedMemory::new(asked, 0)?;
            assert_eq!(memory.len(), got);
            let mut bytes = [0xff; 64];
            for offset in (0..got).step_by(bytes.len()) {
                memory.read(offset, &mut bytes)?;
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(0xff);
            }
        }
        Ok(())
    }

    #[test]
    fn refuses_no_length_and_too_much() {
        assert!(SharedMemory::new(0, 0).err() == Some(EINVAL));
        assert!(SharedMemory::new(usize::MAX, 0).err() == Some(EINVAL));
    }

    #[test]
    fn copies_to_and_fro_over_page_ends() -> Result {
        let memory = SharedMemory::new(2 * PAGE_SIZE, 2 * PAGE_SIZE)?;
        let want = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
        for offset in [0, 1, PAGE_SIZE - 6, PAGE_SIZE, 2 * PAGE_SIZE - want.len()] {
            memory.write(offset, &want)?;
            let mut got = [0; 13];
            memory.read(offset, &mut got)?;
            assert_eq!(got, want);
        }
        Ok(())
    }

    #[test]
    fn nothing_beyond_the_end() -> Result {
        let memory = SharedMemory::new(PAGE_SIZE, 1)?;
        let mut bytes = [7; 8];
        for offset in [PAGE_SIZE - 7, PAGE_SIZE, usize::MAX - 3, usize::MAX] {
            assert!(memory.read(offset, &mut bytes) == Err(EINVAL));
            assert!(memory.write(offset, &bytes) == Err(EINVAL));
        }
        assert_eq!(bytes, [7; 8]);
        // Nothing at the very end is fine.
        memory.read(PAGE_SIZE, &mut [])?;
        memory.write(PAGE_SIZE, &[])
    }

    #[test]
    fn pages_that_are_not_there() -> Result {
        let memory = SharedMemory::new(4 * PAGE_SIZE, PAGE_SIZE + 1)?;
        let there = || [0, 1, 2, 3].map(|index| memory.page(index).is_some());
        assert_eq!(there(), [true, true, false, false]);
        let mut bytes = [1; 8];
        memory.read(3 * PAGE_SIZE - 4, &mut bytes)?;
        assert_eq!(bytes, [0; 8]);
        memory.write(2 * PAGE_SIZE - 4, &[1; 4])?;
        assert!(memory.write(2 * PAGE_SIZE - 4, &[2; 8]) == Err(ENOMEM));
        memory.store_release(2 * PAGE_SIZE, 7);
        assert_eq!(memory.load_acquire(2 * PAGE_SIZE), 0);
        // As a user program would.
        let file = memory.file.as_ptr();
        // SAFETY: A file of shmem, and inside it.
        let page = unsafe { bindings::rdma_shmem_new_page(file, 3) };
        assert_eq!(there(), [true, true, false, true]);
        memory.write(3 * PAGE_SIZE, &[5; 8])?;
        memory.read(3 * PAGE_SIZE, &mut bytes)?;
        assert_eq!(bytes, [5; 8]);
        // SAFETY: The reference from above.
        unsafe { bindings::rdma_put_direct_page(page) };
        Ok(())
    }

    #[test]
    fn words() -> Result {
        let memory = SharedMemory::new(PAGE_SIZE, 1)?;
        memory.store_release(8, 0x0102_0304);
        assert_eq!(memory.load_acquire(8), 0x0102_0304);
        assert_eq!(memory.load_relaxed(8), 0x0102_0304);
        memory.store_release(PAGE_SIZE - 4, 5);
        assert_eq!(memory.load_acquire(PAGE_SIZE - 4), 5);
        // Not aligned, or not inside: ignored, and read as 0.
        for offset in [
            1,
            6,
            11,
            PAGE_SIZE - 3,
            PAGE_SIZE,
            usize::MAX,
            usize::MAX - 3,
        ] {
            memory.store_release(offset, 0xffff_ffff);
            assert_eq!(memory.load_acquire(offset), 0);
            assert_eq!(memory.load_relaxed(offset), 0);
        }
        let mut around = [0; 16];
        memory.read(0, &mut around)?;
        let word = 0x0102_0304u32.to_ne_bytes();
        assert!(around.iter().enumerate().all(|(at, byte)| match at {
            8..12 => *byte == word[at - 8],
            _ => *byte == 0,
        }));
        Ok(())
    }
}
