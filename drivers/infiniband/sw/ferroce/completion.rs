// SPDX-License-Identifier: GPL-2.0
//! Completion queues.
//!
//! A CQ of user space is a ring that the process polls by itself; a CQ of a kernel user is an
//! array here. Its lock is the innermost one: it is taken under a QP's lock, and with interrupts
//! off by kernel users. Nothing is called with it held: [`CompletionQueue::push`] says whether the
//! handler is due, and the caller calls it once its own locks are dropped.

use crate::{
    fifo::Fifo,
    queue::{
        Producer,
        Ring, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    sync::{
        Number,
        SpinLockIrqSave, //
    },
    verbs::{
        CqNotifier,
        QpNotifier,
        Wc,
        WcSink, //
    }, //
};
/// When the completion handler is to be called.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// Where the elements are.
enum Store {
    User(Producer),
    /// With whom each one is about.
    Kernel(Fifo<(Wc, Arc<QpNotifier>)>),
}

impl Store {
    fn push(&mut self, wc: &Wc, qp: &Arc<QpNotifier>) -> Result {
        match self {
            Self::User(ring) => ring.push(&wc.to_uverbs()),
            Self::Kernel(fifo) => fifo.push((*wc, qp.clone())),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::User(ring) => ring.is_empty(),
            Self::Kernel(fifo) => fifo.is_empty(),
        }
    }
}

struct State {
    store: Store,
    armed: Armed,
    overflowed: bool,
}

/// The queue is full, or was once: the element is lost.
pub(crate) struct Overflow {
    /// It is the first: [`CompletionQueue::report_overflow`] is due.
    pub(crate) first: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct CompletionQueue {
    notifier: Arc<CqNotifier>,
    /// Counts it among those of the device.
    _number: Number,
    /// One change of the size at a time.
    #[pin]
    resizing: Mutex<()>,
    #[pin]
    state: SpinLockIrqSave<State>,
}

impl CompletionQueue {
    /// A CQ whose elements go to a ring that user space polls.
    pub(crate) fn new_user(
        ring: Producer,
        number: Number,
        notifier: Arc<CqNotifier>,
    ) -> Result<Arc<Self>> {
        Self::new(Store::User(ring), number, notifier)
    }

    /// A CQ of a kernel user, with room for `capacity` elements.
    pub(crate) fn new_kernel(
        capacity: u32,
        number: Number,
        notifier: Arc<CqNotifier>,
    ) -> Result<Arc<Self>> {
        let fifo = Fifo::new(capacity as usize)?;
        Self::new(Store::Kernel(fifo), number, notifier)
    }

    fn new(store: Store, number: Number, notifier: Arc<CqNotifier>) -> Result<Arc<Self>> {
        let state = State {
            store,
            armed: Armed::No,
            overflowed: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                notifier,
                _number: number,
                resizing <- new_mutex!((), "ferroce_resize"),
                state <- rdma::new_spinlock_irqsave!(state, "ferroce_cq"),
            }),
            GFP_KERNEL,
        )
    }

    /// Puts an element on the queue. `Ok(true)`: [`Self::notify`] is due.
    ///
    /// A full queue loses the element, says so in an asynchronous event (once), and tells the
    /// caller, whose QP must go into error (IBTA 11.2.8.3).
    ///
    /// # Context
    ///
    /// Any; takes the CQ's lock.
    pub(crate) fn push(
        &self,
        wc: &Wc,
        qp: &Arc<QpNotifier>,
        solicited: bool,
    ) -> Result<bool, Overflow> {
        let mut state = self.state.lock();
        if state.overflowed || state.store.push(wc, qp).is_err() {
            let first = !state.overflowed;
            state.overflowed = true;
            return Err(Overflow { first });
        }
        let due = match state.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Next => true,
        };
        if due {
            state.armed = Armed::No;
        }
        Ok(due)
    }

    /// Moves the queue of a user program to another ring, with what is in it.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the ring is too small for that, if the queue has overflowed, or is that of a kernel
    /// user; then nothing has changed.
    pub(crate) fn resize(&self, ring: Ring) -> Result {
        let _one = self.resizing.lock();
        let mut transfer = match &self.state.lock().store {
            Store::User(producer) => producer.begin_resize(ring),
            Store::Kernel(_) => return Err(EINVAL),
        };
        transfer.copy()?;
        let mut state = self.state.lock();
        if state.overflowed {
            return Err(EINVAL);
        }
        match &mut state.store {
            Store::User(producer) => producer.finish_resize(&mut transfer)?,
            Store::Kernel(_) => return Err(EINVAL),
        }
        // The old ring goes with the transfer, once the lock is dropped.
        drop(state);
        Ok(())
    }

    /// Calls the completion handler.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(crate) fn notify(&self) {
        self.notifier.notify();
    }

    /// Reports that the queue overflowed.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(crate) fn report_overflow(&self) {
        self.notifier.error();
    }

    /// Arms the handler for the next completion, or the next solicited one. Returns whether there
    /// is something to poll already, for callers that asked.
    pub(crate) fn arm(&self, solicited_only: bool, report_missed: bool) -> bool {
        let mut state = self.state.lock();
        if state.armed != Armed::Next {
            state.armed = if solicited_only {
                Armed::Solicited
            } else {
                Armed::Next
            };
        }
        report_missed && !state.store.is_empty()
    }

    /// Whether all elements have been taken off.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().store.is_empty()
    }

    /// Takes elements off the queue of a kernel user until `out` is full.
    pub(crate) fn poll(&self, out: &mut WcSink<'_>) {
        let mut state = self.state.lock();
        if let Store::Kernel(fifo) = &mut state.store {
            while fifo.front().is_some_and(|(wc, qp)| out.push(wc, qp)) {
                let _ = fifo.pop();
            }
        }
    }
}
