// SPDX-License-Identifier: GPL-2.0

//! Sections in which no softirq runs on this CPU.
//!
//! C header: [`include/linux/bottom_half.h`](srctree/include/linux/bottom_half.h)

use crate::bindings;
use kernel::types::NotThreadSafe;

/// Softirqs do not run on this CPU while the value lives, and the thread stays on it.
///
/// # Context
///
/// Process or softirq context with interrupts on. When the last one is dropped, softirqs that have
/// become due run.
pub(crate) struct BhDisabled(NotThreadSafe);

impl BhDisabled {
    #[inline]
    pub(crate) fn new() -> Self {
        // SAFETY: `local_bh_disable` (include/linux/bottom_half.h) nests, and is undone by `drop`
        // on the same CPU: the value cannot be sent.
        unsafe { bindings::local_bh_disable() };
        Self(NotThreadSafe)
    }
}

impl Drop for BhDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `new` has disabled them.
        unsafe { bindings::local_bh_enable() };
    }
}
