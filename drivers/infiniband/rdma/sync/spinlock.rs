// SPDX-License-Identifier: GPL-2.0

//! Spinlocks for data that softirqs or hardirqs share.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)
//!
//! Would become `rust/kernel/sync/lock/spinlock_bh.rs`.
//!
//! | lock | taken from | must not be taken |
//! |---|---|---|
//! | [`SpinLockBh`] | process and softirq context | with interrupts disabled, in hardirq context |
//! | [`SpinLockIrqSave`] | any context | (nothing) |
//!
//! Both are ordinary `spinlock_t`s with lockdep classes of their own: one class for each place that
//! creates a lock with [`new_spinlock_bh!`](crate::new_spinlock_bh) or
//! [`new_spinlock_irqsave!`](crate::new_spinlock_irqsave).

use crate::bindings;
use kernel::{
    ffi::{
        c_char,
        c_ulong, //
    },
    sync::lock::{
        Backend,
        Guard,
        Lock, //
    },
};

/// Creates a [`SpinLockBh`] initialiser with a lock class of its own.
///
/// The name is what lockdep prints; without one it is made from file and line.
///
/// # Examples
///
/// ```
/// let queue: impl PinInit<SpinLockBh<u32>> = rdma::new_spinlock_bh!(0, "Qp::queue");
/// ```
#[macro_export]
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockBh::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

/// Creates a [`SpinLockIrqSave`] initialiser with a lock class of its own.
///
/// The name is what lockdep prints; without one it is made from file and line.
#[macro_export]
macro_rules! new_spinlock_irqsave {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockIrqSave::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

/// A spinlock that keeps softirqs off the CPU while it is held (`spin_lock_bh`).
///
/// # Context
///
/// Process or softirq context with interrupts enabled. Never from a hardirq.
pub type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

/// What [`SpinLockBh::lock`] returns; dropping it unlocks.
pub type SpinLockBhGuard<'a, T> = Guard<'a, T, SpinLockBhBackend>;

/// A spinlock that disables interrupts while it is held and restores them after
/// (`spin_lock_irqsave`).
///
/// Guards of several such locks must be dropped in the reverse order of locking: each restores the
/// interrupt state that it found. A wrong order leaves interrupts on under the lock that is still
/// held (a possible deadlock, never a data race).
///
/// # Context
///
/// Any.
pub type SpinLockIrqSave<T> = Lock<T, SpinLockIrqSaveBackend>;

/// What [`SpinLockIrqSave::lock`] returns; dropping it unlocks.
pub type SpinLockIrqSaveGuard<'a, T> = Guard<'a, T, SpinLockIrqSaveBackend>;

/// The [`Backend`] of [`SpinLockBh`].
pub struct SpinLockBhBackend;

// SAFETY: `spinlock_t` gives mutual exclusion (Documentation/locking/spinlocks.rst). `relock` is
// the default implementation, which calls `lock`.
unsafe impl Backend for SpinLockBhBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of `Backend::init`, `ptr` is valid for writes and `name` and
        // `key` for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By the contract of `Backend::lock`, `ptr` was initialised by `init`.
        unsafe { bindings::spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: By the contract of `Backend::try_lock`, `ptr` was initialised by `init`.
        let locked = unsafe { bindings::spin_trylock_bh(ptr) };
        (locked != 0).then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _state: &Self::GuardState) {
        // SAFETY: By the contract of `Backend::unlock`, the caller owns the lock, which `lock` or
        // `try_lock` took.
        unsafe { bindings::spin_unlock_bh(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By the contract of `Backend::assert_is_held`, `ptr` was initialised by `init`.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}

/// The [`Backend`] of [`SpinLockIrqSave`].
pub struct SpinLockIrqSaveBackend;

// SAFETY: `spinlock_t` gives mutual exclusion (Documentation/locking/spinlocks.rst). `relock` is
// the default implementation, which calls `lock`.
unsafe impl Backend for SpinLockIrqSaveBackend {
    type State = bindings::spinlock_t;
    type GuardState = c_ulong;

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of `Backend::init`, `ptr` is valid for writes and `name` and
        // `key` for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By the contract of `Backend::lock`, `ptr` was initialised by `init`.
        unsafe { bindings::spin_lock_irqsave(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: By the contract of `Backend::try_lock`, `ptr` was initialised by `init`; `flags`
        // is a local.
        let locked = unsafe { bindings::spin_trylock_irqsave(ptr, &mut flags) };
        (locked != 0).then_some(flags)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, state: &Self::GuardState) {
        // SAFETY: By the contract of `Backend::unlock`, the caller owns the lock, and `state` is
        // what `lock` or `try_lock` returned when it was taken.
        unsafe { bindings::spin_unlock_irqrestore(ptr, *state) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By the contract of `Backend::assert_is_held`, `ptr` was initialised by `init`.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
