// SPDX-License-Identifier: GPL-2.0

//! Offsets at which a user program can map memory of the driver.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`rdma_user_mmap_*`).
//! In the tree this file would be `rust/kernel/rdma/mmap.rs`.
//!
//! # Lifetimes
//!
//! An entry is in the table of its user context, which C frees after `dealloc_ucontext`. An
//! [`MmapEntry`] may be kept longer than that by a driver, so it does not hold the context but its
//! [`Space`], whose lock says whether the context still lives. When the context goes, what is left
//! in its table is removed first.

use crate::{
    bindings,
    shared_memory::SharedMemory, //
};
use core::ptr::NonNull;
use kernel::{
    mm::virt::flags::SHARED,
    new_mutex,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// What C's table points to.
#[repr(C)]
struct Entry {
    rdma: Opaque<bindings::rdma_user_mmap_entry>,
    memory: Arc<SharedMemory>,
}

/// A user context's table of entries, as long as the context lives.
struct Table {
    context: *mut bindings::ib_ucontext,
    entries: KVec<NonNull<Entry>>,
}

// SAFETY: Neither the context nor the entries belong to a thread; C locks its table itself.
unsafe impl Send for Table {}

/// The entries of one user context.
///
/// # Invariants
///
/// `table.context` is null or live. All of `table.entries` are in the table of that context, and for
/// each of them this object owns the reference that `rdma_user_mmap_entry_insert_range()` gave.
#[pin_data]
pub(crate) struct Space {
    #[pin]
    table: Mutex<Table>,
}

impl Space {
    /// Creates the (empty) space of a user context.
    ///
    /// # Safety
    ///
    /// `context` must stay live until [`Space::close`] was called.
    pub(crate) unsafe fn new(context: *mut bindings::ib_ucontext) -> Result<Arc<Self>> {
        // INVARIANT: By the safety requirement `context` is live; there are no entries.
        Arc::pin_init(
            pin_init!(Self {
                table <- new_mutex!(Table { context, entries: KVec::new() }, "rdma::mmap"),
            }),
            GFP_KERNEL,
        )
    }

    /// Removes all entries; from now on the context is not touched any more.
    pub(crate) fn close(&self) {
        let mut table = self.table.lock();
        while let Some(entry) = table.entries.pop() {
            // SAFETY: By the type invariant the entry is in the table and its reference is ours.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ptr().cast()) };
        }
        table.context = core::ptr::null_mut();
    }

    /// Gives `memory` an offset.
    pub(crate) fn insert(self: Arc<Self>, memory: Arc<SharedMemory>) -> Result<MmapEntry> {
        let len = memory.len();
        let entry = KBox::new(
            Entry {
                rdma: Opaque::zeroed(),
                memory,
            },
            GFP_KERNEL,
        )?;
        let mut table = self.table.lock();
        if table.context.is_null() {
            return Err(ENODEV);
        }
        table.entries.reserve(1, GFP_KERNEL)?;
        let entry = NonNull::from(KBox::leak(entry));
        let raw = entry.cast::<bindings::rdma_user_mmap_entry>().as_ptr();
        // SAFETY: By the type invariant the context is live. The entry is zeroed, as
        // `ib_core_uverbs.c:rdma_user_mmap_entry_insert_range` needs, and stays until `mmap_free`,
        // or is not referred to if this fails. Offset 0 is left out: it looks like "none".
        let ret = unsafe {
            bindings::rdma_user_mmap_entry_insert_range(table.context, raw, len, 1, u32::MAX)
        };
        if ret != 0 {
            // SAFETY: Leaked above; C does not refer to it since the insertion failed.
            drop(unsafe { KBox::from_raw(entry.as_ptr()) });
            return Err(Error::from_errno(ret));
        }
        // SAFETY: Inserted above, which filled in `start_pgoff`.
        let pgoff = unsafe { (*raw).start_pgoff };
        // INVARIANT: The entry is in the table, and the reference is ours. Room was reserved.
        let _ = table.entries.push_within_capacity(entry);
        drop(table);
        Ok(MmapEntry {
            offset: (pgoff as u64) << PAGE_SHIFT,
            len: len as u64,
            entry,
            space: self,
        })
    }

    /// Takes an entry out of the table, unless that was done already.
    fn remove(&self, entry: NonNull<Entry>) {
        let mut table = self.table.lock();
        let Some(index) = table.entries.iter().rposition(|e| *e == entry) else {
            return;
        };
        if table.entries.remove(index).is_ok() {
            // SAFETY: By the type invariant the entry was in the table and its reference is ours.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ptr().cast()) };
        }
    }
}

/// An offset at which the user program that owns the context can map some [`SharedMemory`].
///
/// Dropping it takes the offset back. What is mapped by then stays mapped.
pub struct MmapEntry {
    offset: u64,
    len: u64,
    entry: NonNull<Entry>,
    space: Arc<Space>,
}

// SAFETY: `entry` is only compared and passed to C, which locks.
unsafe impl Send for MmapEntry {}

// SAFETY: As above; the other fields are `Sync`.
unsafe impl Sync for MmapEntry {}

impl MmapEntry {
    /// What to pass to `mmap()`, in bytes. Never 0.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the memory, in bytes: whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for MmapEntry {
    fn drop(&mut self) {
        self.space.remove(self.entry);
    }
}

/// `ib_device_ops.mmap`: maps the start of the memory at the offset, as much as the user asks for.
///
/// # Safety
///
/// As called by `uverbs_main.c:ib_uverbs_mmap`: `context` is live, its entries are from
/// [`Space::insert`], and `vma` is being set up by the running `mmap()`.
pub(crate) unsafe extern "C" fn mmap_callback(
    context: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: `vma` is valid and locked for writing during `mmap()`.
    let (pgoff, flags) = unsafe { ((*vma).vm_pgoff, (*vma).__bindgen_anon_2.vm_flags) };
    if flags & SHARED == 0 {
        return EINVAL.to_errno();
    }
    // SAFETY: `context` is live by the safety requirement.
    let entry = unsafe { bindings::rdma_user_mmap_entry_get_pgoff(context, pgoff) };
    if entry.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: All entries of the context are `Entry`s by the safety requirement, and a reference to
    // this one is held until `rdma_user_mmap_entry_put`.
    let memory = unsafe { &(*entry.cast::<Entry>()).memory };
    // SAFETY: `vma` is being set up, by the safety requirement.
    let ret = unsafe { memory.map(vma) };
    // SAFETY: This gives back the reference of `rdma_user_mmap_entry_get_pgoff`.
    unsafe { bindings::rdma_user_mmap_entry_put(entry) };
    ret
}

/// `ib_device_ops.mmap_free`: nobody refers to the entry any more.
///
/// # Safety
///
/// As called by `ib_core_uverbs.c:rdma_user_mmap_entry_free`: once for each entry from
/// [`Space::insert`].
pub(crate) unsafe extern "C" fn mmap_free_callback(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: The entry was leaked by `Space::insert`, and this is the last use of it.
    drop(unsafe { KBox::from_raw(entry.cast::<Entry>()) });
}
