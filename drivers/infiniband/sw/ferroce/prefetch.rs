// SPDX-License-Identifier: GPL-2.0
//! Advice about memory that is paged on demand, carried out later.

use crate::region::Backing;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    sync::{
        Work,
        WorkQueue,
        WorkTarget, //
    },
    umem::Fault, //
};

/// The most pieces of advice that wait. More are dropped: it is advice.
const MAX_WAITING: usize = 1024;

/// A piece of memory to be brought in.
pub(crate) struct Advice {
    pub(crate) backing: Arc<Backing>,
    /// Bytes from the start of the memory.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: usize,
    pub(crate) fault: Fault,
}

impl Advice {
    /// Brings the memory in.
    ///
    /// # Context
    ///
    /// Process context, sleeps for as long as that takes.
    ///
    /// # Errors
    ///
    /// As [`Backing::fault`].
    pub(crate) fn follow(&self) -> Result {
        self.backing.fault(self.offset, self.length, self.fault)
    }
}

#[pin_data]
struct Waiting {
    #[pin]
    advice: Mutex<KVVec<Advice>>,
}

impl WorkTarget for Waiting {
    fn run(&self) {
        let advice = core::mem::take(&mut *self.advice.lock());
        for advice in advice {
            // Nobody waits to hear of it.
            let _ = advice.follow();
        }
    }
}

/// Follows advice in the background.
pub(crate) struct Prefetcher {
    waiting: Arc<Waiting>,
    work: Work<Waiting>,
}

impl Prefetcher {
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(queue: &Arc<WorkQueue>) -> Result<Self> {
        let waiting = Arc::pin_init(
            pin_init!(Waiting {
                advice <- kernel::new_mutex!(KVVec::new(), "ferroce_advice"),
            }),
            GFP_KERNEL,
        )?;
        let work = Work::new(queue)?;
        work.attach(waiting.clone());
        Ok(Self { waiting, work })
    }

    /// Follows these pieces of advice soon, as far as there is room.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn submit(&self, advice: KVVec<Advice>) -> Result {
        {
            let mut waiting = self.waiting.advice.lock();
            for advice in advice {
                if waiting.len() >= MAX_WAITING {
                    break;
                }
                waiting.push(advice, GFP_KERNEL)?;
            }
        }
        self.work.queue();
        Ok(())
    }
}
