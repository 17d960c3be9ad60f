// SPDX-License-Identifier: GPL-2.0

//! Memory of a program that is not pinned: pages come when they are wanted, and go when the program
//! unmaps them or the system needs them.
//!
//! C headers: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h),
//! [`include/linux/hmm.h`](srctree/include/linux/hmm.h).
//! In the tree this file would be `rust/kernel/rdma/umem/odp.rs`.
//!
//! ```text
//!   OdpUmem --> leaves, 2 MiB each --> 512 pages: absent, readable, writable
//!                  |                      ^   |
//!                  | fault: brings in ----'   '---> copies, in any context
//!                  '- notifier: the address space changes, takes out
//! ```
//!
//! A leaf is made when a page in it is first found, so a region of any size, the whole address space
//! included, costs what is used of it. Copies never wait: what is absent is an error, and whoever gets
//! it asks for [`OdpUmem::fault`] in a context that may sleep, then tries again.
//!
//! # Locking
//!
//! A page is used with the leaf's `pages` lock held, and the notifier takes it out under that lock before
//! the address space gives it up. `taking_out` is held around that, to keep a page until it is marked
//! dirty: by the notifier, and by the end of a leaf.

use crate::{
    bindings,
    new_spinlock_bh,
    sync::{
        RcuMap,
        SpinLockBh, //
    },
    umem::SharedBytes, //
};
use core::mem::offset_of;
use kernel::{
    error::to_result,
    mm::{
        Mm,
        MmWithUser, //
    },
    new_spinlock,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Atomic,
        rcu,
        Arc,
        SpinLock, //
    },
    types::Opaque, //
};

/// log2 of the bytes of a leaf.
const LEAF_SHIFT: usize = 21;
/// Pages of a leaf.
const LEAF_PAGES: usize = (1 << LEAF_SHIFT) / PAGE_SIZE;
/// Pages that are brought in at once.
const BATCH: usize = 64;
/// log2 of the buckets of the table of leaves.
const LOG2_BUCKETS: u32 = 8;
/// How often a fault starts over when the address space changes meanwhile.
const RETRIES: usize = 1000;

/// The page may be written to.
const WRITE: usize = 1;
/// It has been.
const DIRTY: usize = 2;
const FLAGS: usize = WRITE | DIRTY;

/// What pages are wanted for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// To be read.
    Read,
    /// To be written.
    Write,
    /// Only those that are there.
    Present,
}

/// 2 MiB of an address space.
///
/// # Invariants
///
/// - `notifier` is registered for the leaf's range.
/// - An entry of `pages` is 0 or a page of the address space with [`FLAGS`]. While it is there, the
///   page stays: the notifier takes the entry out before the address space gives the page up.
#[repr(C)]
#[pin_data(PinnedDrop)]
struct Leaf {
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
    start: usize,
    #[pin]
    pages: SpinLockBh<KVec<usize>>,
    #[pin]
    taking_out: SpinLock<()>,
}

// SAFETY: A leaf belongs to no thread.
unsafe impl Send for Leaf {}

// SAFETY: The notifier synchronises itself, `pages` has a lock.
unsafe impl Sync for Leaf {}

static OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(Leaf::invalidate),
    ..pin_init::zeroed()
};

impl Leaf {
    /// A leaf without pages for the 2 MiB at `at`.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn new(mm: &MmWithUser, at: usize) -> impl PinInit<Self, Error> + use<'_> {
        try_pin_init!(Self {
            start: at,
            pages <- new_spinlock_bh!(
                KVec::from_elem(0, LEAF_PAGES, GFP_KERNEL_ACCOUNT)?,
                "OdpUmem::pages"
            ),
            taking_out <- new_spinlock!((), "OdpUmem::taking_out"),
            // Last: from here on it is called.
            notifier <- Opaque::try_ffi_init(|slot| {
                // SAFETY: `slot` is memory of the right size that does not move until the leaf is
                // dropped; `mm` has users; the operations are static.
                to_result(unsafe {
                    bindings::mmu_interval_notifier_insert(
                        slot, mm.as_raw(), at, 1 << LEAF_SHIFT, &OPS)
                })
            }),
        }? Error)
    }

    /// Calls `f` with the kernel's address of a page.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it is not there.
    fn with_page(&self, index: usize, write: bool, f: impl FnOnce(*mut u8)) -> Result {
        let mut pages = self.pages.lock();
        let entry = pages.get_mut(index).ok_or(EINVAL)?;
        if *entry == 0 || (write && *entry & WRITE == 0) {
            return Err(EAGAIN);
        }
        if write {
            *entry |= DIRTY;
        }
        let page = (*entry & !FLAGS) as *mut bindings::page;
        // SAFETY: By the type invariant the page stays while the entry is there, which is until the
        // lock is dropped at least.
        let addr = unsafe { bindings::kmap_local_page(page) };
        f(addr.cast());
        // SAFETY: `addr` is the innermost mapping: `f` makes none.
        unsafe { bindings::kunmap_local(addr) };
        Ok(())
    }

    /// Brings in `count` pages, at most [`BATCH`]. Returns how many are there.
    fn fault(&self, first: usize, count: usize, fault: Fault) -> Result<usize> {
        let flags = match fault {
            Fault::Read => bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT,
            Fault::Write => {
                bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT
                    | bindings::hmm_pfn_flags_HMM_PFN_REQ_WRITE
            }
            Fault::Present => 0,
        };
        let start = self.start.wrapping_add(first.wrapping_mul(PAGE_SIZE));
        let end = start.wrapping_add(count.wrapping_mul(PAGE_SIZE));
        for _ in 0..RETRIES {
            let mut pfns = [0usize; BATCH];
            let mut seq = 0usize;
            // SAFETY: By the type invariant the notifier is registered, for a range that contains this
            // one; there is an element for each page, by the contract of the only caller.
            to_result(unsafe {
                bindings::hmm_fault(
                    self.notifier.get(),
                    start,
                    end,
                    pfns.as_mut_ptr(),
                    flags,
                    &mut seq,
                )
            })?;
            let mut pages = self.pages.lock();
            // SAFETY: As above; the lock is the one that `invalidate` takes.
            if unsafe { bindings::mmu_interval_read_retry(self.notifier.get(), seq) } {
                continue;
            }
            let mut present = 0;
            for (entry, pfn) in pages.iter_mut().skip(first).zip(pfns.iter().take(count)) {
                if *pfn & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
                    continue;
                }
                // SAFETY: The page number is valid, and belongs to a page: HMM refuses others.
                let page = unsafe { bindings::hmm_pfn_to_page(*pfn) } as usize;
                let write = if *pfn & bindings::hmm_pfn_flags_HMM_PFN_WRITE != 0 {
                    WRITE
                } else {
                    0
                };
                let dirty = if *entry & !FLAGS == page {
                    *entry & DIRTY
                } else {
                    0
                };
                // INVARIANT: The address space has this page, and has not begun to change since.
                *entry = page | write | dirty;
                present += 1;
            }
            return Ok(present);
        }
        Err(EAGAIN)
    }

    /// Takes the pages out whose addresses are in the range, and marks those dirty that were written to.
    fn take_out(&self, from: usize, to: usize) {
        let first = from.saturating_sub(self.start) / PAGE_SIZE;
        let last = to
            .saturating_sub(self.start)
            .div_ceil(PAGE_SIZE)
            .min(LEAF_PAGES);
        let _taking_out = self.taking_out.lock();
        for index in first..last {
            // The lock that softirqs take cannot be held while a page is marked: that takes locks of
            // file systems, under which softirqs may run.
            let entry = self
                .pages
                .lock()
                .get_mut(index)
                .map(core::mem::take)
                .unwrap_or(0);
            if entry & DIRTY != 0 {
                let page = (entry & !FLAGS) as *mut bindings::page;
                // SAFETY: By the type invariant the page was there; it stays, since the notifier waits for
                // `taking_out` before it lets the address space go on.
                unsafe { bindings::set_compound_page_dirty(page) };
            }
        }
    }

    /// # Safety
    ///
    /// To be called by the notifier, with the `notifier` of a leaf.
    unsafe extern "C" fn invalidate(
        notifier: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        seq: usize,
    ) -> bool {
        let leaf = notifier
            .cast::<u8>()
            .wrapping_sub(offset_of!(Self, notifier))
            .cast::<Self>();
        // SAFETY: The notifier is a field of a leaf, and removed before that is freed.
        let leaf = unsafe { &*leaf };
        let pages = leaf.pages.lock();
        // SAFETY: Called from within the callback, with the lock held that `fault` checks under.
        unsafe { bindings::mmu_interval_set_seq(notifier, seq) };
        drop(pages);
        // SAFETY: The range is valid during this call.
        let (start, end) = unsafe { ((*range).start, (*range).end) };
        leaf.take_out(start, end);
        true
    }
}

#[pinned_drop]
impl PinnedDrop for Leaf {
    /// May sleep.
    fn drop(self: Pin<&mut Self>) {
        self.take_out(0, usize::MAX);
        // SAFETY: By the type invariant it is registered. No lock is held that it may wait for.
        unsafe { bindings::mmu_interval_notifier_remove(self.notifier.get()) };
    }
}

/// Memory of a program, paged on demand.
#[pin_data]
pub struct OdpUmem {
    mm: ARef<Mm>,
    start: usize,
    len: usize,
    writable: bool,
    #[pin]
    leaves: RcuMap<Leaf>,
}

impl OdpUmem {
    /// The `len` bytes at `start` of the current program, of which nothing needs to be mapped. With
    /// `start` 0 and `len` [`u64::MAX`] it is the whole address space.
    ///
    /// # Context
    ///
    /// Process context of the program that owns the memory; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range wraps around or is empty, or if the current task is no user program;
    /// `ENOMEM`.
    pub fn new(start: u64, len: u64, writable: bool) -> Result<impl PinInit<Self, Error>> {
        let start = usize::try_from(start).map_err(|_| EINVAL)?;
        let len = usize::try_from(len).map_err(|_| EINVAL)?;
        start.checked_add(len).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        let current = kernel::current!();
        let mm: &Mm = current.mm().ok_or(EINVAL)?;
        let mm = ARef::from(mm);
        Ok(try_pin_init!(Self {
            mm,
            start,
            len,
            writable,
            leaves <- RcuMap::new(LOG2_BUCKETS),
        }? Error))
    }

    /// Whether it may be written to, if the program may.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of `len` bytes at `offset`.
    fn locate(&self, offset: u64, len: usize) -> Result<usize> {
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        // No overflow: checked in `new`.
        Ok(self.start.wrapping_add(offset))
    }

    /// Calls `copy` with the kernel address and length of each piece that lies in one page.
    fn for_each_piece(
        &self,
        offset: u64,
        len: usize,
        write: bool,
        mut copy: impl FnMut(*mut u8, usize),
    ) -> Result {
        if write && !self.writable {
            return Err(EPERM);
        }
        let mut at = self.locate(offset, len)?;
        let mut left = len;
        let guard = rcu::read_lock();
        while left > 0 {
            let leaf = self.leaves.get(&guard, key(at)?).ok_or(EAGAIN)?;
            let within = at % PAGE_SIZE;
            let piece = left.min(PAGE_SIZE.wrapping_sub(within));
            leaf.with_page(page_in_leaf(at), write, |page| {
                copy(page.wrapping_add(within), piece)
            })?;
            at = at.wrapping_add(piece);
            left = left.wrapping_sub(piece);
        }
        Ok(())
    }

    /// Copies out the bytes at `offset` from the start of the memory.
    ///
    /// # Context
    ///
    /// Process or softirq.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if some are not there: see [`Self::fault`]. `EINVAL` if they are not all inside.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result {
        let mut dst = out.as_mut_ptr();
        self.for_each_piece(offset, out.len(), false, |src, len| {
            // SAFETY: `src` is mapped for `len` bytes; the pieces add up to the length of `out`.
            unsafe { bindings::copy_opaque(dst.cast(), src.cast(), len) };
            dst = dst.wrapping_add(len);
        })
    }

    /// Copies `bytes` to `offset` from the start of the memory. If that fails, a part may have been
    /// copied.
    ///
    /// # Context
    ///
    /// As [`Self::read`].
    ///
    /// # Errors
    ///
    /// As [`Self::read`], and `EPERM` if the memory is not for writing.
    pub fn write(&self, offset: u64, bytes: SharedBytes<'_>) -> Result {
        let mut src = bytes.as_ptr();
        self.for_each_piece(offset, bytes.len(), true, |dst, len| {
            // SAFETY: `dst` is mapped for `len` bytes; the pieces add up to the length of `bytes`.
            unsafe { bindings::copy_opaque(dst.cast(), src.cast(), len) };
            src = src.wrapping_add(len);
        })
    }

    /// Calls `f` with the 64 bits at `offset`, which the program may change at the same time.
    ///
    /// # Context
    ///
    /// As [`Self::read`].
    ///
    /// # Errors
    ///
    /// As [`Self::write`], and `EINVAL` if they are not aligned.
    pub fn with_word<T>(&self, offset: u64, f: impl FnOnce(&Atomic<u64>) -> T) -> Result<T> {
        let mut f = Some(f);
        let mut result = Err(EINVAL);
        self.for_each_piece(offset, size_of::<u64>(), true, |ptr, len| {
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

    /// Brings in the pages of `len` bytes at `offset`. They may go again at any time.
    ///
    /// # Context
    ///
    /// Process, may sleep, for as long as whatever is behind the pages takes. No lock held.
    ///
    /// # Errors
    ///
    /// `EFAULT` if something is not mapped, or not for this; `EINVAL` if it is not all inside; `EPERM`;
    /// `ENOMEM`; `EAGAIN` or `EBUSY` if the address space changes all the time. Never of
    /// [`Fault::Present`], for what is not there.
    pub fn fault(&self, offset: u64, len: usize, fault: Fault) -> Result {
        if fault == Fault::Write && !self.writable {
            return Err(EPERM);
        }
        let at = self.locate(offset, len)?;
        let end = at.wrapping_add(len);
        let mm = self.mm.mmget_not_zero().ok_or(EFAULT)?;
        // Not the last user in this context: it would tear down the address space here.
        let mm = MmWithUser::into_mmput_async(mm);
        let mut at = at & !(PAGE_SIZE.wrapping_sub(1));
        while at < end {
            let first = page_in_leaf(at);
            let wanted = end.wrapping_sub(at).div_ceil(PAGE_SIZE);
            let count = wanted.min(BATCH).min(LEAF_PAGES.wrapping_sub(first));
            self.fault_in_leaf(&mm, at, first, count, fault)?;
            let Some(next) = at.checked_add(count.wrapping_mul(PAGE_SIZE)) else {
                break;
            };
            at = next;
        }
        Ok(())
    }

    fn fault_in_leaf(
        &self,
        mm: &MmWithUser,
        at: usize,
        first: usize,
        count: usize,
        fault: Fault,
    ) -> Result {
        let key = key(at)?;
        let find = || -> Option<Arc<Leaf>> {
            let guard = rcu::read_lock();
            self.leaves.get(&guard, key).map(|leaf| leaf.into())
        };
        loop {
            if let Some(leaf) = find() {
                return leaf.fault(first, count, fault).map(|_| ());
            }
            // A leaf that nothing is found in is not kept, so that holes cost nothing.
            let start = at >> LEAF_SHIFT << LEAF_SHIFT;
            let leaf = Arc::pin_init(Leaf::new(mm, start), GFP_KERNEL_ACCOUNT)?;
            if leaf.fault(first, count, fault)? == 0 {
                return Ok(());
            }
            match self.leaves.insert(key, leaf) {
                Err(EEXIST) => {}
                result => return result,
            }
        }
    }
}

/// The key of the leaf that an address is in.
fn key(at: usize) -> Result<u32> {
    u32::try_from(at >> LEAF_SHIFT).map_err(|_| EFAULT)
}

/// The number of the page in its leaf.
fn page_in_leaf(at: usize) -> usize {
    at / PAGE_SIZE % LEAF_PAGES
}
