// SPDX-License-Identifier: GPL-2.0

//! Deferred work whose target may own it, on a queue of one's own.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)
//!
//! Would become an addition to `rust/kernel/workqueue.rs`.
//!
//! The life of a work item is that of a [`Timer`](super::Timer):
//!
//! ```text
//!   new ----------> attach(Arc<T>) ----------> shutdown
//!                    queue(): T::run is called   waits for a running T::run, drops the Arc;
//!                    soon, by a kernel thread    queue() is ignored from here on
//! ```

use crate::{
    bindings,
    new_spinlock_irqsave,
    sync::{
        current,
        SpinLockIrqSave, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    pr_warn_once,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
    },
    types::Opaque, //
};

/// A workqueue that is bound to no CPU: of high priority and usable for work that memory reclaim waits
/// for, or for slow work.
///
/// # Invariants
///
/// `queue` is a valid workqueue, owned by this value.
pub struct WorkQueue {
    // The kernel crate's type, which all functions take.
    queue: NonNull<kernel::bindings::workqueue_struct>,
}

// SAFETY: A workqueue may be used and destroyed from any thread.
unsafe impl Send for WorkQueue {}

// SAFETY: Queueing is synchronised by the workqueue itself.
unsafe impl Sync for WorkQueue {}

impl WorkQueue {
    /// Creates a workqueue of that name.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(name: &CStr) -> Result<Arc<Self>> {
        const FLAGS: u32 = bindings::wq_flags_WQ_UNBOUND
            | bindings::wq_flags_WQ_HIGHPRI
            | bindings::wq_flags_WQ_MEM_RECLAIM;
        Self::with_flags(name, FLAGS)
    }

    /// Creates a workqueue for work that may wait for long, also for memory to be reclaimed.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new_slow(name: &CStr) -> Result<Arc<Self>> {
        Self::with_flags(name, bindings::wq_flags_WQ_UNBOUND)
    }

    /// Waits until nothing is queued or runs any more.
    ///
    /// # Context
    ///
    /// Process context, may sleep; not from a work item of this queue, and nothing is queued by others
    /// any more.
    pub fn drain(&self) {
        // SAFETY: By the type invariant it is valid; `drain_workqueue` (kernel/workqueue.c) waits.
        unsafe { bindings::drain_workqueue(self.queue.as_ptr()) };
    }

    /// As the kernel crate has it.
    pub(super) fn as_queue(&self) -> &kernel::workqueue::Queue {
        // SAFETY: By the type invariant it is valid for as long as this value is borrowed.
        unsafe { kernel::workqueue::Queue::from_raw(self.queue.as_ptr()) }
    }

    fn with_flags(name: &CStr, flags: u32) -> Result<Arc<Self>> {
        // SAFETY: The format takes one string, and `alloc_workqueue` (kernel/workqueue.c) copies
        // what it makes of it.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(c"%s".as_char_ptr(), flags, 0, name.as_char_ptr())
        };
        // INVARIANT: Just allocated.
        let queue = Self {
            queue: NonNull::new(queue).ok_or(ENOMEM)?,
        };
        Ok(Arc::new(queue, GFP_KERNEL)?)
    }
}

impl Drop for WorkQueue {
    /// # Context
    ///
    /// Process context, may sleep; not from a work item of this queue: each has a reference, which is
    /// not the last one if somebody has another until [`WorkQueue::drain`] is done.
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is valid and ours. Every work item on it holds a reference,
        // so none is left.
        unsafe { bindings::destroy_workqueue(self.queue.as_ptr()) };
    }
}

/// What a [`Work`] calls.
pub trait WorkTarget: Send + Sync + 'static {
    /// Does the work.
    ///
    /// # Context
    ///
    /// Process context, may sleep, no lock held. Never runs twice at the same time for one
    /// [`Work`].
    fn run(&self);
}

struct State<T> {
    closed: bool,
    target: Option<Arc<T>>,
}

/// # Invariants
///
/// - `work` is initialised and its function is `Inner::<T>::callback`.
/// - The target is taken out only when `work` is disabled and the function does not run.
#[pin_data]
#[repr(C)]
struct Inner<T: WorkTarget> {
    // First, so that the function finds the rest.
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// The thread that runs the function, null when none does.
    running: Atomic<*mut bindings::task_struct>,
    #[pin]
    state: SpinLockIrqSave<State<T>>,
    queue: Arc<WorkQueue>,
}

/// A work item that calls a [`WorkTarget`].
pub struct Work<T: WorkTarget> {
    // Boxed: when a work item is dropped by its own function, its memory must outlive it.
    inner: ManuallyDrop<Pin<KBox<Inner<T>>>>,
}

// SAFETY: A work item may be queued and cancelled from any thread, and its target is `Send + Sync`.
unsafe impl<T: WorkTarget> Send for Work<T> {}

// SAFETY: As above; queueing is synchronised by the workqueue, the rest by `state`.
unsafe impl<T: WorkTarget> Sync for Work<T> {}

impl<T: WorkTarget> Work<T> {
    /// Creates a work item of `queue`, without a target.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(queue: &Arc<WorkQueue>) -> Result<Self> {
        let queue = queue.clone();
        let inner = KBox::pin_init(
            pin_init!(Inner {
                // INVARIANT: Initialised here, with the function of this type.
                work <- Opaque::ffi_init(|work| {
                    // SAFETY: `work` is memory of the right size, which is initialised here; name
                    // and key are static.
                    unsafe {
                        bindings::init_work_with_key(
                            work,
                            Some(Inner::<T>::callback),
                            false,
                            c"rdma::Work".as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
                running: Atomic::new(ptr::null_mut()),
                state <- new_spinlock_irqsave!(
                    State { closed: false, target: None },
                    "Work::state"
                ),
                queue,
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            inner: ManuallyDrop::new(inner),
        })
    }

    /// Gives the work item its target. A second one, or one that comes after [`Work::shutdown`], is
    /// dropped.
    ///
    /// # Context
    ///
    /// Any in which `target` may be dropped.
    pub fn attach(&self, target: Arc<T>) {
        let mut target = Some(target);
        let mut state = self.inner.state.lock();
        if !state.closed && state.target.is_none() {
            state.target = target.take();
        }
        drop(state);
        // A target that was not taken is dropped here, outside the lock.
    }

    /// Makes sure that [`WorkTarget::run`] is called once from now on. Does nothing before
    /// [`Work::attach`] and after
    /// [`Work::shutdown`].
    ///
    /// Returns false if a call was outstanding already.
    ///
    /// # Context
    ///
    /// Any.
    pub fn queue(&self) -> bool {
        // SAFETY: By the type invariants the queue is valid and the work item is initialised.
        // `queue_work_on` (kernel/workqueue.c) refuses it once it is disabled, and both live until
        // `Work::drop` has disabled it.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as i32,
                self.inner.queue.queue.as_ptr(),
                self.inner.work.get(),
            )
        }
    }

    /// Stops the work item for good: cancels it, waits for a running [`WorkTarget::run`], and drops
    /// the target.
    ///
    /// From inside `run` itself it cannot wait; then it only refuses to be queued, and the target
    /// is dropped by the next call or with the work item.
    ///
    /// # Context
    ///
    /// Process context, may sleep. The caller must hold no lock that `run` takes.
    pub fn shutdown(&self) {
        self.inner.state.lock().closed = true;
        if self.inner.is_nested() {
            // SAFETY: By the type invariant the work item is initialised. `disable_work`
            // (kernel/workqueue.c) does not wait.
            unsafe { bindings::disable_work(self.inner.work.get()) };
            return;
        }
        // SAFETY: By the type invariant the work item is initialised. `disable_work_sync`
        // (kernel/workqueue.c) waits for the function, which is not us.
        unsafe { bindings::disable_work_sync(self.inner.work.get()) };
        // INVARIANT: The work item is disabled and its function does not run.
        let target = self.inner.state.lock().target.take();
        drop(target);
    }
}

impl<T: WorkTarget> Drop for Work<T> {
    fn drop(&mut self) {
        self.shutdown();
        if self.inner.is_nested() {
            // Dropped by its own function, whose target still runs. There is no moment at which it
            // could be freed safely, so it is not.
            pr_warn_once!("a work item was dropped by its own function, leaking it\n");
            return;
        }
        // SAFETY: `inner` is not used again. By `shutdown` the work item is disabled and does not
        // run.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

impl<T: WorkTarget> Inner<T> {
    /// Whether the caller runs inside the function: a thread runs one work item at a time.
    fn is_nested(&self) -> bool {
        ptr::eq(self.running.load(Relaxed), current())
    }

    /// # Safety
    ///
    /// To be called by the workqueue only, with the `work` of an `Inner<T>` that lives until it
    /// returns.
    unsafe extern "C" fn callback(work: *mut bindings::work_struct) {
        // SAFETY: The work item is the first field of a `repr(C)` `Inner<T>` (type invariant),
        // which `Work::drop` frees only when the function does not run.
        let inner = unsafe { &*work.cast::<Self>() };

        let target = inner.state.lock().target.as_ref().map(Arc::as_ptr);
        if let Some(target) = target {
            inner.running.store(current(), Relaxed);
            // SAFETY: By the type invariant the target's reference stays in `state` until the
            // function has returned.
            unsafe { &*target }.run();
            inner.running.store(ptr::null_mut(), Relaxed);
        }
    }
}

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_work)]
mod tests {
    use super::*;
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

    /// Counts its calls, and queues itself again a number of times.
    struct Target {
        work: Work<Target>,
        calls: Atomic<u64>,
        again: Atomic<u64>,
        inside: Atomic<bool>,
        /// How long a call takes, in milliseconds.
        length: i64,
    }

    impl Target {
        fn new(again: u64, length: i64) -> Result<Arc<Self>> {
            let queue = WorkQueue::new(c"rdma_work")?;
            let target = Arc::new(
                Self {
                    work: Work::new(&queue)?,
                    calls: Atomic::new(0),
                    again: Atomic::new(again),
                    inside: Atomic::new(false),
                    length,
                },
                GFP_KERNEL,
            )?;
            target.work.attach(target.clone());
            Ok(target)
        }

        fn calls(&self) -> u64 {
            self.calls.load(Relaxed)
        }

        /// Waits for a number of calls, not for ever.
        fn wait(&self, calls: u64) -> bool {
            for _ in 0..5000 {
                if self.calls() >= calls {
                    return true;
                }
                fsleep(Delta::from_millis(1));
            }
            false
        }
    }

    impl WorkTarget for Target {
        fn run(&self) {
            self.inside.store(true, Relaxed);
            fsleep(Delta::from_millis(self.length));
            let again = self.again.load(Relaxed);
            if again > 0 {
                self.again.store(again - 1, Relaxed);
                self.work.queue();
            }
            self.calls.add(1, Relaxed);
            self.inside.store(false, Relaxed);
        }
    }

    /// Whether the work item has dropped its reference.
    fn is_last(target: Arc<Target>) -> bool {
        Arc::into_unique_or_drop(target).is_some()
    }

    #[test]
    fn runs_once_for_each_time() -> Result {
        let target = Target::new(0, 0)?;
        for round in 1..=10 {
            assert!(target.work.queue());
            assert!(target.wait(round));
        }
        fsleep(Delta::from_millis(10));
        assert_eq!(target.calls(), 10);
        target.work.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn queued_again_while_it_runs() -> Result {
        let target = Target::new(0, 30)?;
        target.work.queue();
        while !target.inside.load(Relaxed) {
            fsleep(Delta::from_micros(100));
        }
        assert!(target.work.queue());
        // That one is outstanding already.
        assert!(!target.work.queue());
        assert!(target.wait(2));
        fsleep(Delta::from_millis(60));
        assert_eq!(target.calls(), 2);
        target.work.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn queues_itself() -> Result {
        let target = Target::new(20, 0)?;
        target.work.queue();
        assert!(target.wait(21));
        target.work.shutdown();
        assert_eq!(target.calls(), 21);
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn shutdown_waits_and_ends_it() -> Result {
        for _ in 0..5 {
            // Would queue itself for ever.
            let target = Target::new(u64::MAX, 3)?;
            target.work.queue();
            assert!(target.wait(2));
            target.work.shutdown();
            assert!(!target.inside.load(Relaxed));
            let calls = target.calls();
            assert!(!target.work.queue());
            fsleep(Delta::from_millis(10));
            assert_eq!(target.calls(), calls);
            assert!(is_last(target));
        }
        Ok(())
    }

    #[test]
    fn shutdown_before_anything() -> Result {
        let target = Target::new(0, 0)?;
        target.work.shutdown();
        target.work.queue();
        fsleep(Delta::from_millis(5));
        assert_eq!(target.calls(), 0);
        // A target that comes now is refused.
        target.work.attach(target.clone());
        assert!(is_last(target));
        Ok(())
    }
}
