// SPDX-License-Identifier: GPL-2.0
//! Who has a QP's turn to transmit: one context at a time, so that packets keep their order while they are
//! handed to the network stack without the QP's lock.
//!
//! ```text
//!   NOBODY --take--> SOMEBODY --take, by another one--> AWAITED      whoever has the turn looks again
//!      ^                |
//!      '-----end--------'   without the lock, if nobody came meanwhile
//! ```

use kernel::sync::atomic::{
    Atomic,
    Full,
    Relaxed, //
};

const NOBODY: u32 = 0;
const SOMEBODY: u32 = 1;
const AWAITED: u32 = 2;

/// Whose turn it is.
pub(super) struct Sender(Atomic<u32>);

impl Default for Sender {
    fn default() -> Self {
        Self(Atomic::new(NOBODY))
    }
}

impl Sender {
    /// Takes the turn. If another context has it, returns false: that one will look again.
    ///
    /// # Context
    ///
    /// Under the QP's lock.
    #[inline]
    pub(super) fn take(&self) -> bool {
        if self.0.xchg(AWAITED, Full) != NOBODY {
            return false;
        }
        self.keep(true);
        true
    }

    /// Whoever has the turn has looked for what is to be sent: keeps the turn, or ends it.
    ///
    /// # Context
    ///
    /// Under the QP's lock.
    #[inline]
    pub(super) fn keep(&self, keeps: bool) {
        self.0.store(if keeps { SOMEBODY } else { NOBODY }, Relaxed);
    }

    /// Ends the turn if nobody wanted it since [`Self::keep`]; returns whether it did.
    ///
    /// # Context
    ///
    /// Any, without the QP's lock.
    #[inline]
    pub(super) fn end(&self) -> bool {
        self.0.cmpxchg(SOMEBODY, NOBODY, Full).is_ok()
    }
}
