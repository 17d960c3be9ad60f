// SPDX-License-Identifier: GPL-2.0
//! What the queue pair has to send, and what became of it.

use crate::{
    env::{
        Env,
        MemoryError, //
    },
    qp::{
        state::{
            QpKind,
            QpState, //
        },
        Context,
        Failure,
        Qp,
        ReadSlot, //
    },
    run::{
        Role,
        Run, //
    },
    types::Instant,
    wqe::SendWqe, //
};
use core::ops::DerefMut;

impl<S, R> Qp<S, R>
where
    S: DerefMut<Target = [SendWqe]>,
    R: DerefMut<Target = [ReadSlot]>,
{
    /// Whether [`Self::transmitted`] and [`Self::poll_transmit`] have nothing to do: all posted sends are
    /// handed out, those that nobody acknowledges are complete, and nothing is to be answered.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let requester = &self.requester;
        requester.next == requester.tail
            && (self.kind.is_reliable() || requester.head == requester.next)
            && (self.responder.is_idle() || self.ack_hold.is_on())
    }

    /// The next packets to send, at most `max_packets` of them, or `None` if there are none now.
    ///
    /// Runs are to be sent in the order in which they were handed out.
    pub fn poll_transmit<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        max_packets: u32,
        env: &mut E,
    ) -> Option<Run> {
        let mut run = None;
        self.next_run(now, max_packets, env, &mut run);
        run
    }

    /// As [`Self::poll_transmit`], to where the run is to be: it is large, and not moved about.
    // Not inlined: else the compiler takes the run apart, and moves each field several times.
    #[inline(never)]
    pub fn next_run<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        max_packets: u32,
        env: &mut E,
        run: &mut Option<Run>,
    ) {
        *run = None;
        if self.pause.is_on(now) || self.is_idle() {
            return;
        }
        let (responds, requests) = match self.attr.state {
            QpState::Reset | QpState::Init => return,
            QpState::Rtr | QpState::Sqe => (true, false),
            QpState::Rts | QpState::Sqd => (true, true),
            QpState::Err => (self.responder.parting, false),
        };
        if requests && (self.requester_turn || self.ack_hold.is_on()) {
            self.poll_requester(now, max_packets, env, run);
        }
        if run.is_none() && responds {
            self.responder.poll(max_packets, &context!(self), run);
        }
        if run.is_none() && requests && !self.requester_turn {
            self.poll_requester(now, max_packets, env, run);
        }
        if let Some(run) = run {
            self.requester_turn = run.role == Role::Responder;
            match run.role {
                Role::Requester => self.ack_hold.sent(now),
                Role::Responder => self.ack_hold.end(),
            }
            self.pause.handed_out();
        }
    }

    #[inline]
    fn poll_requester<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        max_packets: u32,
        env: &mut E,
        run: &mut Option<Run>,
    ) {
        let ctx = context!(self);
        let result = match self.kind {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => {
                self.requester.poll(now, max_packets, &ctx, env, run)
            }
            QpKind::Ud | QpKind::Gsi => {
                let polled = self.requester.poll_datagram(&ctx, env);
                polled.map(|datagram| *run = datagram)
            }
        };
        self.settle_requester(result, env);
    }

    /// All runs that were handed out have been sent, but for what [`Self::congested`] and
    /// [`Self::payload_failed`] took back: sends of a QP that is not reliable are then complete.
    #[inline]
    pub fn transmitted<E: Env + ?Sized>(&mut self, env: &mut E) {
        if self.kind.is_reliable() || !self.attr.state.sends() {
            return;
        }
        let result = match self.kind.is_datagram() {
            true => self.requester.complete_sent(env),
            false => self.requester.transmitted(env),
        };
        self.settle_requester(result, env);
    }

    //= IBA 10.3.1.6
    /// As [`Self::settle`], after work of the requester: a WQE that failed takes a QP that is not
    /// reliable into SQE only.
    #[inline]
    fn settle_requester<E: Env + ?Sized>(&mut self, result: Result<(), Failure>, env: &mut E) {
        let result = result.map_err(|failure| match (failure, self.kind) {
            (Failure::Completed, QpKind::Uc) => Failure::SendQueue,
            _ => failure,
        });
        self.settle(result, env);
    }

    /// The payload of packet `index` of a run could not be read; the packets before it were sent,
    /// it and those after it not.
    ///
    /// A send WQE completes in its turn with an error and the QP goes into ERR (UC and UD: SQE); a
    /// READ of the peer is refused.
    pub fn payload_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        index: u32,
        error: MemoryError,
        env: &mut E,
    ) {
        if run.epoch != self.epoch {
            return;
        }
        let ctx = context!(self);
        let result = match (run.role, self.kind) {
            (Role::Responder, _) => self.responder.payload_failed(run, index, error, &ctx, env),
            (Role::Requester, QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt) => {
                let failed = self.requester.payload_failed(run, index, env);
                return self.settle_requester(failed, env);
            }
            (Role::Requester, QpKind::Ud | QpKind::Gsi) => {
                self.requester.datagram_failed(run, &ctx, env)
            }
        };
        self.settle(result, env);
    }

    /// The way out was full: packet `index` of a run and those after it were not sent.
    ///
    /// They are handed out again after a short pause, which grows while this goes on. It is no
    /// retry.
    pub fn congested(&mut self, now: Instant, run: &Run, index: u32) {
        if self.put_back(run, index) {
            let until = self.pause.start(now, index != 0);
            self.requester.retry.defer(until, &self.attr);
        }
    }

    /// Packet `index` of a run and those after it were not sent, for a reason that is the driver's
    /// matter. They are handed out again at the next [`Self::poll_transmit`].
    ///
    /// Returns false if the run lost its meaning meanwhile.
    pub fn put_back(&mut self, run: &Run, index: u32) -> bool {
        if run.epoch != self.epoch {
            return false;
        }
        let ctx = context!(self);
        match (run.role, self.kind) {
            (Role::Responder, _) => self.responder.unsend(run, index, &ctx),
            (Role::Requester, QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt) => {
                self.requester.unsend(run, index);
            }
            (Role::Requester, QpKind::Ud | QpKind::Gsi) => {
                self.requester.unsend_datagram(run);
            }
        }
        true
    }
}
