// SPDX-License-Identifier: GPL-2.0
//! Work requests of a kernel user that the QP has not taken yet.
//!
//! Kernel users post in any context, with interrupts off as well, so posting only stores the
//! request here; the QP takes it under its own lock, which is a bottom-half one.

use crate::{
    fifo::Fifo,
    uapi::Sge, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::sync::SpinLockIrqSave;

struct Inner<T> {
    requests: Fifo<(T, usize)>,
    /// The lists of all slots of `requests`, `max_sge` entries each.
    sges: KVVec<Sge>,
    max_sge: usize,
}

/// A bounded queue of requests with their scatter-gather lists.
#[pin_data]
pub(crate) struct Posted<T> {
    #[pin]
    inner: SpinLockIrqSave<Inner<T>>,
}

impl<T> Posted<T> {
    /// Room for `capacity` requests with at most `max_sge` list entries each.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Result<Arc<Self>> {
        let capacity = capacity.max(1) as usize;
        let max_sge = max_sge.max(1) as usize;
        let total = capacity.checked_mul(max_sge).ok_or(EINVAL)?;
        let inner = Inner {
            requests: Fifo::new(capacity)?,
            sges: KVVec::from_elem(Sge::default(), total, GFP_KERNEL)?,
            max_sge,
        };
        Arc::pin_init(
            pin_init!(Self {
                inner <- rdma::new_spinlock_irqsave!(inner, "ferroce_posted"),
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
    /// `ENOMEM` if the queue is full (as other drivers answer), `EINVAL` if the list is too long.
    pub(crate) fn push(&self, request: T, sges: impl Iterator<Item = Sge>) -> Result {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.requests.is_full() {
            return Err(ENOMEM);
        }
        let start = inner.requests.next_slot().wrapping_mul(inner.max_sge);
        let list = inner
            .sges
            .get_mut(start..start.wrapping_add(inner.max_sge))
            .ok_or(EINVAL)?;
        let mut count = 0usize;
        for sge in sges {
            *list.get_mut(count).ok_or(EINVAL)? = sge;
            count = count.wrapping_add(1);
        }
        inner.requests.push((request, count))
    }

    /// Takes the oldest request and copies its list to `list`. Returns the request and the length
    /// of its list.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn pop(&self, list: &mut [Sge]) -> Option<(T, usize)> {
        let mut inner = self.inner.lock();
        let (slot, (request, count)) = inner.requests.pop()?;
        let start = slot.wrapping_mul(inner.max_sge);
        let stored = inner.sges.get(start..start.wrapping_add(count))?;
        list.get_mut(..count)?.copy_from_slice(stored);
        Some((request, count))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().requests.is_empty()
    }

    /// Throws everything away.
    pub(crate) fn clear(&self) {
        while self.inner.lock().requests.pop().is_some() {}
    }
}
