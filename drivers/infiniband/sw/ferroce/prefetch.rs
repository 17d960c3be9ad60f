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
        Errand,
        WorkQueue,
        WorkTarget, //
    },
    umem::Fault, //
};

/// The most pieces of advice that wait. More are dropped: it is advice.
const MAX_WAITING: usize = 1024;

/// A piece of memory to be brought in. Holds nothing else: it may take as long as the program likes.
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

/// Advice that waits.
#[pin_data]
struct Waiting {
    #[pin]
    advice: Mutex<KVVec<Advice>>,
}

impl WorkTarget for Waiting {
    fn run(&self) {
        loop {
            let next = self.advice.lock().pop();
            let Some(advice) = next else {
                return;
            };
            // Nobody waits to hear of it.
            let _ = advice.follow();
        }
    }
}

/// Follows the advice of one protection domain in the background. What is left at its end is not
/// followed; what is at hand may wait for a page of the program that ends, so nobody waits for it.
pub(crate) struct Prefetcher(Arc<Errand<Waiting>>);

impl Prefetcher {
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(queue: &Arc<WorkQueue>) -> Result<Self> {
        let waiting = pin_init!(Waiting {
            advice <- kernel::new_mutex!(KVVec::new(), "ferroce_advice"),
        });
        Ok(Self(Errand::new(queue, waiting)?))
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
            let mut waiting = self.0.target().advice.lock();
            for advice in advice {
                if waiting.len() >= MAX_WAITING {
                    break;
                }
                waiting.push(advice, GFP_KERNEL)?;
            }
        }
        Errand::queue(&self.0);
        Ok(())
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        let left = core::mem::take(&mut *self.0.target().advice.lock());
        drop(left);
    }
}
