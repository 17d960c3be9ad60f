// SPDX-License-Identifier: GPL-2.0
//! Work requests of a kernel user that nobody has taken yet.
//!
//! Kernel users post in any context, with interrupts off as well, so posting only stores the
//! request here; a QP takes it under its own lock, which is a bottom-half one.

use crate::{
    fifo::Fifo,
    uapi::Sge, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::sync::SpinLockIrqSave;

/// A bounded queue of requests with their scatter-gather lists, for under a lock.
pub(crate) struct Requests<T> {
    requests: Fifo<(T, usize)>,
    /// The lists of all slots of `requests`, `max_sge` entries each.
    sges: KVVec<Sge>,
    max_sge: usize,
}

impl<T> Requests<T> {
    /// Room for `capacity` requests with at most `max_sge` list entries each.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Result<Self> {
        let capacity = capacity.max(1) as usize;
        let max_sge = max_sge.max(1) as usize;
        let total = capacity.checked_mul(max_sge).ok_or(EINVAL)?;
        Ok(Self {
            requests: Fifo::new(capacity)?,
            sges: KVVec::from_elem(Sge::default(), total, GFP_KERNEL)?,
            max_sge,
        })
    }

    /// Stores a request, whose list `fill` writes to the slot that it is given; it returns the
    /// number of entries that it used.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full (as other drivers answer); those of `fill`.
    pub(crate) fn push(
        &mut self,
        request: T,
        fill: impl FnOnce(&mut [Sge]) -> Result<usize>,
    ) -> Result {
        if self.requests.is_full() {
            return Err(ENOMEM);
        }
        let start = self.requests.next_slot().wrapping_mul(self.max_sge);
        let list = self
            .sges
            .get_mut(start..start.wrapping_add(self.max_sge))
            .ok_or(EINVAL)?;
        let count = fill(list)?;
        self.requests.push((request, count))
    }

    /// Takes the oldest request and copies its list to `list`. Returns the request and the length
    /// of its list.
    pub(crate) fn pop(&mut self, list: &mut [Sge]) -> Option<(T, usize)> {
        let (slot, (request, count)) = self.requests.pop()?;
        let start = slot.wrapping_mul(self.max_sge);
        let stored = self.sges.get(start..start.wrapping_add(count))?;
        list.get_mut(..count)?.copy_from_slice(stored);
        Some((request, count))
    }

    /// Throws the oldest request away. Returns whether there was one.
    pub(crate) fn skip(&mut self) -> bool {
        self.requests.pop().is_some()
    }

    /// How many requests are waiting.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many requests there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.requests.capacity()
    }
}

/// Copies `sges` to the slot of a request, of which it may use `max` entries. Returns their number.
///
/// # Errors
///
/// `EINVAL` if there are more.
pub(crate) fn copy_list(
    to: &mut [Sge],
    max: usize,
    sges: impl ExactSizeIterator<Item = Sge>,
) -> Result<usize> {
    let count = sges.len();
    let to = to.get_mut(..count).filter(|_| count <= max).ok_or(EINVAL)?;
    to.iter_mut().zip(sges).for_each(|(to, sge)| *to = sge);
    Ok(count)
}

/// [`Requests`] under a lock of their own.
#[pin_data]
pub(crate) struct Posted<T> {
    #[pin]
    requests: SpinLockIrqSave<Requests<T>>,
}

impl<T> Posted<T> {
    /// As [`Requests::new`].
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Result<Arc<Self>> {
        let requests = Requests::new(capacity, max_sge)?;
        Arc::pin_init(
            pin_init!(Self {
                requests <- rdma::new_spinlock_irqsave!(requests, "ferroce_posted"),
            }),
            GFP_KERNEL,
        )
    }

    /// Stores a request.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Those of [`Requests::push`].
    pub(crate) fn push(
        &self,
        request: T,
        fill: impl FnOnce(&mut [Sge]) -> Result<usize>,
    ) -> Result {
        self.requests.lock().push(request, fill)
    }

    /// Takes the oldest request, as [`Requests::pop`].
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn pop(&self, list: &mut [Sge]) -> Option<(T, usize)> {
        self.requests.lock().pop(list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.lock().len() == 0
    }

    /// Throws everything away.
    pub(crate) fn clear(&self) {
        while self.requests.lock().skip() {}
    }
}
