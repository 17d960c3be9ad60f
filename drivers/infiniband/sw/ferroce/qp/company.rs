// SPDX-License-Identifier: GPL-2.0
//! Whether what was posted waits for company, so that short messages travel together.
//!
//! On a reliable connection it waits while something is in flight; the acknowledgement ends that. Of
//! datagrams, and on an unreliable connection, nothing tells when they have arrived. But a program
//! that posts again soon after them, without having heard or been told anything in between, does not
//! wait for what it posts, and is likely to have more. If it has not, the next ones do not wait.
//!
//! ```text
//!   posted   |   ||||||   ||||||     |              a reply, or a completion that was taken
//!   sent     |        |        |     |      time:   no longer than GATHER_NS, or GATHER_WQES
//! ```
//!
//! If more came within that time, they wait for it once more, but not more than [`MAX_ROUNDS`] times:
//! the faster a program posts, the more travels together.

use super::{
    now,
    Core,
    Io,
    QueuePair, //
};
use roce::{
    qp::state::QpState,
    types::Instant, //
};

/// No more wait than these, nor than a quarter of the send queue,
const GATHER_WQES: u32 = 32;

/// nor longer than this, in nanoseconds,
pub(super) const GATHER_NS: u64 = 20_000;

/// but so many times, as long as more come.
const MAX_ROUNDS: u32 = 3;

/// What is posted later than this after what was sent before has nothing to do with it.
const SOON_NS: u64 = 100_000;

/// After none came, so many at most do not wait.
const MAX_ALONE: u32 = 256;

/// What is known of how a program posts.
#[derive(Default)]
pub(super) struct Company {
    /// When packets were last sent that nobody will acknowledge, if nothing has come in since.
    sent_at: Option<Instant>,
    /// A completion was written since.
    told: bool,
    /// Something waits.
    is_awaited: bool,
    /// So many more do not wait.
    alone: u32,
    /// So many waited when somebody last looked whether more come; 0 if none do.
    seen: u32,
    /// So often was that.
    rounds: u32,
    /// So many did not, after the last that waited for nothing; each time twice as many.
    last_alone: u32,
}

impl Company {
    /// Packets are on their way of which nothing will be heard.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent_at = Some(now);
        self.told = false;
    }

    /// Something came in.
    pub(super) fn heard(&mut self) {
        self.sent_at = None;
    }

    /// A send completed, and the program can see it.
    pub(super) fn told(&mut self) {
        self.told = true;
    }

    /// Whether those who wait, which are so many now, do so once more.
    pub(super) fn goes_on(&mut self, waiting: u32) -> bool {
        if self.seen == 0 || waiting <= self.seen || self.rounds >= MAX_ROUNDS {
            return false;
        }
        self.seen = waiting;
        self.rounds = self.rounds.wrapping_add(1);
        true
    }

    /// What was posted is about to be sent: so many.
    pub(super) fn is_over(&mut self, waiting: impl FnOnce() -> u32) {
        self.seen = 0;
        self.rounds = 0;
        if core::mem::take(&mut self.is_awaited) {
            self.last_alone = match waiting() {
                0 | 1 => self.last_alone.saturating_mul(2).clamp(1, MAX_ALONE),
                _ => 0,
            };
            self.alone = self.last_alone;
        }
    }
}

impl QueuePair {
    /// Whether what was just posted may wait for company.
    pub(super) fn awaits_company(&self, core: &Core, io: &mut Io) -> bool {
        let waiting = io.sends.waiting();
        if waiting >= GATHER_WQES.min(self.caps.max_send_wr.wrapping_shr(2)) {
            return false;
        }
        let company = &mut io.company;
        if core.is_in_flight() || company.is_awaited {
            if company.seen == 0 {
                company.seen = waiting;
            }
            return true;
        }
        let soon = |sent_at: Instant| now() < sent_at.after(SOON_NS);
        let was_told = company.told && self.send_cq.as_ref().is_some_and(|cq| cq.is_empty());
        if was_told || !company.sent_at.is_some_and(soon) {
            return false;
        }
        if company.alone != 0 {
            company.alone = company.alone.wrapping_sub(1);
            return false;
        }
        company.is_awaited = true;
        true
    }

    /// Whether what has waited for company, for as long as that may take, does so once more.
    pub(super) fn waits_on(&self, core: &Core, io: &mut Io) -> bool {
        core.state() == QpState::Rts && core.is_idle() && io.company.goes_on(io.sends.waiting())
    }
}
