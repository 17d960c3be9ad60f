// SPDX-License-Identifier: GPL-2.0
//! Receive queues: where responders get their receive WQEs.
//!
//! A queue belongs to one QP, or is shared by several (SRQ). A WQE is copied out once, when the
//! first packet of a message needs it, list and all, and checked; its slot goes back to user space
//! at that moment. The lock is one of the innermost: it is taken under a QP's lock, and with
//! interrupts off by kernel users. Nothing is called with it held: [`ReceiveQueue::take`] says which
//! event is due, and the caller reports it once its own locks are dropped.

use crate::{
    posted::{
        copy_list,
        Requests, //
    },
    queue::{
        Consumer,
        Ring, //
    },
    uapi::{
        self,
        Sge, //
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
    sync::SpinLockIrqSave,
    verbs::{
        SrqEvent,
        SrqNotifier, //
    }, //
};
use roce::{
    env::Receive,
    wqe::RecvWqe, //
};
use zerocopy::{
    FromZeros,
    IntoBytes, //
};

/// Where receive WQEs come from.
pub(crate) enum Source {
    /// A ring shared with user space.
    User(Consumer),
    /// A queue filled by a kernel user; the value is the `wr_id`.
    Kernel(Requests<u64>),
}

impl Source {
    fn len(&self) -> u32 {
        match self {
            Self::User(ring) => ring.len(),
            Self::Kernel(requests) => requests.len() as u32,
        }
    }

    fn capacity(&self) -> u32 {
        match self {
            Self::User(ring) => ring.ring().capacity(),
            Self::Kernel(requests) => requests.capacity() as u32,
        }
    }
}

struct State {
    source: Source,
    /// An event is due when there are less WQEs than this.
    limit: u32,
    broken: bool,
}

/// What was taken off a queue.
pub(crate) struct Taken {
    /// The answer for the responder.
    pub(crate) receive: Receive,
    /// Entries in the list of the WQE.
    pub(crate) num_sge: usize,
    /// [`ReceiveQueue::report`] is due.
    pub(crate) event: Option<SrqEvent>,
}

impl Taken {
    fn nothing(receive: Receive) -> Self {
        Self {
            receive,
            num_sge: 0,
            event: None,
        }
    }
}

/// A receive queue.
#[pin_data]
pub(crate) struct ReceiveQueue {
    pd: usize,
    max_sge: u32,
    is_user: bool,
    /// Of a shared queue.
    notifier: Option<Arc<SrqNotifier>>,
    /// One change of the size at a time.
    #[pin]
    resizing: Mutex<()>,
    #[pin]
    state: SpinLockIrqSave<State>,
}

impl ReceiveQueue {
    /// A queue whose WQEs have at most `max_sge` entries, in the protection domain `pd`; one with a
    /// notifier is shared.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(
        source: Source,
        max_sge: u32,
        pd: usize,
        notifier: Option<Arc<SrqNotifier>>,
    ) -> Result<Arc<Self>> {
        let is_user = matches!(source, Source::User(_));
        let state = State {
            source,
            limit: 0,
            broken: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                pd,
                max_sge: max_sge.max(1),
                is_user,
                notifier,
                resizing <- new_mutex!((), "ferroce_resize"),
                state <- rdma::new_spinlock_irqsave!(state, "ferroce_receives"),
            }),
            GFP_KERNEL,
        )
    }

    /// The protection domain of its lists.
    pub(crate) fn pd(&self) -> usize {
        self.pd
    }

    /// The most entries in the list of a WQE.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Whether user space posts here, without telling us.
    pub(crate) fn is_user(&self) -> bool {
        self.is_user
    }

    /// Whether it is shared by several QPs.
    pub(crate) fn is_shared(&self) -> bool {
        self.notifier.is_some()
    }

    /// Whether nothing is posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().source.len() == 0
    }

    /// The most WQEs that it has room for.
    pub(crate) fn capacity(&self) -> u32 {
        self.state.lock().source.capacity()
    }

    /// The limit that an event waits for, 0 if there is none.
    pub(crate) fn limit(&self) -> u32 {
        self.state.lock().limit
    }

    /// Whether it is in error.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    /// Takes the next WQE and copies its list, at most [`Self::max_sge`] entries, to `list`.
    ///
    /// # Context
    ///
    /// Any; takes the queue's lock.
    pub(crate) fn take(&self, list: &mut [Sge]) -> Taken {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.broken {
            return Taken::nothing(Receive::Broken);
        }
        let mut taken = match &mut state.source {
            Source::Kernel(requests) => match requests.pop(list) {
                None => return Taken::nothing(Receive::Empty),
                Some((wr_id, count)) => wqe(wr_id, list.get(..count).unwrap_or_default()),
            },
            Source::User(ring) => {
                if ring.is_broken() {
                    state.broken = true;
                    return Taken {
                        event: Some(SrqEvent::Error),
                        ..Taken::nothing(Receive::Broken)
                    };
                }
                match copy_out(ring, list) {
                    Some(taken) => taken,
                    None => return Taken::nothing(Receive::Empty),
                }
            }
        };
        if state.source.len() < state.limit {
            state.limit = 0;
            taken.event = Some(SrqEvent::LimitReached);
        }
        taken
    }

    /// Reports what [`Self::take`] said was due; does nothing for the queue of one QP.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(crate) fn report(&self, event: SrqEvent) {
        if let Some(notifier) = &self.notifier {
            notifier.event(event);
        }
    }

    /// Stores a request of a kernel user.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` for a list that is too long, or if user space posts
    /// here.
    pub(crate) fn post(&self, wr_id: u64, sges: impl ExactSizeIterator<Item = Sge>) -> Result {
        let max = self.max_sge as usize;
        match &mut self.state.lock().source {
            Source::User(_) => Err(EINVAL),
            Source::Kernel(requests) => requests.push(wr_id, |list| copy_list(list, max, sges)),
        }
    }

    /// Throws away what is posted to the queue of one QP, which begins anew.
    pub(crate) fn discard(&self) {
        let mut state = self.state.lock();
        match &mut state.source {
            Source::User(ring) => {
                let _ = ring.discard();
            }
            Source::Kernel(requests) => while requests.skip() {},
        }
        state.broken = false;
    }

    /// Asks for one event when there are less WQEs than `limit`, which may be now; 0: for none.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is never room for so many, or the queue is in error.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        let mut state = self.state.lock();
        if state.broken || limit > state.source.capacity() {
            return Err(EINVAL);
        }
        let reached = state.arm(limit);
        drop(state);
        if reached {
            self.report(SrqEvent::LimitReached);
        }
        Ok(())
    }

    /// Moves a queue that user space fills to another ring, with what is in it, and sets the limit
    /// if there is one.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the ring is too small for that or for the limit, or the queue is in error or that of
    /// a kernel user; then nothing has changed.
    pub(crate) fn resize(&self, ring: Ring, limit: Option<u32>) -> Result {
        let _one = self.resizing.lock();
        let capacity = ring.capacity();
        let mut transfer = match &self.state.lock().source {
            Source::User(consumer) => consumer.begin_resize(ring),
            Source::Kernel(_) => return Err(EINVAL),
        };
        transfer.copy()?;
        let mut state = self.state.lock();
        if state.broken || limit.unwrap_or(state.limit) > capacity {
            return Err(EINVAL);
        }
        match &mut state.source {
            Source::User(consumer) => consumer.finish_resize(&mut transfer)?,
            Source::Kernel(_) => return Err(EINVAL),
        }
        let reached = limit.is_some_and(|limit| state.arm(limit));
        // The old ring goes with the transfer, once the lock is dropped.
        drop(state);
        if reached {
            self.report(SrqEvent::LimitReached);
        }
        Ok(())
    }
}

impl State {
    /// Sets the limit. Returns whether it is reached already: then it is none any more.
    fn arm(&mut self, limit: u32) -> bool {
        let reached = self.source.len() < limit;
        self.limit = if reached { 0 } else { limit };
        reached
    }
}

/// Copies the next WQE out of the ring, checks it, and gives its slot back.
fn copy_out(ring: &mut Consumer, list: &mut [Sge]) -> Option<Taken> {
    let index = ring.peek()?;
    let mut raw = uapi::RecvWqe::new_zeroed();
    let copied = ring.ring().read(index, 0, raw.as_mut_bytes());
    let list = list
        .get_mut(..raw.dma.num_sge as usize)
        .filter(|_| copied.is_ok());
    let list = list.and_then(|list| {
        ring.ring()
            .read(index, size_of::<uapi::RecvWqe>(), list.as_mut_bytes())
            .ok()?;
        Some(&*list)
    });
    ring.advance();
    ring.release_passed();
    Some(match list {
        None => Taken::nothing(Receive::Invalid { wr_id: raw.wr_id }),
        Some(list) => wqe(raw.wr_id, list),
    })
}

/// A WQE with this list.
fn wqe(wr_id: u64, list: &[Sge]) -> Taken {
    let length = list
        .iter()
        .fold(0u64, |sum, sge| sum.saturating_add(u64::from(sge.length)));
    Taken {
        receive: Receive::Wqe(RecvWqe { wr_id, length }),
        num_sge: list.len(),
        event: None,
    }
}
