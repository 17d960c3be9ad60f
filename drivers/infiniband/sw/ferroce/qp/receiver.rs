// SPDX-License-Identifier: GPL-2.0
//! A QP's end of its receive queue, and the list of the receive WQE that it has taken.

use crate::{
    receives::ReceiveQueue,
    uapi::Sge,
    xrc::{
        XrcName,
        XrcQueue, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::verbs::SrqEvent;
use roce::env::Receive;

/// A source of receive WQEs and the list of the current one.
pub(super) struct Receiver {
    queue: Arc<ReceiveQueue>,
    list: KVVec<Sge>,
    used: usize,
    /// The queue that the current receive WQE was taken from, if a request named it.
    source: Option<XrcName>,
}

impl Receiver {
    /// # Context
    ///
    /// Process context, may sleep.
    pub(super) fn new(queue: Arc<ReceiveQueue>) -> Result<Self> {
        let list = KVVec::from_elem(Sge::default(), queue.max_sge() as usize, GFP_KERNEL)?;
        Ok(Self {
            queue,
            list,
            used: 0,
            source: None,
        })
    }

    /// The protection domain of the lists: that of a shared queue may be another than the QP's.
    pub(super) fn pd(&self) -> usize {
        self.queue.pd()
    }

    /// Whether the QP has to look for receives that were posted without telling us, to flush them.
    pub(super) fn comes_without_doorbell(&self) -> bool {
        self.queue.is_user() && !self.queue.is_shared()
    }

    /// Whether nothing is posted.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The list of the current receive WQE.
    pub(super) fn list(&self) -> &[Sge] {
        self.list.get(..self.used).unwrap_or_default()
    }

    /// Takes the next receive WQE, from the queue that the request at hand names if it does; it becomes
    /// the current one. The event, if any, is to be reported when no lock is held.
    pub(super) fn take(&mut self, named: Option<&XrcQueue>) -> (Receive, Option<SrqEvent>) {
        let queue = named.map_or(&self.queue, |xrc| &xrc.receives);
        let taken = queue.take(&mut self.list);
        self.used = taken.num_sge;
        self.source = named.map(|xrc| xrc.name);
        (taken.receive, taken.event)
    }

    /// Where the current receive WQE was taken from, if a request named it.
    pub(super) fn source(&self) -> Option<XrcName> {
        self.source
    }

    /// The current receive WQE completes.
    pub(super) fn finish(&mut self) -> Option<XrcName> {
        self.source.take()
    }

    /// Throws away what is posted, but for what is shared with others.
    pub(super) fn discard(&mut self) {
        self.used = 0;
        self.source = None;
        if !self.queue.is_shared() {
            self.queue.discard();
        }
    }
}
