// SPDX-License-Identifier: GPL-2.0
//! Rings shared with user space: `struct rxe_queue_buf` and its index protocol.
//!
//! An index runs from 0 to the mask and is always stored masked; a ring is empty when both
//! indices are equal and full when the producer stands one slot behind the consumer. The producer
//! stores its index with release, the other side loads it with acquire.
//!
//! The whole mapping is user-writable, header and the kernel's index included. So the kernel keeps
//! its own index, mask and element size in private memory; what it reads of the other side's
//! index is masked before use, and a lie there only harms the liar's own queue.

use crate::uapi::queue_buf;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    mmap::MmapEntry,
    shared_memory::SharedMemory,
    verbs::Ucontext, //
};

/// The memory of a ring and its geometry. A clone is the same memory.
#[derive(Clone)]
struct Area {
    memory: Arc<SharedMemory>,
    shift: u32,
    mask: u32,
}

impl Area {
    /// Byte offset of slot `index` in the mapping.
    #[inline]
    fn offset(&self, index: u32) -> usize {
        ((index & self.mask) as usize)
            .wrapping_shl(self.shift)
            .wrapping_add(queue_buf::DATA)
    }

    /// Bytes of a slot.
    fn elem_bytes(&self) -> u32 {
        1u32.wrapping_shl(self.shift)
    }

    #[inline]
    fn producer(&self) -> u32 {
        self.memory.load_acquire(queue_buf::PRODUCER) & self.mask
    }

    #[inline]
    fn consumer(&self) -> u32 {
        self.memory.load_acquire(queue_buf::CONSUMER) & self.mask
    }

    /// How far slot `to` is after slot `from`.
    #[inline]
    fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }
}

/// Who puts elements in a ring.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Filler {
    /// User space, where it likes: memory comes when it is touched.
    User,
    /// The kernel, which must not lack memory then: it is there from the beginning.
    Kernel,
}

/// A ring that user space can map.
pub(crate) struct Ring {
    area: Area,
    entry: MmapEntry,
}

impl Ring {
    /// Makes a ring of at least `entries` usable slots of at least `elem_size` bytes each and
    /// offers it to `ucontext` for mapping.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the size does not fit 32 bits, `ENOMEM`.
    pub(crate) fn new(
        ucontext: &Ucontext<crate::device::Ferroce>,
        entries: u32,
        elem_size: u32,
        filler: Filler,
    ) -> Result<Self> {
        // One slot stays empty to tell full from empty.
        let slots = entries
            .checked_add(1)
            .and_then(u32::checked_next_power_of_two)
            .ok_or(EINVAL)?;
        let elem = elem_size
            .max(64)
            .checked_next_power_of_two()
            .ok_or(EINVAL)?;
        let size = u64::from(slots)
            .checked_mul(u64::from(elem))
            .and_then(|n| n.checked_add(queue_buf::DATA as u64))
            .filter(|n| *n <= u64::from(u32::MAX >> 1))
            .ok_or(EINVAL)?;
        let ready = match filler {
            Filler::User => queue_buf::DATA,
            Filler::Kernel => size as usize,
        };
        let memory = SharedMemory::new(size as usize, ready)?;
        let shift = elem.trailing_zeros();
        let mask = slots.wrapping_sub(1);
        memory.store_release(queue_buf::LOG2_ELEM_SIZE, shift);
        memory.store_release(queue_buf::INDEX_MASK, mask);
        let entry = ucontext.map(memory.clone())?;
        let area = Area {
            memory,
            shift,
            mask,
        };
        Ok(Self { area, entry })
    }

    /// What the provider needs to map the ring.
    pub(crate) fn mmap_info(&self) -> crate::uapi::MmapInfo {
        crate::uapi::MmapInfo::new(self.entry.offset(), self.entry.len() as u32)
    }

    /// The most elements that the ring can hold.
    pub(crate) fn capacity(&self) -> u32 {
        self.area.mask
    }

    /// Bytes of a slot.
    pub(crate) fn elem_bytes(&self) -> u32 {
        self.area.elem_bytes()
    }

    /// Copies `buf.len()` bytes from `offset` bytes into slot `index`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is not inside the slot.
    pub(crate) fn read(&self, index: u32, offset: usize, buf: &mut [u8]) -> Result {
        let end = offset.checked_add(buf.len()).ok_or(EINVAL)?;
        if end > self.elem_bytes() as usize {
            return Err(EINVAL);
        }
        let area = &self.area;
        area.memory
            .read(area.offset(index).wrapping_add(offset), buf)
    }
}

/// The elements of a ring on their way to another one, which takes its place.
///
/// Most are copied before the owner of the ring locks it ([`Self::copy`]), the rest under its
/// lock. What the other side changes meanwhile it changes for itself.
pub(crate) struct Transfer {
    from: Area,
    to: Ring,
    /// The first element, as it was at the beginning.
    start: u32,
    /// So many have been copied.
    copied: u32,
}

/// A transfer goes on without the lock while there are more elements than this left to copy,
const FEW: u32 = 64;

/// and at most so often: elements may come in faster than they are copied.
const ROUNDS: u32 = 8;

impl Transfer {
    fn new(from: &Area, start: u32, to: Ring) -> Self {
        Self {
            from: from.clone(),
            to,
            start,
            copied: 0,
        }
    }

    /// Copies what is in the ring now, but perhaps for the last few.
    ///
    /// # Context
    ///
    /// Process context; no lock of the ring's owner.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the other ring is too small.
    pub(crate) fn copy(&mut self) -> Result {
        for _ in 0..ROUNDS {
            let end = self.from.producer();
            let left = self
                .from
                .distance(self.start, end)
                .wrapping_sub(self.copied);
            if left <= FEW {
                break;
            }
            self.copy_until(end)?;
        }
        Ok(())
    }

    fn copy_until(&mut self, end: u32) -> Result {
        const PIECE: usize = 64;
        let count = self.from.distance(self.start, end);
        let to = &self.to.area;
        if count > to.mask {
            return Err(EINVAL);
        }
        let bytes = self.from.elem_bytes().min(to.elem_bytes()) as usize;
        let mut piece = [0u8; PIECE];
        for n in self.copied..count {
            let (src, dst) = (
                self.from.offset(self.start.wrapping_add(n)),
                to.offset(n), //
            );
            for at in (0..bytes).step_by(PIECE) {
                self.from.memory.read(src.wrapping_add(at), &mut piece)?;
                to.memory.write(dst.wrapping_add(at), &piece)?;
            }
        }
        self.copied = count;
        Ok(())
    }

    /// Copies the rest, up to `end`, and puts the new ring in the place of `ring`; the first
    /// element that has not been passed was `first`. Returns the indices of first and end there.
    /// What is left of the transfer is to be dropped when no lock is held.
    fn finish(&mut self, ring: &mut Ring, first: u32, end: u32) -> Result<(u32, u32)> {
        self.copy_until(end)?;
        let first = self.from.distance(self.start, first).min(self.copied);
        let memory = &self.to.area.memory;
        memory.store_release(queue_buf::CONSUMER, first);
        memory.store_release(queue_buf::PRODUCER, self.copied);
        core::mem::swap(ring, &mut self.to);
        Ok((first, self.copied))
    }
}

/// The kernel's end of a ring that user space fills: send and receive queues.
pub(crate) struct Consumer {
    ring: Ring,
    /// Next slot to look at.
    next: u32,
}

impl Consumer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, next: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The index of the next filled slot, if there is one.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u32> {
        (self.ring.area.producer() != self.next).then_some(self.next)
    }

    /// Whether the index of user space is none: the ring was written to at random.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        let area = &self.ring.area;
        area.memory.load_relaxed(queue_buf::PRODUCER) > area.mask
    }

    /// The number of filled slots.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        let area = &self.ring.area;
        area.distance(self.next, area.producer())
    }

    /// Begins to move to another ring.
    pub(crate) fn begin_resize(&self, to: Ring) -> Transfer {
        Transfer::new(&self.ring.area, self.next, to)
    }

    /// Moves to the ring that `transfer` leads to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is too small; then nothing has changed.
    pub(crate) fn finish_resize(&mut self, transfer: &mut Transfer) -> Result {
        let end = self.ring.area.producer();
        (self.next, _) = transfer.finish(&mut self.ring, self.next, end)?;
        Ok(())
    }

    /// How many slots are filled, by what user space says.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.area.producer().wrapping_sub(self.next) & self.ring.area.mask
    }

    /// Goes on to the next slot; user space does not see that yet.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1) & self.ring.area.mask;
    }

    /// Gives all slots before `index` back to user space.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        let area = &self.ring.area;
        area.memory
            .store_release(queue_buf::CONSUMER, index & area.mask);
    }

    /// Gives all slots that were passed back to user space.
    #[inline]
    pub(crate) fn release_passed(&self) {
        self.release(self.next);
    }

    /// Throws away whatever is posted (reset of a QP). Returns the new position.
    pub(crate) fn discard(&mut self) -> u32 {
        self.next = self.ring.area.producer();
        self.release(self.next);
        self.next
    }
}

/// The kernel's end of a ring that user space empties: completion queues.
pub(crate) struct Producer {
    ring: Ring,
    /// Next slot to fill.
    next: u32,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, next: 0 }
    }

    /// Whether user space has taken everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.area.consumer() == self.next
    }

    /// Puts `elem` in the next slot and publishes it.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the ring is full.
    pub(crate) fn push(&mut self, elem: &[u8]) -> Result {
        let area = &self.ring.area;
        let after = self.next.wrapping_add(1) & area.mask;
        if after == area.consumer() {
            return Err(ENOSPC);
        }
        if elem.len() > area.elem_bytes() as usize {
            return Err(EINVAL);
        }
        area.memory.write(area.offset(self.next), elem)?;
        self.next = after;
        area.memory.store_release(queue_buf::PRODUCER, after);
        Ok(())
    }

    /// Begins to move to another ring. User space must not take elements until the end.
    pub(crate) fn begin_resize(&self, to: Ring) -> Transfer {
        let area = &self.ring.area;
        Transfer::new(area, area.consumer(), to)
    }

    /// Moves to the ring that `transfer` leads to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is too small; then nothing has changed.
    pub(crate) fn finish_resize(&mut self, transfer: &mut Transfer) -> Result {
        let first = self.ring.area.consumer();
        (_, self.next) = transfer.finish(&mut self.ring, first, self.next)?;
        Ok(())
    }
}
