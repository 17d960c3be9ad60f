// SPDX-License-Identifier: GPL-2.0
//! A bounded first-in-first-out queue whose storage is allocated once.

use kernel::prelude::*;

/// At most `capacity` values, in order. Pushing and popping allocate nothing, so they may be done
/// in any context under the caller's lock.
pub(crate) struct Fifo<T> {
    slots: KVVec<Option<T>>,
    head: usize,
    used: usize,
}

impl<T> Fifo<T> {
    /// An empty queue for `capacity` values, at least one.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let capacity = capacity.max(1);
        let mut slots = KVVec::with_capacity(capacity, GFP_KERNEL)?;
        for _ in 0..capacity {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            head: 0,
            used: 0,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// How many values there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.slots.len()
    }

    /// The slot that the next pushed value will get.
    pub(crate) fn next_slot(&self) -> usize {
        self.wrap(self.head.wrapping_add(self.used))
    }

    /// Appends a value.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the queue is full.
    pub(crate) fn push(&mut self, value: T) -> Result {
        if self.is_full() {
            return Err(ENOSPC);
        }
        let at = self.next_slot();
        *self.slots.get_mut(at).ok_or(EINVAL)? = Some(value);
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// The oldest value.
    pub(crate) fn front(&self) -> Option<&T> {
        if self.is_empty() {
            return None;
        }
        self.slots.get(self.head)?.as_ref()
    }

    /// Takes the oldest value, with the slot it was in.
    pub(crate) fn pop(&mut self) -> Option<(usize, T)> {
        if self.is_empty() {
            return None;
        }
        let at = self.head;
        let value = self.slots.get_mut(at)?.take();
        self.head = self.wrap(at.wrapping_add(1));
        self.used = self.used.wrapping_sub(1);
        value.map(|value| (at, value))
    }

    /// `index`, less than twice the capacity, folded into the storage.
    fn wrap(&self, index: usize) -> usize {
        index.checked_sub(self.slots.len()).unwrap_or(index)
    }
}
