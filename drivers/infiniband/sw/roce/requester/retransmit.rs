// SPDX-License-Identifier: GPL-2.0
//! When the requester sends again: the local ACK timer, retry counters and RNR waits.
//!
//! ```text
//!             poll arms                     fires: a retry
//!   idle ------------------> ACK timer runs ---------------> rewind
//!    ^                          |    |
//!    | all acknowledged         |    | RNR NAK: an RNR retry
//!    '--------------------------'    v
//!              progress restarts    RNR wait -------------> rewind was done, send again
//! ```
//!
//! - A *retry* is one timeout, or the first sequence error (NAK or gap) since progress. Repeated
//!   sequence errors without progress send again at once but neither count nor stop the timer, so
//!   that duplicated or reordered packets cannot use up the retries, and a peer that makes no
//!   progress runs into the timer all the same.
//! - A timeout while responses to READs keep arriving, if not the one that is missing, says that the
//!   peer is busy with what was asked before, not that it is dead: the timer starts over, nothing is
//!   asked again, and no retry is used up, but not for longer than [`PATIENCE`] without progress.
//! - *Progress* is that the oldest unacknowledged PSN advances. It refills both counters; an RNR NAK
//!   refills that of the retries.
//! - A message whose completion nobody waits for asks for no ACK. If none comes with the packets after
//!   it, its last packet is sent again after [`PROBE_NS`], asking for one; that is no retry.
//! - If an answer is overdue, by how long answers have taken lately, what is missing is asked for once more
//!   long before the local ACK timer fires: what comes last may be lost with nothing behind it to show
//!   that. It is no retry, and done once until there is progress.
//! - However often the requester goes back, it sends less each time: see [`super::window`].

use crate::{
    cqe::WcStatus,
    env::{
        Counter,
        Env, //
    },
    qp::{
        attr::QpAttr,
        Context,
        Failure, //
    },
    requester::Requester,
    types::{
        Instant,
        Psn, //
    },
    wqe::SendWqe,
};
use core::ops::DerefMut;

/// Unit of the local ACK timeout, in nanoseconds.
const ACK_TIMEOUT_UNIT: u64 = 4096;

/// Smallest code of the local ACK timeout that is honoured: 1.05 ms. No host answers reliably
/// within less, and giving up within microseconds helps nobody.
const MIN_ACK_TIMEOUT: u8 = 8;

/// How long after a packet that asks for no ACK one is asked for: shorter than any local ACK timeout.
const PROBE_NS: u64 = 500_000;

/// Longer than the longest of recent round trips, by so much, is an answer overdue.
const OVERDUE_NS: u64 = 500_000;

/// The longest round trip that is believed, in nanoseconds.
const MAX_TRIP: u64 = 100_000_000;

/// How long without progress a peer may be busy with responses that help nobody, in nanoseconds.
const PATIENCE: u64 = 4_000_000_000;

/// How often without progress response streams that begin again are believed to show a new loss; the
/// timer finds what is lost more often. Each repetition is one more stream for the peer to send.
const MAX_FALLS: u8 = 2;

/// Retry count that never ends.
const RNR_RETRY_FOREVER: u8 = 7;

/// Timers and counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    /// Retries left.
    left: u8,
    /// RNR retries left.
    rnr_left: u8,
    /// A retry was counted since the last progress.
    went_back: bool,
    /// The last response beyond a gap.
    ahead: Option<Psn>,
    /// Times that the PSNs of responses beyond a gap fell.
    falls: u8,
    /// A response to a READ came since the timer was started.
    pub(crate) heard: bool,
    /// When patience ends with a peer that is busy without progress.
    patience: Option<Instant>,
    /// When the local ACK timer fires.
    ack: Option<Instant>,
    /// When an RNR wait ends.
    rnr: Option<Instant>,
    /// When to ask for an ACK of the packets that were sent last and did not ask for one.
    probe: Option<Instant>,
    /// The last packet of each message asks for an ACK, until all is acknowledged.
    pub(super) asks: bool,
    /// The longest of recent round trips, in nanoseconds.
    trip: Option<u64>,
    /// The packet whose answer is timed, and when it was sent.
    timed: Option<(Psn, Instant)>,
    /// When an answer is overdue.
    overdue: Option<Instant>,
    /// What was overdue was asked for again since the last progress.
    asked_again: bool,
}

impl Retry {
    /// A packet that asks for an ACK is on its way, and none is behind it.
    #[inline]
    pub(super) fn asked(&mut self) {
        self.probe = None;
    }

    /// A packet that does not ask for an ACK is on its way.
    #[inline]
    pub(super) fn unasked(&mut self, now: Instant) {
        if self.probe.is_none() {
            self.probe = Some(now.after(PROBE_NS));
        }
    }

    /// A packet that wants an answer is on its way; `psn` is the last that it covers. `is_new` if none
    /// with it was sent before.
    #[inline]
    pub(super) fn expects(&mut self, now: Instant, psn: Psn, is_new: bool) {
        if self.timed.is_none() && is_new {
            self.timed = Some((psn, now));
        }
        self.await_answer(now);
    }

    /// Everything before `unacked` is acknowledged.
    #[inline]
    fn answered(&mut self, now: Instant, unacked: Psn) {
        self.asked_again = false;
        if let Some((_, sent)) = self.timed.filter(|(psn, _)| psn.is_before(unacked)) {
            self.timed = None;
            let took = now.0.saturating_sub(sent.0);
            let before = self.trip.unwrap_or(0);
            let faded = before.wrapping_sub(before >> 3);
            self.trip = Some(took.max(faded).min(MAX_TRIP));
        }
    }

    /// What was timed is sent again: an answer may be one to either.
    pub(super) fn forget_trip(&mut self) {
        self.timed = None;
    }

    /// Starts anew the time after which an answer is overdue, if it is known.
    #[inline]
    fn await_answer(&mut self, now: Instant) {
        self.overdue = match self.trip {
            Some(trip) if !self.asked_again => {
                Some(now.after(trip.saturating_mul(2).saturating_add(OVERDUE_NS)))
            }
            _ => None,
        };
    }

    /// Whether an answer is overdue. Until there is progress, it is not again.
    fn is_overdue(&mut self, now: Instant) -> bool {
        if self.overdue.is_none_or(|at| at > now) {
            return false;
        }
        self.overdue = None;
        self.timed = None;
        self.asked_again = true;
        // It may be late only.
        self.trip = self.trip.map(|trip| trip.saturating_mul(2).min(MAX_TRIP));
        true
    }

    /// Refills the counters.
    pub(crate) fn refill(&mut self, attr: &QpAttr) {
        self.left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.went_back = false;
        self.ahead = None;
        self.falls = 0;
        self.heard = false;
        self.patience = None;
        self.rnr = None;
    }

    /// Whether an RNR wait is on. Ends one whose time has come.
    #[inline]
    pub(crate) fn is_waiting(&mut self, now: Instant) -> bool {
        if self.rnr.is_some_and(|until| now < until) {
            return true;
        }
        self.rnr = None;
        false
    }

    /// Starts the local ACK timer if it does not run.
    #[inline]
    pub(crate) fn arm(&mut self, now: Instant, attr: &QpAttr) {
        if self.ack.is_none() {
            self.restart(now, attr);
        }
    }

    #[inline]
    fn restart(&mut self, now: Instant, attr: &QpAttr) {
        self.ack = ack_timeout(attr.timeout).map(|ns| now.after(ns));
    }

    /// Stops the local ACK timer.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        self.ack = None;
        self.overdue = None;
    }

    /// Does not count the time until `until` into a running timer.
    pub(crate) fn defer(&mut self, until: Instant, attr: &QpAttr) {
        if self.ack.is_some() {
            self.restart(until, attr);
            self.overdue = None;
        }
    }

    /// Whether the peer may still be busy without progress.
    fn is_patient(&mut self, now: Instant) -> bool {
        now < *self.patience.get_or_insert(now.after(PATIENCE))
    }

    /// The next time that something is to be done.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        earlier(
            earlier(self.ack, self.rnr),
            earlier(self.probe, self.overdue),
        )
    }
}

/// The earlier of two times.
#[inline]
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (Some(time), None) | (None, Some(time)) => Some(time),
        (None, None) => None,
    }
}

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    /// The oldest unacknowledged PSN has advanced.
    #[inline]
    pub(crate) fn progress(&mut self, now: Instant, ctx: &Context<'_>) {
        self.catch_up();
        self.retry.refill(ctx.attr);
        self.retry.answered(now, self.unacked);
        if self.unacked == self.cursor() {
            self.retry.disarm();
            self.retry.probe = None;
            self.retry.asks = false;
        } else {
            self.retry.restart(now, ctx.attr);
            self.retry.await_answer(now);
        }
    }

    //= IBA 9.7.6.1.3
    /// A timer may have fired.
    pub(crate) fn handle_timeout<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        if self.retry.is_waiting(now) {
            return Ok(());
        }
        if self.retry.ack.is_some_and(|at| at <= now) {
            if core::mem::take(&mut self.retry.heard) && self.retry.is_patient(now) {
                self.retry.restart(now, ctx.attr);
                return Ok(());
            }
            env.count(Counter::AckTimeout);
            self.retry.went_back = true;
            self.retry.ahead = None;
            self.window.collapse();
            return self.retry(env);
        }
        if self.retry.probe.is_some_and(|at| at <= now) {
            self.ask_again();
        }
        // Without an ACK timer, nothing is asked for again only because it takes long.
        let has_timer = self.retry.ack.is_some();
        if self.retry.is_overdue(now) && has_timer && self.cursor() != self.unacked {
            self.look_after();
        }
        Ok(())
    }

    /// Asks again for what is missing: a response, or an ACK. Where more is to be sent, what has got lost may
    /// be all that was in flight.
    fn look_after(&mut self) {
        let responds = |wqe: SendWqe| wqe.op.is_rd_atomic();
        if self.cursor() != self.unassigned || self.wqe(self.head).is_some_and(responds) {
            self.retry.asks = true;
            self.rewind();
        } else {
            self.ask_again();
        }
    }

    /// Sends the last packet again, now asking for an ACK, if nothing else is to be sent. The peer
    /// acknowledges everything with it, or says what is missing.
    fn ask_again(&mut self) {
        self.retry.probe = None;
        self.retry.asks = true;
        let (last, psn) = (self.started.wrapping_sub(1), self.unassigned.sub(1));
        if self.head == self.started || self.cursor() != self.unassigned {
            return;
        }
        // Requests with responses of their own, and local operations, need no ACK.
        if let Some(wqe) = self
            .wqe(last)
            .filter(|wqe| wqe.packets != 0 && !wqe.op.is_rd_atomic())
        {
            self.next = last;
            self.position = psn.offset_from(wqe.first_psn);
        }
    }

    /// Uses up a retry and goes back.
    fn retry<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        let Some(left) = self.retry.left.checked_sub(1) else {
            env.count(Counter::RetryExceeded);
            return Err(self.fail(WcStatus::RetryExcErr, env));
        };
        self.retry.left = left;
        self.retry.disarm();
        self.retry.asks = true;
        env.count(Counter::Retry);
        self.rewind();
        Ok(())
    }

    /// The packet at the oldest unacknowledged PSN is missing at the peer: goes back to it.
    pub(crate) fn sequence_error<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        if self.cursor() == self.unacked {
            // Nothing has been sent since the requester went back.
            return Ok(());
        }
        self.window.shrink();
        if self.retry.went_back {
            env.count(Counter::Retry);
            self.rewind();
            return Ok(());
        }
        self.retry.went_back = true;
        self.retry(env)
    }

    /// A response for `psn` came while an earlier READ response is missing.
    ///
    /// Goes back once per gap. The rest of the old response stream is still under way and its PSNs
    /// rise; if they fall, the peer has begun again and the same packet was lost again.
    pub(crate) fn gap<E: Env + ?Sized>(&mut self, psn: Psn, env: &mut E) -> Result<(), Failure> {
        let ahead = self.retry.ahead.replace(psn);
        if let Some(ahead) = ahead {
            let has_timer = self.retry.ack.is_some();
            if !psn.is_before(ahead) || (has_timer && self.retry.falls >= MAX_FALLS) {
                return Ok(());
            }
            self.retry.falls = self.retry.falls.saturating_add(1);
        }
        env.count(Counter::ImpliedNak);
        self.sequence_error(env)
    }

    //= IBA 9.7.5.2.8
    /// The peer has no receive WQE for the packet at the oldest unacknowledged PSN.
    pub(crate) fn receiver_not_ready<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        timer: u8,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        if self.retry.rnr.is_some() || self.cursor() == self.unacked {
            return Ok(());
        }
        env.count(Counter::RnrReceived);
        if ctx.attr.rnr_retry != RNR_RETRY_FOREVER {
            let Some(left) = self.retry.rnr_left.checked_sub(1) else {
                env.count(Counter::RnrRetryExceeded);
                return Err(self.fail(WcStatus::RnrRetryExcErr, env));
            };
            self.retry.rnr_left = left;
        }
        // The packet did arrive.
        self.retry.left = ctx.attr.retry_cnt;
        self.retry.went_back = false;
        self.retry.disarm();
        self.rewind();
        self.retry.rnr = Some(now.after(rnr_wait(timer)));
        Ok(())
    }
}

//= IBA 9.7.6.1.3
/// Local ACK timeout in nanoseconds, `None` for no timeout.
#[inline]
fn ack_timeout(code: u8) -> Option<u64> {
    let shift = u32::from(code.max(MIN_ACK_TIMEOUT));
    (code != 0).then(|| ACK_TIMEOUT_UNIT.wrapping_shl(shift))
}

//= IBA 9.7.5.2.8
/// What the codes of an RNR NAK timer mean, in units of 10 microseconds.
const RNR_WAIT: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time that an RNR NAK timer code means, in nanoseconds.
pub(crate) fn rnr_wait(code: u8) -> u64 {
    let units = RNR_WAIT
        .get(usize::from(code & 31))
        .copied()
        .unwrap_or(65536);
    u64::from(units).wrapping_mul(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_codes() {
        assert_eq!(rnr_wait(0), 655_360_000);
        assert_eq!(rnr_wait(1), 10_000);
        assert_eq!(rnr_wait(12), 640_000);
        assert_eq!(rnr_wait(13), 960_000);
        assert_eq!(rnr_wait(14), 1_280_000);
        assert_eq!(rnr_wait(25), 61_440_000);
        assert_eq!(rnr_wait(31), 491_520_000);
        for code in 2..32 {
            assert!(rnr_wait(code) > rnr_wait(code - 1));
        }
    }

    #[test]
    fn ack_timeouts() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(4096 << 8));
        assert_eq!(ack_timeout(14), Some(67_108_864));
        assert_eq!(ack_timeout(31), Some(8_796_093_022_208));
    }
}
