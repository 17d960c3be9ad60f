// SPDX-License-Identifier: GPL-2.0

//! Memory that user programs may map and change at any time.
//!
//! C header: [`include/linux/vmalloc.h`](srctree/include/linux/vmalloc.h).
//! In the tree this file would be `rust/kernel/mm/shared.rs`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

/// Zeroed pages, contiguous in the kernel's address space, that user programs can map.
///
/// No reference to the contents is ever made: they are copied in and out, or read and written as
/// single words.
///
/// # Invariants
///
/// `ptr` points to `len` bytes from `vmalloc_user()`, which this object owns; `len` is a multiple of
/// the page size and not zero.
pub struct SharedMemory {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory belongs to no thread; all access is by atomics and copies.
unsafe impl Send for SharedMemory {}

// SAFETY: As above: `&self` gives no reference to the contents.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates `len` bytes, rounded up to whole pages, zeroed.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is zero or too large to be rounded up, `ENOMEM`.
    pub fn new(len: usize) -> Result<Arc<Self>> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        // SAFETY: `mm/vmalloc.c:vmalloc_user_noprof` takes any size and returns null on failure.
        let ptr = unsafe { bindings::vmalloc_user_noprof(len) };
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or(ENOMEM)?;
        // INVARIANT: Just allocated, with a size in whole pages. On failure the value is dropped.
        Ok(Arc::new(Self { ptr, len }, GFP_KERNEL)?)
    }

    /// Length in bytes: a multiple of the page size.
    #[expect(
        clippy::len_without_is_empty,
        reason = "never empty by the type invariant"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte, in the form that `remap_vmalloc_range()` wants.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Pointer to `len` bytes at `offset`.
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        Ok(self.ptr.as_ptr().wrapping_add(offset))
    }

    /// The word at `offset`, if there is one.
    #[inline]
    fn word(&self, offset: usize) -> Option<&Atomic<u32>> {
        let ptr = self.range(offset, 4).ok()?.cast::<u32>();
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: `ptr` is aligned, within the memory and so valid as long as `self`. The kernel's
        // own access to it is by atomics and opaque copies, the user's is outside the kernel.
        Some(unsafe { Atomic::from_ptr(ptr) })
    }

    /// Reads the word at `offset`, before everything that follows. 0 if it is not aligned or not inside.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |word| word.load(Acquire))
    }

    /// Reads the word at `offset`. 0 if it is not aligned or not inside.
    #[inline]
    pub fn load_relaxed(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes the word at `offset`, after everything that came before. Does nothing if it is not
    /// aligned or not inside.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value, Release);
        }
    }

    /// Copies out the bytes at `offset`. Each byte is read once.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all inside.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result {
        let src = self.range(offset, out.len())?;
        // SAFETY: `src` is valid for reads of `out.len()` bytes by `range`, `out` for writes, and they
        // do not overlap since no reference to the shared memory exists.
        unsafe { bindings::copy_opaque(out.as_mut_ptr().cast(), src.cast(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not all fit inside.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        let dst = self.range(offset, bytes.len())?;
        // SAFETY: `dst` is valid for writes of `bytes.len()` bytes by `range`, `bytes` for reads, and
        // they do not overlap since no reference to the shared memory exists.
        unsafe { bindings::copy_opaque(dst.cast(), bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }
}

impl Drop for SharedMemory {
    /// User programs that still map the pages keep them: pages are counted (`mm/vmalloc.c:vfree`).
    fn drop(&mut self) {
        // SAFETY: By the type invariant the memory is from `vmalloc_user()` and owned.
        unsafe { bindings::vfree(self.ptr.as_ptr().cast()) };
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
            let memory = SharedMemory::new(asked)?;
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
        assert!(SharedMemory::new(0).err() == Some(EINVAL));
        assert!(SharedMemory::new(usize::MAX).err() == Some(EINVAL));
    }

    #[test]
    fn copies_to_and_fro_over_page_ends() -> Result {
        let memory = SharedMemory::new(2 * PAGE_SIZE)?;
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
        let memory = SharedMemory::new(PAGE_SIZE)?;
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
    fn words() -> Result {
        let memory = SharedMemory::new(PAGE_SIZE)?;
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
