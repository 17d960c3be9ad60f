// SPDX-License-Identifier: GPL-2.0
//! What a QP does when the egress refuses its packets: it waits a little, longer each time.
//!
//! ```text
//!            refused                 refused again, nothing got out between
//!   0.2 ms  -------> 0.2 ms ... ----------------------------------------> doubled, up to 0.8 ms
//!     ^                 |
//!     '-- packets got out
//! ```
//!
//! The longest pause is shorter than the shortest ACK timeout (1 ms): what waits may be the ACK
//! without which the peer gives up.

use crate::types::Instant;

/// The shortest pause, in nanoseconds.
const SHORTEST: u64 = 200_000;

/// The longest pause is `SHORTEST << MAX_LEVEL`.
const MAX_LEVEL: u32 = 2;

/// A pause, or none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    level: u32,
    /// There was a pause before.
    refused: bool,
    /// Runs handed out since the last pause; the last one may have been refused.
    runs: u32,
}

impl Pause {
    /// Whether nothing is to be sent now. Ends a pause whose time has come.
    #[inline]
    pub(super) fn is_on(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        self.until = None;
        false
    }

    #[inline]
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// A run was handed out.
    #[inline]
    pub(super) fn handed_out(&mut self) {
        self.runs = self.runs.saturating_add(1);
    }

    /// A run was refused, entirely or after `some` of its packets. Returns the end of the pause.
    pub(super) fn start(&mut self, now: Instant, some: bool) -> Instant {
        if some || self.runs > 1 || !self.refused {
            self.level = 0;
        } else if self.runs == 1 {
            self.level = self.level.wrapping_add(1).min(MAX_LEVEL);
        }
        self.refused = true;
        self.runs = 0;
        let until = now.after(SHORTEST.wrapping_shl(self.level));
        self.until = Some(until);
        until
    }
}
