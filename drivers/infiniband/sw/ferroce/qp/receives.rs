// SPDX-License-Identifier: GPL-2.0
//! The receive queue: where the responder gets its receive WQEs.
//!
//! A WQE is copied out once, when the first packet of a message needs it, list and all. Its slot
//! goes back to user space at that moment.

use crate::{
    posted::Posted,
    queue::Consumer,
    uapi::{
        self,
        Sge, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use roce::{
    env::Receive,
    wqe::RecvWqe, //
};
use zerocopy::{
    FromBytes,
    IntoBytes, //
};

/// Where receive WQEs come from.
pub(crate) enum ReceiveSource {
    /// A ring shared with user space.
    User(Consumer),
    /// A queue filled by a kernel user; the value is the `wr_id`.
    Kernel(Arc<Posted<u64>>),
}

/// A source of receive WQEs and the list of the current one.
pub(crate) struct ReceiveQueue {
    source: ReceiveSource,
    list: KVVec<Sge>,
    used: usize,
}

impl ReceiveQueue {
    /// A queue whose WQEs have at most `max_sge` entries.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(source: ReceiveSource, max_sge: u32) -> Result<Self> {
        Ok(Self {
            source,
            list: KVVec::from_elem(Sge::default(), max_sge.max(1) as usize, GFP_KERNEL)?,
            used: 0,
        })
    }

    /// The queue of a kernel user.
    pub(crate) fn kernel(&self) -> Option<Arc<Posted<u64>>> {
        match &self.source {
            ReceiveSource::User(_) => None,
            ReceiveSource::Kernel(queue) => Some(queue.clone()),
        }
    }

    /// Whether user space may post here without telling us.
    pub(crate) fn is_user(&self) -> bool {
        matches!(self.source, ReceiveSource::User(_))
    }

    /// Whether nothing is posted.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.source {
            ReceiveSource::User(ring) => ring.peek().is_none(),
            ReceiveSource::Kernel(queue) => queue.is_empty(),
        }
    }

    /// The list of the current receive WQE.
    pub(crate) fn list(&self) -> &[Sge] {
        self.list.get(..self.used).unwrap_or_default()
    }

    /// Takes the next receive WQE; it becomes the current one.
    pub(crate) fn take(&mut self) -> Receive {
        self.used = 0;
        match &mut self.source {
            ReceiveSource::Kernel(queue) => match queue.pop(&mut self.list) {
                None => Receive::Empty,
                Some((wr_id, count)) => {
                    self.used = count;
                    self.current(wr_id)
                }
            },
            ReceiveSource::User(ring) => {
                let Some(index) = ring.peek() else {
                    return Receive::Empty;
                };
                let mut raw = [0u8; size_of::<uapi::RecvWqe>()];
                let copied = ring.ring().read(index, 0, &mut raw);
                let Ok(raw) = uapi::RecvWqe::read_from_bytes(&raw) else {
                    return Receive::Empty;
                };
                let list = self.list.get_mut(..raw.dma.num_sge as usize);
                let copied = copied.is_ok()
                    && list.is_some_and(|list| {
                        ring.ring()
                            .read(index, size_of::<uapi::RecvWqe>(), list.as_mut_bytes())
                            .is_ok()
                    });
                ring.advance();
                ring.release_passed();
                if !copied {
                    return Receive::Invalid { wr_id: raw.wr_id };
                }
                self.used = raw.dma.num_sge as usize;
                self.current(raw.wr_id)
            }
        }
    }

    fn current(&self, wr_id: u64) -> Receive {
        let length = self
            .list()
            .iter()
            .fold(0u64, |sum, sge| sum.saturating_add(u64::from(sge.length)));
        Receive::Wqe(RecvWqe { wr_id, length })
    }

    /// Throws away what is posted.
    pub(crate) fn discard(&mut self) {
        self.used = 0;
        match &mut self.source {
            ReceiveSource::User(ring) => {
                let _ = ring.discard();
            }
            ReceiveSource::Kernel(queue) => queue.clear(),
        }
    }
}
