// SPDX-License-Identifier: GPL-2.0

//! Deferred work that nobody waits for.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)
//!
//! Would become an addition to `rust/kernel/workqueue.rs`.
//!
//! A [`Work`](super::Work) belongs to its owner, who waits for it at the end. That cannot be done with what
//! may take for ever. An [`Errand`] is counted: while it is queued or runs it holds itself, and whoever
//! needs it no longer just lets go of it.

use crate::sync::{
    WorkQueue,
    WorkTarget, //
};
use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::Arc,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// A work item that holds itself while it is queued or runs.
#[pin_data]
pub struct Errand<T: WorkTarget> {
    #[pin]
    work: Work<Self>,
    queue: Arc<WorkQueue>,
    #[pin]
    target: T,
}

impl_has_work! {
    impl{T: WorkTarget} HasWork<Self> for Errand<T> { self.work }
}

impl<T: WorkTarget> WorkItem for Errand<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.target.run();
    }
}

impl<T: WorkTarget> Errand<T> {
    /// Creates a work item of `queue`. Whoever made the queue waits for it with [`WorkQueue::drain`].
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(queue: &Arc<WorkQueue>, target: impl PinInit<T>) -> Result<Arc<Self>> {
        let queue = queue.clone();
        Arc::pin_init(
            pin_init!(Self {
                work <- new_work!("rdma::Errand"),
                queue,
                target <- target,
            }),
            GFP_KERNEL,
        )
    }

    /// What it calls.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Makes sure that [`WorkTarget::run`] is called once from now on.
    ///
    /// # Context
    ///
    /// Any.
    pub fn queue(this: &Arc<Self>) {
        // It may be queued already.
        let _ = this.queue.as_queue().enqueue(this.clone());
    }
}
