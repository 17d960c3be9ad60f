// SPDX-License-Identifier: GPL-2.0
//! The end of a QP's use of a receive queue that it shares with others.
//!
//! In ERR, a QP flushes its own receive queue. What is in a shared one stays for the other QPs; the
//! consumer is told once that this QP takes nothing from it any more, after the completion of
//! the last WQE that it had taken.

use crate::env::{
    Env,
    QpEvent, //
};

/// Whether a QP shares its receive queue, and what was said of it.
pub(crate) struct LastWqe {
    shared: bool,
    told: bool,
}

impl LastWqe {
    pub(crate) const fn new(shared: bool) -> Self {
        Self {
            shared,
            told: false,
        }
    }

    /// The receive queue is a shared one.
    pub(crate) fn share(&mut self) {
        self.shared = true;
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// The QP starts anew.
    pub(crate) fn reset(&mut self) {
        self.told = false;
    }

    //= IBA 11.6.3
    /// The QP is in ERR and has completed what it had taken.
    pub(crate) fn report<E: Env + ?Sized>(&mut self, env: &mut E) {
        if !self.told {
            self.told = true;
            env.event(QpEvent::LastWqe);
        }
    }
}
