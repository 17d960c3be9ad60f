// SPDX-License-Identifier: GPL-2.0

//! Telling the users of completion queues, shared receive queues and queue pairs that something happened.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/notifier.rs`.
//!
//! # Lifetimes
//!
//! A driver keeps a notifier as long as it likes, in an `Arc`: timers and packets that are still
//! under way may use it when the object has already been destroyed. So a notifier points to the C
//! object only between the end of its creation and its destruction, and destruction waits: for RCU
//! readers, which use the pointer in place, and for the work item, which calls handlers that may
//! sleep. Without a pointer, notifying does nothing.

use crate::bindings;
use core::ptr::null_mut;
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        rcu,
        Arc, //
    },
    types::Opaque, //
};

/// Waits until all RCU readers of now are done; may sleep.
fn synchronize_rcu() {
    // SAFETY: May be called in any context that may sleep.
    unsafe { bindings::synchronize_rcu_expedited() };
}

/// A C object that may be gone.
///
/// # Invariants
///
/// The pointer is null, or live until the end of an RCU grace period that starts after it is set to
/// null.
struct Target<T: 'static>(Atomic<*mut T>);

impl<T> Target<T> {
    fn none() -> Self {
        // INVARIANT: The pointer is null.
        Self(Atomic::new(null_mut()))
    }

    /// # Safety
    ///
    /// `object` must be live until [`Self::clear`] has returned.
    unsafe fn set(&self, object: *mut T) {
        // INVARIANT: By the safety requirement; `clear` waits for a grace period.
        self.0.store(object, Release);
    }

    /// Waits for those who use the object right now.
    fn clear(&self) {
        self.0.store(null_mut(), Relaxed);
        synchronize_rcu();
    }

    /// Calls `f` with the object, which is live until `f` returns, if it still exists.
    fn with(&self, f: impl FnOnce(*mut T)) {
        let _guard = rcu::read_lock();
        let object = self.0.load(Acquire);
        if !object.is_null() {
            f(object);
        }
    }
}

/// Notifies the user of a completion queue.
pub struct CqNotifier {
    cq: Target<bindings::ib_cq>,
}

impl CqNotifier {
    pub(super) fn new() -> Result<Arc<Self>> {
        let cq = Target::none();
        Ok(Arc::new(Self { cq }, GFP_KERNEL)?)
    }

    /// From now on, `cq` is notified.
    ///
    /// # Safety
    ///
    /// `cq` must be live until [`Self::revoke`] has returned.
    pub(super) unsafe fn arm(&self, cq: *mut bindings::ib_cq) {
        // SAFETY: By the safety requirement.
        unsafe { self.cq.set(cq) };
    }

    /// Nobody is notified any more; waits for those who do right now.
    pub(super) fn revoke(&self) {
        self.cq.clear();
    }

    /// Calls the completion handler of the user, if the completion queue still exists.
    ///
    /// # Context
    ///
    /// Any but NMI. No lock may be held that `poll_cq` or `req_notify_cq` takes: users may call these
    /// from their handler.
    pub fn notify(&self) {
        self.cq.with(|cq| {
            // SAFETY: `cq` is live here. The handler of a kernel user may be set after creation, but
            // before the user arms the queue.
            let (handler, context) = unsafe { ((*cq).comp_handler, (*cq).cq_context) };
            if let Some(handler) = handler {
                // SAFETY: The handler was given for this completion queue, with this context.
                unsafe { handler(cq, context) };
            }
        });
    }

    /// Tells the user that the completion queue is broken, e.g. because it overflowed
    /// (`IB_EVENT_CQ_ERR`).
    ///
    /// # Context
    ///
    /// As [`Self::notify`].
    pub fn error(&self) {
        self.cq.with(|cq| {
            // SAFETY: `cq` is live here.
            let (handler, context, device) =
                unsafe { ((*cq).event_handler, (*cq).cq_context, (*cq).device) };
            let Some(handler) = handler else { return };
            let mut event = bindings::ib_event {
                device,
                event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
                ..pin_init::zeroed()
            };
            event.element.cq = cq;
            // SAFETY: The handler was given for this completion queue, with this context; it does
            // not keep `event`.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// What can happen to a shared receive queue; C: `enum ib_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum SrqEvent {
    /// There are less receives than the limit.
    LimitReached = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    /// Error that broke the queue.
    Error = bindings::ib_event_type_IB_EVENT_SRQ_ERR,
}

/// Notifies the user of a shared receive queue.
pub struct SrqNotifier {
    srq: Target<bindings::ib_srq>,
}

impl SrqNotifier {
    pub(super) fn new() -> Result<Arc<Self>> {
        let srq = Target::none();
        Ok(Arc::new(Self { srq }, GFP_KERNEL)?)
    }

    /// From now on, `srq` is notified.
    ///
    /// # Safety
    ///
    /// `srq` must be live until [`Self::revoke`] has returned.
    pub(super) unsafe fn arm(&self, srq: *mut bindings::ib_srq) {
        // SAFETY: By the safety requirement.
        unsafe { self.srq.set(srq) };
    }

    /// Nobody is notified any more; waits for those who do right now.
    pub(super) fn revoke(&self) {
        self.srq.clear();
    }

    /// Tells the user of the shared receive queue about `event`, if it still exists.
    ///
    /// # Context
    ///
    /// Any but NMI. No lock may be held that `post_srq_recv` takes: users may call it from their
    /// handler.
    pub fn event(&self, event: SrqEvent) {
        self.srq.with(|srq| {
            // SAFETY: `srq` is live here; this was set before its creation.
            let (handler, context, device) =
                unsafe { ((*srq).event_handler, (*srq).srq_context, (*srq).device) };
            let Some(handler) = handler else { return };
            let mut event = bindings::ib_event {
                device,
                event: event as u32,
                ..pin_init::zeroed()
            };
            event.element.srq = srq;
            // SAFETY: The handler was given for this shared receive queue, with this context; it
            // does not keep `event`.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// What can happen to a queue pair; C: `enum ib_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum QpEvent {
    /// Error that broke the queue pair.
    Fatal = bindings::ib_event_type_IB_EVENT_QP_FATAL,
    /// A request of the peer was invalid.
    ReqErr = bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
    /// A request of the peer violated access rights.
    AccessErr = bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
    /// First packet arrived while in state RTR.
    CommEst = bindings::ib_event_type_IB_EVENT_COMM_EST,
    /// The send queue has drained after the transition to SQD.
    SqDrained = bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
    /// No more receives will be taken from the shared receive queue.
    LastWqeReached = bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
}

/// Notifies the user of a queue pair.
///
/// # Invariants
///
/// - `qp` is null, or live until, after it is set to null, an RCU grace period has passed and `work`
///   has been cancelled.
/// - `work` is initialised, with [`Self::run`] as its function; it is only queued in an RCU read-side
///   section in which `qp` was not null.
#[pin_data]
pub struct QpNotifier {
    qp: Atomic<*mut bindings::ib_qp>,
    /// One bit for each event that `work` has to report.
    pending: Atomic<u32>,
    #[pin]
    work: Opaque<bindings::work_struct>,
}

// SAFETY: The work item belongs to no thread; C synchronises it.
unsafe impl Send for QpNotifier {}

// SAFETY: As above; the other fields are atomics.
unsafe impl Sync for QpNotifier {}

impl QpNotifier {
    pub(super) fn new() -> Result<Arc<Self>> {
        // INVARIANT: The pointer is null, the work item is initialised and not queued.
        Arc::pin_init(
            pin_init!(Self {
                qp: Atomic::new(null_mut()),
                pending: Atomic::new(0),
                work <- Opaque::ffi_init(|work| {
                    // SAFETY: `work` is memory for a work item, which stays in place.
                    unsafe {
                        bindings::init_work_with_key(
                            work,
                            Some(Self::run),
                            false,
                            c"rdma::QpNotifier".to_bytes_with_nul().as_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// From now on, `qp` is notified.
    ///
    /// # Safety
    ///
    /// `qp` must be live until [`Self::revoke`] has returned, and `self` as well.
    pub(super) unsafe fn arm(&self, qp: *mut bindings::ib_qp) {
        // INVARIANT: By the safety requirement; `revoke` waits and cancels.
        self.qp.store(qp, Release);
    }

    /// Nobody is notified any more; waits for those who do right now.
    pub(super) fn revoke(&self) {
        self.qp.store(null_mut(), Relaxed);
        synchronize_rcu();
        // SAFETY: `work` is initialised by the type invariant. It is not queued again, since after the
        // grace period nobody sees `qp` any more.
        unsafe { bindings::cancel_work_sync(self.work.get()) };
    }

    /// The queue pair for a work completion, or null if it has been destroyed.
    #[inline]
    pub(super) fn qp(&self) -> *mut bindings::ib_qp {
        self.qp.load(Relaxed)
    }

    /// Tells the user of the queue pair about `event`, if it still exists.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub fn event(&self, event: QpEvent) {
        let _guard = rcu::read_lock();
        let qp = self.qp.load(Acquire);
        if qp.is_null() {
            return;
        }
        // SAFETY: By the type invariant `qp` is live while `_guard` is.
        if !unsafe { (*qp).uobject }.is_null() {
            // The handler of uverbs takes a spinlock at most.
            // SAFETY: As above.
            unsafe { Self::report(qp, event as u32) };
            return;
        }
        // Handlers of kernel users may sleep (`ib_verbs.h`: "This callback occurs in workqueue
        // context").
        let bit = 1u32.wrapping_shl(event as u32);
        let mut pending = self.pending.load(Relaxed);
        while let Err(seen) = self.pending.cmpxchg(pending, pending | bit, Full) {
            pending = seen;
        }
        // SAFETY: Set up at boot and never changed.
        let queue = unsafe { bindings::system_percpu_wq };
        // CAST: `WORK_CPU_UNBOUND` means any CPU.
        let cpu = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;
        // SAFETY: `work` is initialised, and alive until it was cancelled: `qp` is not null, and
        // `revoke` waits for `_guard`.
        unsafe { bindings::queue_work_on(cpu, queue, self.work.get()) };
    }

    /// Calls the event handler of `qp`.
    ///
    /// # Safety
    ///
    /// `qp` must be live, and the context must be one that its handler can be called in.
    unsafe fn report(qp: *mut bindings::ib_qp, event: bindings::ib_event_type) {
        // SAFETY: `qp` is live by the safety requirement; this was set before its creation.
        let (handler, context, device) =
            unsafe { ((*qp).event_handler, (*qp).qp_context, (*qp).device) };
        let Some(handler) = handler else { return };
        let mut event = bindings::ib_event {
            device,
            event,
            ..pin_init::zeroed()
        };
        event.element.qp = qp;
        // SAFETY: The handler was set for this queue pair, with this context; it does not keep
        // `event`.
        unsafe { handler(&mut event, context) };
    }

    /// Reports what is pending, in process context.
    ///
    /// # Safety
    ///
    /// `work` must be the work item of a live [`QpNotifier`], called by the work queue.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: `work` is a field of a `QpNotifier` by the safety requirement.
        let this = unsafe { kernel::container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: It lives until the work item was cancelled, for which `revoke` waits.
        let this = unsafe { &*this };
        let pending = this.pending.xchg(0, Full);
        let qp = this.qp.load(Acquire);
        if qp.is_null() {
            return;
        }
        for event in 0..u32::BITS {
            if pending & 1u32.wrapping_shl(event) != 0 {
                // SAFETY: By the type invariant `qp` is live: `revoke` waits for this work item.
                unsafe { Self::report(qp, event) };
            }
        }
    }
}
