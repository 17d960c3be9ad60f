// SPDX-License-Identifier: GPL-2.0

//! Memory that keeps its contents without power.
//!
//! C header: [`include/linux/libnvdimm.h`](srctree/include/linux/libnvdimm.h).
//! In the tree this file would be `rust/kernel/rdma/umem/persistent.rs`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::page::PAGE_SIZE;

/// Whether all of these pages are persistent memory, by the kernel's map of physical addresses.
///
/// # Safety
///
/// The pages must be live.
pub(super) unsafe fn are_persistent(pages: &[NonNull<bindings::page>]) -> bool {
    // Pages that follow each other are looked up as one.
    let mut run: Option<(u64, usize)> = None;
    for page in pages {
        // SAFETY: The page is live by the safety requirement.
        let at = unsafe { bindings::page_to_phys(page.as_ptr()) };
        run = match run {
            Some((start, bytes)) if start.wrapping_add(bytes as u64) == at => {
                Some((start, bytes.wrapping_add(PAGE_SIZE)))
            }
            Some((start, bytes)) if !is_persistent(start, bytes) => return false,
            Some(_) | None => Some((at, PAGE_SIZE)),
        };
    }
    run.is_some_and(|(start, bytes)| is_persistent(start, bytes))
}

/// Whether a range of physical addresses is persistent memory.
fn is_persistent(start: u64, bytes: usize) -> bool {
    let kinds = [
        bindings::IORES_DESC_PERSISTENT_MEMORY,
        bindings::IORES_DESC_PERSISTENT_MEMORY_LEGACY,
    ];
    kinds.into_iter().any(|kind| {
        // CAST: C has both as `unsigned long`.
        let (memory, kind) = (bindings::IORESOURCE_MEM as usize, kind as usize);
        // SAFETY: `kernel/resource.c:region_intersects` takes any range.
        let found = unsafe { bindings::region_intersects(start, bytes, memory, kind) };
        found == bindings::REGION_INTERSECTS as core::ffi::c_int
    })
}

/// Writes bytes that were just written back from the CPU's caches, before anything that follows.
///
/// # Context
///
/// Any.
///
/// # Safety
///
/// `len` bytes at `addr` must be mapped.
pub(super) unsafe fn write_back(addr: *mut u8, len: usize) {
    // SAFETY: They are mapped by the safety requirement.
    unsafe { bindings::pmem_write_back(addr.cast(), len) };
}
