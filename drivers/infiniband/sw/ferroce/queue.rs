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

/// A ring's memory and geometry.
pub(crate) struct Ring {
    memory: Arc<SharedMemory>,
    entry: MmapEntry,
    shift: u32,
    mask: u32,
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
        let memory = SharedMemory::new(size as usize)?;
        let shift = elem.trailing_zeros();
        let mask = slots.wrapping_sub(1);
        memory.store_release(queue_buf::LOG2_ELEM_SIZE, shift);
        memory.store_release(queue_buf::INDEX_MASK, mask);
        let entry = ucontext.map(memory.clone())?;
        Ok(Self {
            memory,
            entry,
            shift,
            mask,
        })
    }

    /// What the provider needs to map the ring.
    pub(crate) fn mmap_info(&self) -> crate::uapi::MmapInfo {
        crate::uapi::MmapInfo::new(self.entry.offset(), self.entry.len() as u32)
    }

    /// The most elements that the ring can hold.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask
    }

    /// Byte offset of slot `index` in the mapping.
    #[inline]
    fn offset(&self, index: u32) -> usize {
        ((index & self.mask) as usize)
            .wrapping_shl(self.shift)
            .wrapping_add(queue_buf::DATA)
    }

    /// Bytes of a slot.
    pub(crate) fn elem_bytes(&self) -> u32 {
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
        self.memory
            .read(self.offset(index).wrapping_add(offset), buf)
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
        (self.ring.producer() != self.next).then_some(self.next)
    }

    /// Goes on to the next slot; user space does not see that yet.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1) & self.ring.mask;
    }

    /// Gives all slots before `index` back to user space.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.ring
            .memory
            .store_release(queue_buf::CONSUMER, index & self.ring.mask);
    }

    /// Gives all slots that were passed back to user space.
    #[inline]
    pub(crate) fn release_passed(&self) {
        self.release(self.next);
    }

    /// Throws away whatever is posted (reset of a QP). Returns the new position.
    pub(crate) fn discard(&mut self) -> u32 {
        self.next = self.ring.producer();
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
        self.ring.consumer() == self.next
    }

    /// Puts `elem` in the next slot and publishes it.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the ring is full.
    pub(crate) fn push(&mut self, elem: &[u8]) -> Result {
        let after = self.next.wrapping_add(1) & self.ring.mask;
        if after == self.ring.consumer() {
            return Err(ENOSPC);
        }
        if elem.len() > self.ring.elem_bytes() as usize {
            return Err(EINVAL);
        }
        self.ring.memory.write(self.ring.offset(self.next), elem)?;
        self.next = after;
        self.ring.memory.store_release(queue_buf::PRODUCER, after);
        Ok(())
    }
}
