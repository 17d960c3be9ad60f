// SPDX-License-Identifier: GPL-2.0
//! Regions for fast registration: a kernel user lists pages, and work requests make the region valid
//! and invalid.
//!
//! ```text
//!   map_mr_sg --> listed pages --- REG_MR ---> registered pages, valid
//!                                                 | LOCAL_INV, SEND with invalidate
//!                                                 '--> not valid
//! ```
//!
//! The pages are kept twice: users list new ones while the old registration is still to be invalidated
//! by a request that is queued before the new one, and register the same list again and again.
//!
//! The lock is held while memory is copied: when an invalidation is complete, nothing touches the
//! pages any more.

use super::{
    index,
    offset_in,
    Accessor,
    Request, //
};
use crate::uapi::access;
use kernel::{
    prelude::*,
    sync::atomic::Atomic, //
};
use rdma::{
    sync::SpinLockIrqSave,
    umem::{
        KernelMemory,
        SharedBytes, //
    }, //
};
use roce::env::MemoryError;

/// What any fast registration may allow.
const ACCESS: u32 = access::LOCAL_WRITE | REMOTE;

const REMOTE: u32 =
    access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::FLUSH_GLOBAL;

/// Pages of one size.
struct Pages {
    /// Address of each page, in the kernel's map of all memory.
    pages: KVVec<u64>,
    used: usize,
    /// Bytes of a page, a power of two.
    size: u64,
    /// Bytes in the first page before the memory.
    first: u64,
}

impl Pages {
    fn new(max: usize) -> Result<Self> {
        Ok(Self {
            pages: KVVec::from_elem(0, max, GFP_KERNEL)?,
            used: 0,
            size: 1,
            first: 0,
        })
    }

    /// Bytes from the start of the memory to the end of the last page.
    fn len(&self) -> u64 {
        (self.used as u64)
            .saturating_mul(self.size)
            .saturating_sub(self.first)
    }

    fn copy_from(&mut self, other: &Self) {
        let used = other.used;
        if let (Some(to), Some(from)) = (self.pages.get_mut(..used), other.pages.get(..used)) {
            to.copy_from_slice(from);
            self.used = used;
            self.size = other.size;
            self.first = other.first;
        }
    }

    /// Address of the byte at `offset` from the start of the memory, and the bytes from it to the end of
    /// its page.
    fn at(&self, offset: u64) -> Option<(u64, u64)> {
        let at = self.first.checked_add(offset)?;
        let within = at & self.size.wrapping_sub(1);
        let number = at.checked_shr(self.size.trailing_zeros())?;
        let page = self
            .pages
            .get(..self.used)?
            .get(usize::try_from(number).ok()?)?;
        Some((page.wrapping_add(within), self.size.wrapping_sub(within)))
    }
}

/// Registered pages and the right to reach them.
pub(crate) struct PageList {
    pages: Pages,
    memory: KernelMemory,
}

impl PageList {
    /// Calls `copy` with the address and the range of the buffer for each piece of `len` bytes at
    /// `offset` that lies in one page.
    fn for_each_piece(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(u64, core::ops::Range<usize>) -> Result,
    ) -> Result {
        let mut done = 0usize;
        while done < len {
            let at = offset.checked_add(done as u64).ok_or(EINVAL)?;
            let (addr, room) = self.pages.at(at).ok_or(EINVAL)?;
            let piece = room.min(len.wrapping_sub(done) as u64) as usize;
            let end = done.wrapping_add(piece);
            copy(addr, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Copies out, from `offset` on.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result {
        self.for_each_piece(offset, buf.len(), |addr, range| {
            self.memory.read(addr, buf.get_mut(range).ok_or(EINVAL)?)
        })
    }

    /// Calls `f` with the 64 bits at `offset`.
    pub(super) fn with_word<T>(&self, offset: u64, f: impl FnOnce(&Atomic<u64>) -> T) -> Result<T> {
        let (addr, room) = self.pages.at(offset).ok_or(EINVAL)?;
        if room < size_of::<u64>() as u64 {
            return Err(EINVAL);
        }
        self.memory.with_word(addr, f)
    }

    /// Copies in, from `offset` on.
    pub(super) fn write(&self, offset: u64, bytes: SharedBytes<'_>) -> Result {
        self.for_each_piece(offset, bytes.len(), |addr, range| {
            self.memory.write(addr, bytes.get(range).ok_or(EINVAL)?)
        })
    }
}

struct State {
    listed: Pages,
    backing: super::Backing,
    valid: bool,
    key: u32,
    access: u32,
    iova: u64,
    length: u64,
}

/// A region for fast registration.
#[pin_data]
pub(crate) struct FastRegion {
    pd: usize,
    #[pin]
    state: SpinLockIrqSave<State>,
}

/// What a registration asks for.
#[derive(Clone, Copy)]
pub(crate) struct Register {
    /// A key of the region.
    pub(crate) region: u32,
    /// Its key from now on; only the low byte may be another one.
    pub(crate) key: u32,
    /// Of [`access`].
    pub(crate) access: u32,
    /// First virtual address.
    pub(crate) iova: u64,
    /// Bytes.
    pub(crate) length: u64,
}

impl FastRegion {
    /// A region of at most `max` pages.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(
        key: u32,
        pd: usize,
        max: usize,
        memory: KernelMemory,
    ) -> Result<impl PinInit<Self>> {
        let state = State {
            listed: Pages::new(max)?,
            backing: super::Backing::Pages(PageList {
                pages: Pages::new(max)?,
                memory,
            }),
            valid: false,
            key,
            access: 0,
            iova: 0,
            length: 0,
        };
        Ok(pin_init!(Self {
            pd,
            state <- rdma::new_spinlock_irqsave!(state, "ferroce_fast_region"),
        }))
    }

    /// A list of pages of `size` bytes begins.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is not a power of two.
    pub(crate) fn begin_map(&self, size: u32) -> Result {
        if !size.is_power_of_two() {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        state.listed.used = 0;
        state.listed.size = u64::from(size);
        state.listed.first = 0;
        Ok(())
    }

    /// Adds a page.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full.
    pub(crate) fn map_page(&self, addr: u64) -> Result {
        let mut state = self.state.lock();
        let listed = &mut state.listed;
        *listed.pages.get_mut(listed.used).ok_or(ENOMEM)? = addr;
        listed.used = listed.used.wrapping_add(1);
        Ok(())
    }

    /// The memory starts at this address of the first page.
    pub(crate) fn end_map(&self, first: u64) {
        let mut state = self.state.lock();
        state.listed.first = first & state.listed.size.wrapping_sub(1);
    }

    //= IBA 10.6.7.2.1
    /// Makes the region valid.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if it is valid, in another domain, or not as large as it should become.
    pub(super) fn register(&self, who: &Accessor, register: &Register) -> Result<(), MemoryError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let allowed = !state.valid
            && who.pd == self.pd
            && index(register.key) == index(state.key)
            && register.access & !(ACCESS | access::OPTIONAL) == 0
            && register.iova.checked_add(register.length).is_some()
            && register.length <= state.listed.len();
        let super::Backing::Pages(list) = &mut state.backing else {
            return Err(MemoryError::Access);
        };
        if !allowed {
            return Err(MemoryError::Access);
        }
        list.pages.copy_from(&state.listed);
        state.key = register.key;
        state.access = register.access & ACCESS;
        state.iova = register.iova;
        state.length = register.length;
        state.valid = true;
        Ok(())
    }

    //= IBA 10.6.7.2.5
    /// Makes the region invalid. Locally that may be done again; a peer may do it to what it may reach.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] for another key or domain, or if the peer may not.
    pub(super) fn invalidate(
        &self,
        who: &Accessor,
        key: u32,
        remote: bool,
    ) -> Result<(), MemoryError> {
        let mut state = self.state.lock();
        let may = !remote || state.valid && state.access & REMOTE != 0;
        if key != state.key || who.pd != self.pd || !may {
            return Err(MemoryError::Access);
        }
        state.valid = false;
        Ok(())
    }

    /// Checks that all of the region may be used with `rights`.
    pub(super) fn check_key(
        &self,
        who: &Accessor,
        key: u32,
        rights: u32,
    ) -> Result<(), MemoryError> {
        self.check(&self.state.lock(), who, key, rights)
    }

    fn check(
        &self,
        state: &State,
        who: &Accessor,
        key: u32,
        rights: u32,
    ) -> Result<(), MemoryError> {
        let allowed =
            state.valid && key == state.key && who.pd == self.pd && rights & !state.access == 0;
        if !allowed {
            return Err(MemoryError::Access);
        }
        Ok(())
    }

    /// Checks a request and calls `f` with the bytes and the offset in them.
    pub(super) fn access<T>(
        &self,
        who: &Accessor,
        request: &Request,
        f: impl FnOnce(&super::Backing, u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let state = self.state.lock();
        self.check(&state, who, request.key, request.rights)?;
        let offset = offset_in(state.iova, state.length, request.va, request.length)?;
        f(&state.backing, offset)
    }
}
