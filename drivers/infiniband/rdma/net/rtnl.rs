// SPDX-License-Identifier: GPL-2.0

//! The mutex of the network stack's configuration.
//!
//! C header: [`include/linux/rtnetlink.h`](srctree/include/linux/rtnetlink.h)
//!
//! Would become `rust/kernel/net/rtnl.rs`.

use crate::bindings;
use core::marker::PhantomData;

/// Proof that the RTNL is held by this thread.
#[must_use = "the lock is held only as long as this is there"]
pub struct Rtnl(PhantomData<*mut ()>);

impl Rtnl {
    /// Takes the lock.
    ///
    /// # Context
    ///
    /// Process context, may sleep; the RTNL must not be held.
    pub fn lock() -> Self {
        // SAFETY: `rtnl_lock` (net/core/rtnetlink.c) takes a mutex; taking it twice is a deadlock and
        // not undefined behaviour.
        unsafe { bindings::rtnl_lock() };
        Self(PhantomData)
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: This thread has taken the lock in `lock`: the type is not `Send`.
        unsafe { bindings::rtnl_unlock() };
    }
}
