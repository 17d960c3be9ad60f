// SPDX-License-Identifier: GPL-2.0

//! A high-resolution timer whose target may own it.
//!
//! C header: [`include/linux/hrtimer.h`](srctree/include/linux/hrtimer.h)
//!
//! Would become an addition to `rust/kernel/time/hrtimer.rs`.
//!
//! The life of a timer:
//!
//! ```text
//!   new ----------> attach(Arc<T>) ----------> shutdown
//!   starts are       start_at(ns): T::expired    waits for a running T::expired, drops the Arc;
//!   ignored          is called at or after ns    starts are ignored from here on
//! ```
//!
//! A `T` that has its own timer as a field is kept alive by the timer's reference until
//! [`Timer::shutdown`]; without it both leak.

use crate::{
    bindings,
    new_spinlock_irqsave,
    sync::{
        current,
        SpinLockIrqSave, //
    },
    time::now_ns, //
};
use core::{
    mem::ManuallyDrop,
    ptr, //
};
use kernel::{
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
    },
    types::Opaque, //
};

/// What a [`Timer`] calls.
pub trait TimerTarget: Send + Sync + 'static {
    /// The timer has expired.
    ///
    /// May be called once too often: look at the clock and at your own deadlines. May start the
    /// timer again.
    ///
    /// # Context
    ///
    /// Softirq (`HRTIMER_SOFTIRQ`), must not sleep, no lock held. Never runs twice at the same time
    /// for one timer.
    fn expired(&self);
}

/// `Inner::expires` of a timer that is not pending.
const NEVER: u64 = u64::MAX;

struct State<T> {
    /// No start is accepted any more.
    closed: bool,
    target: Option<Arc<T>>,
}

/// # Invariants
///
/// - `hrtimer` is initialised, its callback is `Inner::<T>::callback`, and it is started only with
///   `state` locked, `state.closed` false and a target present.
/// - The target is taken out only when `closed` is set and the callback neither runs nor is
///   pending.
#[pin_data]
#[repr(C)]
struct Inner<T: TimerTarget> {
    // First, so that the callback finds the rest.
    #[pin]
    hrtimer: Opaque<bindings::hrtimer>,
    /// When the timer will expire, in nanoseconds of the monotonic clock; [`NEVER`] when it is not
    /// pending. Written with `state` locked.
    expires: Atomic<u64>,
    /// The task in whose context the callback runs, null outside.
    running: Atomic<*mut bindings::task_struct>,
    #[pin]
    state: SpinLockIrqSave<State<T>>,
}

/// A timer of the monotonic clock that calls a [`TimerTarget`].
pub struct Timer<T: TimerTarget> {
    // Boxed: when a timer is dropped by its own callback, its memory must outlive it.
    inner: ManuallyDrop<Pin<KBox<Inner<T>>>>,
}

// SAFETY: An hrtimer may be started and cancelled from any thread, and its target is `Send + Sync`.
unsafe impl<T: TimerTarget> Send for Timer<T> {}

// SAFETY: As above; all methods that take `&self` are synchronised by `state`.
unsafe impl<T: TimerTarget> Sync for Timer<T> {}

impl<T: TimerTarget> Timer<T> {
    /// Creates a timer without a target.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(Inner {
                // INVARIANT: Initialised here, with the callback of this type.
                hrtimer <- Opaque::ffi_init(|timer| {
                    // SAFETY: `timer` is memory of the right size, which `hrtimer_setup`
                    // (kernel/time/hrtimer.c) initialises.
                    unsafe {
                        bindings::hrtimer_setup(
                            timer,
                            Some(Inner::<T>::callback),
                            bindings::CLOCK_MONOTONIC as i32,
                            bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                        )
                    }
                }),
                expires: Atomic::new(NEVER),
                running: Atomic::new(ptr::null_mut()),
                state <- new_spinlock_irqsave!(
                    State { closed: false, target: None },
                    "Timer::state"
                ),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            inner: ManuallyDrop::new(inner),
        })
    }

    /// Gives the timer its target. A second one, or one that comes after [`Timer::shutdown`], is
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

    /// Makes sure that the target is called at or soon after `ns`, in nanoseconds of the monotonic
    /// clock ([`now_ns`]).
    ///
    /// Does nothing when the timer is already going to expire by then (the usual case: a load and a
    /// compare), when it has no target, and after [`Timer::shutdown`]. A pending timer is never put
    /// off.
    ///
    /// # Context
    ///
    /// Any but hardirq; the lock of the target may be held.
    #[inline]
    pub fn start_at(&self, ns: u64) {
        // A callback that starts at this moment has cleared `expires` before it looks at the
        // target, so whoever still reads the old time here has published its deadline (under the
        // target's own lock) before the target looks.
        if self.inner.expires.load(Relaxed) > ns {
            self.inner.as_ref().arm(ns);
        }
    }

    /// Stops the timer for good: cancels it, waits for a running [`TimerTarget::expired`], and
    /// drops the target.
    ///
    /// From inside `expired` itself it cannot wait; then it only refuses further starts, and the
    /// target is dropped by the next call or with the timer.
    ///
    /// # Context
    ///
    /// Process context, may wait for a softirq on another CPU. The caller must hold no lock that
    /// `expired` takes.
    pub fn shutdown(&self) {
        self.inner.state.lock().closed = true;
        if self.inner.is_nested() {
            return;
        }
        // SAFETY: By the type invariant the hrtimer is initialised. `hrtimer_cancel`
        // (kernel/time/hrtimer.c) waits for the callback, which is not us.
        unsafe { bindings::hrtimer_cancel(self.inner.hrtimer.get()) };
        let mut state = self.inner.state.lock();
        self.inner.expires.store(NEVER, Relaxed);
        // INVARIANT: `closed` is set, so nothing started the timer after it was cancelled.
        let target = state.target.take();
        drop(state);
        drop(target);
    }
}

impl<T: TimerTarget> Drop for Timer<T> {
    fn drop(&mut self) {
        self.shutdown();
        if self.inner.is_nested() {
            // Dropped by its own callback: the hrtimer core still has its address, and the target
            // still runs. There is no moment at which it could be freed safely, so it is not.
            pr_warn_once!("a timer was dropped by its own callback, leaking it\n");
            return;
        }
        // SAFETY: `inner` is not used again. By `shutdown` the timer is neither pending nor running
        // and cannot be started.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

impl<T: TimerTarget> Inner<T> {
    /// The slow path of [`Timer::start_at`].
    fn arm(self: Pin<&Self>, ns: u64) {
        let state = self.state.lock();
        if state.closed || state.target.is_none() || self.expires.load(Relaxed) <= ns {
            return;
        }
        self.expires.store(ns, Relaxed);
        // SAFETY: By the type invariant the hrtimer is initialised; `state` is locked, `closed` is
        // false and there is a target. `hrtimer_start_range_ns` (kernel/time/hrtimer.c) moves a
        // pending timer, and may be called while the callback runs.
        unsafe {
            bindings::hrtimer_start_range_ns(
                self.hrtimer.get(),
                i64::try_from(ns).unwrap_or(i64::MAX),
                0,
                bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
            )
        };
    }

    /// Whether the caller runs inside the callback.
    ///
    /// Nothing but the callback runs in a task while that task is interrupted by the softirq that
    /// calls it (or, with `PREEMPT_RT`, is the thread that calls it), other than hardirqs, which
    /// may not ask.
    fn is_nested(&self) -> bool {
        ptr::eq(self.running.load(Relaxed), current())
    }

    /// # Safety
    ///
    /// To be called by the hrtimer core only, with the `hrtimer` of an `Inner<T>` that lives until
    /// it returns.
    unsafe extern "C" fn callback(hrtimer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: The hrtimer is the first field of a `repr(C)` `Inner<T>` (type invariant), which
        // `Timer::drop` frees only when the callback does not run.
        let inner = unsafe { &*hrtimer.cast::<Self>() };

        let state = inner.state.lock();
        // Unless somebody started it anew, for later, since it expired.
        if inner.expires.load(Relaxed) <= now_ns() {
            inner.expires.store(NEVER, Relaxed);
        }
        let target = state.target.as_ref().map(Arc::as_ptr);
        drop(state);

        if let Some(target) = target {
            inner.running.store(current(), Relaxed);
            // SAFETY: By the type invariant the target's reference stays in `state` until the
            // callback has returned.
            unsafe { &*target }.expired();
            inner.running.store(ptr::null_mut(), Relaxed);
        }
        bindings::hrtimer_restart::HRTIMER_NORESTART
    }
}

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_timer)]
mod tests {
    use super::*;
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

    const MS: u64 = 1_000_000;

    /// Writes down when it was called, and starts itself again a number of times.
    struct Target {
        timer: Timer<Target>,
        calls: Atomic<u64>,
        last: Atomic<u64>,
        again: Atomic<u64>,
        /// How long a call takes, in nanoseconds.
        length: u64,
        inside: Atomic<bool>,
    }

    impl Target {
        fn new(again: u64, length: u64) -> Result<Arc<Self>> {
            let target = Arc::new(
                Self {
                    timer: Timer::new()?,
                    calls: Atomic::new(0),
                    last: Atomic::new(0),
                    again: Atomic::new(again),
                    length,
                    inside: Atomic::new(false),
                },
                GFP_KERNEL,
            )?;
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

    impl TimerTarget for Target {
        fn expired(&self) {
            self.inside.store(true, Relaxed);
            self.last.store(now_ns(), Relaxed);
            let until = now_ns() + self.length;
            while now_ns() < until {}
            let again = self.again.load(Relaxed);
            if again > 0 {
                self.again.store(again - 1, Relaxed);
                self.timer.start_at(now_ns() + MS / 10);
            }
            self.calls.add(1, Relaxed);
            self.inside.store(false, Relaxed);
        }
    }

    /// Whether the timer has dropped its reference.
    fn is_last(target: Arc<Target>) -> bool {
        Arc::into_unique_or_drop(target).is_some()
    }

    #[test]
    fn expires_once_and_not_early() -> Result {
        let target = Target::new(0, 0)?;
        target.timer.attach(target.clone());
        let deadline = now_ns() + 5 * MS;
        target.timer.start_at(deadline);
        assert!(target.wait(1));
        assert!(target.last.load(Relaxed) >= deadline);
        fsleep(Delta::from_millis(20));
        assert_eq!(target.calls(), 1);
        target.timer.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn a_time_in_the_past_is_soon() -> Result {
        let target = Target::new(0, 0)?;
        target.timer.attach(target.clone());
        target.timer.start_at(0);
        assert!(target.wait(1));
        target.timer.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn an_earlier_start_wins() -> Result {
        let target = Target::new(0, 0)?;
        target.timer.attach(target.clone());
        let now = now_ns();
        target.timer.start_at(now + 600_000 * MS);
        target.timer.start_at(now + 2 * MS);
        target.timer.start_at(now + 600_000 * MS);
        assert!(target.wait(1));
        target.timer.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn restarts_itself() -> Result {
        let target = Target::new(20, 0)?;
        target.timer.attach(target.clone());
        target.timer.start_at(now_ns() + MS);
        assert!(target.wait(21));
        fsleep(Delta::from_millis(10));
        assert_eq!(target.calls(), 21);
        target.timer.shutdown();
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn shutdown_cancels() -> Result {
        let target = Target::new(0, 0)?;
        target.timer.attach(target.clone());
        target.timer.start_at(now_ns() + 50 * MS);
        target.timer.shutdown();
        target.timer.start_at(0);
        fsleep(Delta::from_millis(80));
        assert_eq!(target.calls(), 0);
        // A target that comes now is refused.
        target.timer.attach(target.clone());
        assert!(is_last(target));
        Ok(())
    }

    #[test]
    fn shutdown_waits_for_a_call() -> Result {
        for _ in 0..5 {
            // Would start itself for ever.
            let target = Target::new(u64::MAX, 3 * MS)?;
            target.timer.attach(target.clone());
            target.timer.start_at(0);
            assert!(target.wait(2));
            target.timer.shutdown();
            assert!(!target.inside.load(Relaxed));
            let calls = target.calls();
            fsleep(Delta::from_millis(10));
            assert_eq!(target.calls(), calls);
            assert!(is_last(target));
        }
        Ok(())
    }

    #[test]
    fn without_a_target_nothing_happens() -> Result {
        let timer = Timer::<Target>::new()?;
        timer.start_at(0);
        fsleep(Delta::from_millis(5));
        drop(timer);
        Ok(())
    }
}
