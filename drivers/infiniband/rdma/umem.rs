// SPDX-License-Identifier: GPL-2.0

//! Memory that work requests and remote peers name: pinned user memory, and the kernel's own.
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h).
//! In the tree this file would be `rust/kernel/rdma/umem.rs`.

mod dma_buf;
mod kernel_memory;
mod odp;
mod persistent;
mod shared;

pub use self::{
    dma_buf::DmaBuf,
    kernel_memory::KernelMemory,
    odp::{
        Fault,
        OdpUmem, //
    },
    shared::SharedBytes,
};

use self::persistent::{
    are_persistent,
    write_back, //
};
use crate::{
    bindings,
    verbs::{
        access,
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
/// - `pages` are its pages in order, all of them persistent memory if `persistent`.
/// - The memory starts `first` bytes into the first, and `first + len`
///   bytes are not more than the pages have.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    pages: KVVec<NonNull<bindings::page>>,
    first: usize,
    len: usize,
    persistent: bool,
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
    /// `EINVAL` if the range wraps around or is empty, if the current task is no user program, or if the
    /// memory loses its contents without power and is to be flushed for persistence;
    /// `EFAULT` if it is not mapped, or not writable where `access` needs it; `ENOMEM` also if
    /// `RLIMIT_MEMLOCK` is exceeded; `EPERM` if nothing may be locked; `EOPNOTSUPP` for on-demand
    /// paging.
    pub fn pin<D: Driver>(device: &Device<D>, addr: u64, len: usize, access: u32) -> Result<Self> {
        // SAFETY: The two are of one device, which is live.
        unsafe { Self::pin_for(device.as_raw(), device.as_ref().into(), addr, len, access) }
    }

    /// [`Umem::pin`].
    ///
    /// # Safety
    ///
    /// `ib` must be a live `ib_device`, and `device` the one in it, whose reference keeps it.
    unsafe fn pin_for(
        ib: *mut bindings::ib_device,
        device: ARef<device::Device>,
        addr: u64,
        len: usize,
        access: u32,
    ) -> Result<Self> {
        let addr = usize::try_from(addr).map_err(|_| EINVAL)?;
        // `ib_umem_get_va()` takes the address space of `current` for granted.
        if len == 0 || kernel::current!().mm().is_none() {
            return Err(EINVAL);
        }
        // CAST: C takes the flags as `int`.
        // SAFETY: The device is live by the safety requirement, and `current` has an address space.
        let raw = kernel::error::from_err_ptr(unsafe {
            bindings::ib_umem_get_va(ib, addr, len, access as c_int)
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // From here on, dropping `this` releases.
        // INVARIANT: There are no pages and no bytes yet.
        let mut this = Self {
            raw,
            pages: KVVec::new(),
            first: 0,
            len: 0,
            persistent: false,
            _device: device,
        };
        this.list_pages()?;
        // SAFETY: The pages are pinned by the type invariant.
        if access & access::FLUSH_PERSISTENT != 0 && !unsafe { are_persistent(&this.pages) } {
            return Err(EINVAL);
        }
        // INVARIANT: Checked above.
        this.persistent = access & access::FLUSH_PERSISTENT != 0;
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

    /// Whether it was pinned to be flushed for persistence: what is written to it is then written back
    /// from the CPU's caches at once.
    pub fn is_persistent(&self) -> bool {
        self.persistent
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
            // SAFETY: `addr` is the innermost mapping: `copy` leaves none behind.
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
    pub fn write(&self, offset: u64, bytes: SharedBytes<'_>) -> Result {
        if !self.is_writable() {
            return Err(EPERM);
        }
        let mut src = bytes.as_ptr();
        self.for_each_piece(offset, bytes.len(), |dst, len| {
            // SAFETY: `dst` is mapped for `len` bytes; the pieces add up to the length of `bytes`.
            unsafe { bindings::copy_opaque(dst.cast(), src.cast(), len) };
            src = src.wrapping_add(len);
            if self.persistent {
                // SAFETY: As above.
                unsafe { write_back(dst, len) };
            }
        })
    }

    /// Calls `f` with the `len` bytes at `offset` from the start of the memory, piece by piece, up to its
    /// first error.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not all inside; inside of that, those of `f`.
    #[inline]
    pub fn pieces<E>(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(SharedBytes<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>> {
        let mut result = Ok(());
        self.for_each_piece(offset, len, |start, len| {
            if result.is_ok() {
                // SAFETY: The piece is mapped until this closure returns.
                result = f(unsafe { SharedBytes::new(start, len) });
            }
        })?;
        Ok(result)
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
                if self.persistent {
                    // SAFETY: As above.
                    unsafe { write_back(ptr.cast(), len) };
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

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_umem)]
mod tests {
    use super::*;
    use crate::verbs::access;
    use kernel::uaccess::{
        UserPtr,
        UserSlice, //
    };

    extern "C" {
        fn kunit_vm_mmap(
            test: *mut kernel::bindings::kunit,
            file: *mut c_void,
            addr: usize,
            len: usize,
            prot: usize,
            flag: usize,
            offset: usize,
        ) -> usize;
    }

    const READ: usize = 1;
    const WRITE: usize = 2;
    /// `MAP_PRIVATE | MAP_ANONYMOUS`.
    const PRIVATE: usize = 0x22;

    /// A device that nobody has registered.
    struct Bare(*mut bindings::ib_device);

    impl Bare {
        fn new() -> Result<Self> {
            let net = crate::net::testing::init_net();
            // SAFETY: The structure is nothing but an `ib_device`, and the namespace is valid.
            let ib = unsafe { bindings::_ib_alloc_device(size_of::<bindings::ib_device>(), net) };
            if ib.is_null() {
                return Err(ENOMEM);
            }
            Ok(Self(ib))
        }

        fn pin(&self, addr: usize, len: usize, access: u32) -> Result<Umem> {
            // SAFETY: The device lives as long as `self`.
            let dev = unsafe { &raw mut (*self.0).__bindgen_anon_1.dev };
            // SAFETY: As above; the two are of one device.
            unsafe {
                Umem::pin_for(
                    self.0,
                    device::Device::get_device(dev.cast()),
                    addr as u64,
                    len,
                    access,
                )
            }
        }
    }

    impl Drop for Bare {
        fn drop(&mut self) {
            // SAFETY: From `_ib_alloc_device`, never registered, not used again.
            unsafe { bindings::ib_dealloc_device(self.0) };
        }
    }

    /// Maps memory into the address space of the running test, which gets one.
    fn map(len: usize, prot: usize) -> Result<usize> {
        // SAFETY: It may be called in any context.
        let test = unsafe { kernel::bindings::kunit_get_current_test() };
        // SAFETY: This is called by tests only, so there is one that runs.
        match unsafe { kunit_vm_mmap(test, core::ptr::null_mut(), 0, len, prot, PRIVATE, 0) } {
            0 => Err(ENOMEM),
            addr => Ok(addr),
        }
    }

    fn poke(addr: usize, bytes: &[u8]) -> Result {
        UserSlice::new(UserPtr::from_addr(addr), bytes.len())
            .writer()
            .write_slice(bytes)
    }

    fn peek(addr: usize, bytes: &mut [u8]) -> Result {
        UserSlice::new(UserPtr::from_addr(addr), bytes.len())
            .reader()
            .read_slice(bytes)
    }

    fn pattern(len: usize) -> Result<KVVec<u8>> {
        let mut bytes = KVVec::with_capacity(len, GFP_KERNEL)?;
        for at in 0..len {
            bytes.push((at.wrapping_mul(7) ^ at >> 8) as u8, GFP_KERNEL)?;
        }
        Ok(bytes)
    }

    /// Starts and ends within pages; copies that start and end anywhere.
    #[test]
    fn walks_over_pages() -> Result {
        const SKIP: usize = 100;
        let device = Bare::new()?;
        let addr = map(4 * PAGE_SIZE, READ | WRITE)?;
        let mut want = pattern(4 * PAGE_SIZE)?;
        poke(addr, &want)?;
        let len = 3 * PAGE_SIZE - 7;
        let umem = device.pin(addr + SKIP, len, access::LOCAL_WRITE)?;
        assert_eq!(umem.len(), len);
        assert!(umem.is_writable());
        let mut got = KVVec::from_elem(0, len, GFP_KERNEL)?;
        let pieces = [
            (0, len),
            (0, 1),
            (len - 1, 1),
            (PAGE_SIZE - SKIP - 1, 2),
            (PAGE_SIZE - SKIP, PAGE_SIZE),
            (5, 2 * PAGE_SIZE),
            (len, 0),
        ];
        for (offset, len) in pieces {
            let got = &mut got[..len];
            umem.read(offset as u64, got)?;
            assert!(*got == want[SKIP + offset..SKIP + offset + len]);
        }
        // What the kernel writes the program sees, and nothing beside it.
        for (number, (offset, len)) in pieces.into_iter().enumerate() {
            let piece = &mut want[SKIP + offset..SKIP + offset + len];
            piece.fill(0xa0 + number as u8);
            umem.write(offset as u64, (&*piece).into())?;
        }
        let mut seen = KVVec::from_elem(0, want.len(), GFP_KERNEL)?;
        peek(addr, &mut seen)?;
        assert!(*seen == *want);
        Ok(())
    }

    #[test]
    fn nothing_beyond_the_end() -> Result {
        let device = Bare::new()?;
        let addr = map(PAGE_SIZE, READ | WRITE)?;
        let umem = device.pin(addr + 10, 100, access::LOCAL_WRITE)?;
        let mut bytes = [7; 8];
        for offset in [93, 100, 101, u64::MAX - 3, u64::MAX] {
            assert!(umem.read(offset, &mut bytes) == Err(EINVAL));
            assert!(umem.write(offset, bytes.as_slice().into()) == Err(EINVAL));
        }
        assert_eq!(bytes, [7; 8]);
        umem.read(92, &mut bytes)
    }

    #[test]
    fn read_only_memory() -> Result {
        let device = Bare::new()?;
        let addr = map(PAGE_SIZE, READ)?;
        assert!(device.pin(addr, 10, access::LOCAL_WRITE).err() == Some(EFAULT));
        let umem = device.pin(addr, 10, 0)?;
        assert!(!umem.is_writable());
        assert!(umem.write(0, [1].as_slice().into()) == Err(EPERM));
        umem.read(0, &mut [1])
    }

    #[test]
    fn what_cannot_be_pinned() -> Result {
        let device = Bare::new()?;
        let addr = map(2 * PAGE_SIZE, READ | WRITE)?;
        let writable = access::LOCAL_WRITE;
        assert!(device.pin(addr, 0, writable).err() == Some(EINVAL));
        assert!(device.pin(addr, usize::MAX, writable).err() == Some(EINVAL));
        assert!(device.pin(usize::MAX - 1, 10, writable).err() == Some(EINVAL));
        // Nothing is mapped at the lowest page.
        assert!(device.pin(0, 10, writable).err() == Some(EFAULT));
        Ok(())
    }
}
