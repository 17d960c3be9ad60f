// SPDX-License-Identifier: GPL-2.0
//! A message came and no receive WQE is posted: wait a little, before the peer is told.
//!
//! An RNR NAK costs the peer the time that it names, 0.64 ms with most programs, and what was sent is sent
//! again. Often the program that is to post the next receive has been woken, and only has not run yet. So the
//! packet is kept, and those that follow it, as if it waited for a page (see [`super::fault`]). There is no
//! doorbell for receives: the QP's timer looks for them.
//!
//! ```text
//!   message ->  none posted: kept    look   look   posted: handed in again, as if it had come now
//!                                                  or HOLD_NS are over: handed in again, RNR NAK
//! ```

use super::{
    fault::Missing,
    now,
    world::World,
    QueuePair, //
};
use roce::types::Instant;

/// No message waits longer than this, in nanoseconds: a fraction of the shortest ACK timeout,
const HOLD_NS: u64 = 200_000;

/// nor is looked after more often than this.
const LOOK_NS: u64 = 20_000;

/// How long a message waits for a receive WQE.
#[derive(Default)]
pub(super) struct ReceiveWait {
    /// To its end; `None` if none has waited since the last one was taken.
    until: Option<Instant>,
    /// When to look again.
    look: Instant,
}

impl ReceiveWait {
    /// Whether the message at hand waits, for which no receive WQE is posted.
    fn goes_on(&mut self, now: Instant) -> bool {
        let until = *self.until.get_or_insert(now.after(HOLD_NS));
        self.look = now.after(LOOK_NS);
        if now < until {
            return true;
        }
        self.until = None;
        false
    }

    /// A receive WQE was taken.
    #[inline]
    pub(super) fn end(&mut self) {
        self.until = None;
    }

    /// Whether to look for a receive WQE no more; if not, puts off the next look.
    fn is_over(&mut self, now: Instant, is_posted: bool) -> bool {
        if is_posted || self.until.is_none_or(|until| until <= now) {
            return true;
        }
        self.look = now.after(LOOK_NS);
        false
    }

    /// When to look again.
    pub(super) fn look(&self) -> Instant {
        self.look
    }
}

impl World<'_> {
    /// Whether the packet at hand, for which no receive WQE is posted, waits for one.
    pub(super) fn awaits_receive(&mut self) -> bool {
        let may_wait = self.qp.kind.is_reliable() && self.is_kept();
        let waits = may_wait && self.io.receive_wait.goes_on(now());
        if waits {
            self.missing.set(Some(Missing::Receive));
        }
        waits
    }
}

impl QueuePair {
    /// Looks whether packets that wait for a receive WQE are to be handed in again. `true`: by
    /// [`Self::replay`].
    pub(super) fn looks_for_receives(&self, io: &mut super::Io) -> bool {
        if io.faults.missing() != Some(Missing::Receive) {
            return false;
        }
        let is_posted = !io.receives.is_empty();
        let is_over = io.receive_wait.is_over(now(), is_posted);
        if is_over {
            io.faults.found_receive();
        }
        is_over
    }
}
