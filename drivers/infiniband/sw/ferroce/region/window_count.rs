// SPDX-License-Identifier: GPL-2.0
//! How many windows are bound to a region.

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    }, //
};

/// Value of a count that takes no more.
const CLOSED: i32 = -1;

/// A count that can be closed when it is 0.
pub(super) struct WindowCount(Atomic<i32>);

impl WindowCount {
    pub(super) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts one more.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is closed.
    pub(super) fn attach(&self) -> Result {
        let mut count = self.0.load(Relaxed);
        while count != CLOSED {
            let next = count.checked_add(1).ok_or(EBUSY)?;
            match self.0.cmpxchg(count, next, Full) {
                Ok(_) => return Ok(()),
                Err(now) => count = now,
            }
        }
        Err(EBUSY)
    }

    /// Counts one less.
    pub(super) fn detach(&self) {
        let _ = self.0.fetch_sub(1, Full);
    }

    /// Takes no more from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is not 0.
    pub(super) fn close(&self) -> Result {
        self.0
            .cmpxchg(0, CLOSED, Full)
            .map(|_| ())
            .map_err(|_| EBUSY)
    }

    /// Takes some again, after [`Self::close`].
    pub(super) fn reopen(&self) {
        let _ = self.0.cmpxchg(CLOSED, 0, Full);
    }
}
