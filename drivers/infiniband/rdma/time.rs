// SPDX-License-Identifier: GPL-2.0

//! The monotonic clock, and random numbers.
//!
//! C headers: [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h),
//! [`include/linux/random.h`](srctree/include/linux/random.h)
//!
//! Would be `kernel::time::Instant` and `rust/kernel/random.rs`.

use crate::bindings;

/// The time of the monotonic clock, in nanoseconds.
///
/// # Context
///
/// Any but NMI.
#[inline]
pub fn now_ns() -> u64 {
    // SAFETY: `ktime_get` (kernel/time/timekeeping.c) has no precondition once the timekeeping
    // runs.
    let now = unsafe { bindings::ktime_get() };
    // The monotonic clock starts at 0 and does not go backwards.
    now.unsigned_abs()
}

/// A random number, good enough for keys.
///
/// # Context
///
/// Any.
pub fn random_u32() -> u32 {
    // SAFETY: `get_random_u32` (drivers/char/random.c) has no precondition.
    unsafe { bindings::get_random_u32() }
}
