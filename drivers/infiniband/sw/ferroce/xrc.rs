// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues of extended reliable connections, as their targets find them: by the number in
//! each request.
//!
//! # Lifetime
//!
//! The table of the port ([`crate::port::Port::xrc_queues`]) and the shared receive queue itself hold a
//! reference; queue pairs hold none. A target looks its queue up for each packet, and keeps only its
//! [`XrcName`] with the WQE that it has taken. Destroying a queue takes it out of the table and waits
//! for readers: after that nobody writes to its buffers, whose protection domain may go away now, or
//! completes to its completion queue.

use crate::{
    completion::CompletionQueue,
    receives::ReceiveQueue, //
};
use kernel::sync::Arc;

/// Names a queue, and not another one that has had, or will have, its number.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct XrcName {
    /// As in an XRCETH.
    pub(crate) number: u32,
    /// Of the port's, see [`crate::port::Port::next_serial`].
    pub(crate) serial: u64,
}

/// A shared receive queue with all that a target needs to know of it.
pub(crate) struct XrcQueue {
    pub(crate) name: XrcName,
    /// The XRC domain, as [`rdma::verbs::Xrcd::id`] has it.
    pub(crate) xrcd: usize,
    /// The receives; their protection domain is also that of what requests name by key.
    pub(crate) receives: Arc<ReceiveQueue>,
    /// Where they complete.
    pub(crate) cq: Arc<CompletionQueue>,
}
