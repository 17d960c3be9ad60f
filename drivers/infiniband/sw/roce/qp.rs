// SPDX-License-Identifier: GPL-2.0
//! The queue pair: states and attributes here, the work in [`crate::requester`],
//! [`crate::completer`], [`crate::responder`] and [`crate::datagram`].
//!
//! ```text
//!   post, retired                                   take_receive, complete_*, write_*, event
//!   -------------> +-----------+ <-- timers         (through Env)
//!                  | Requester | --- requests ---.      ^
//!                  |-----------|                 v      |
//!  handle_packet   | Completer |           poll_transmit --> Run
//!   -------------> |-----------|                 ^
//!                  | Responder | --- replies ----'
//!                  +-----------+
//! ```
//!
//! All methods want exclusive access, which is the caller's lock. None blocks, and each does a
//! bounded amount of work. After [`Qp::handle_packet`] (once per batch; what belongs together goes in by
//! [`Qp::handle_middles`]), [`Qp::handle_timeout`], [`Qp::post`] and [`Qp::modify`] the caller calls [`Qp::poll_transmit`] until it returns `None`
//! (or its budget is used up), [`Qp::transmitted`] once those packets are sent, then looks at [`Qp::retired`] and [`Qp::poll_timeout`]; in
//! [`QpState::Err`] and [`QpState::Sqe`] it also calls [`Qp::flush`].

/// Borrows the context beside the halves.
macro_rules! context {
    ($qp:ident) => {
        Context {
            kind: $qp.kind,
            qpn: $qp.qpn,
            attr: &$qp.attr,
            epoch: $qp.epoch,
        }
    };
}

mod ack_hold;
pub mod attr;
mod last_wqe;
mod pause;
pub mod state;
#[cfg(test)]
mod tests;
mod transmit;

use crate::{
    env::{
        Counter,
        CqOverflow,
        Env,
        QpEvent, //
    },
    requester::{
        earlier,
        Requester, //
    },
    responder::Responder,
    types::{
        Instant,
        Mtu,
        PKey,
        Psn,
        Qpn, //
    },
    wire::Packet,
    wqe::SendWqe, //
};
use ack_hold::AckHold;
use attr::QpAttr;
use core::ops::DerefMut;
use last_wqe::LastWqe;
use pause::Pause;
use state::{
    AttrMask,
    QpKind,
    QpState, //
};

pub use crate::responder::resources::ReadSlot;

/// Why [`Qp::modify`] changed nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttrError {
    /// There is no such transition.
    Transition,
    /// The QP is not in the state that `cur_state` names.
    CurrentState,
    /// These attributes are required and were not given.
    Missing(AttrMask),
    /// These attributes may not be given.
    NotAllowed(AttrMask),
    /// These attributes are out of range.
    Range(AttrMask),
}

/// Why [`Qp::post`] took nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PostError {
    /// The QP takes no sends in its state: RESET, INIT or RTR.
    State,
    /// All slots are in flight.
    Full,
}

/// Why a QP leaves its state by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// Into ERR; a completion has told.
    Completed,
    /// Into ERR, with this event.
    Event(QpEvent),
    /// Into SQE; a completion has told.
    SendQueue,
}

impl From<CqOverflow> for Failure {
    fn from(_: CqOverflow) -> Self {
        Self::Event(QpEvent::Fatal)
    }
}

/// What the halves of a QP need to know of it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) kind: QpKind,
    pub(crate) qpn: Qpn,
    pub(crate) attr: &'a QpAttr,
    pub(crate) epoch: u32,
}

impl Context<'_> {
    /// QP of the connected peer.
    #[inline]
    pub(crate) fn dest_qp(&self) -> Qpn {
        Qpn::new(self.attr.dest_qpn)
    }

    /// Whether no new send WQE may be started.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.attr.state == QpState::Sqd
    }
}

/// A queue pair. `S` holds the send WQEs that are posted and not retired, `R` the READs of the
/// peer.
pub struct Qp<S, R> {
    kind: QpKind,
    qpn: Qpn,
    attr: QpAttr,
    /// Changes whenever runs that were handed out lose their meaning.
    epoch: u32,
    requester: Requester<S>,
    responder: Responder<R>,
    pause: Pause,
    ack_hold: AckHold,
    /// The next run is the requester's if it has one: the responder had the last one.
    requester_turn: bool,
    /// The event that communication is established is out.
    established: bool,
    /// An event is wanted when the send queue is drained.
    notify_drained: bool,
    last_wqe: LastWqe,
}

impl<S, R> Qp<S, R>
where
    S: DerefMut<Target = [SendWqe]>,
    R: DerefMut<Target = [ReadSlot]>,
{
    /// A QP in RESET. The length of `slots` is a power of two (else only the next smaller power of
    /// two is used); that of `reads` bounds `max_dest_rd_atomic`.
    pub fn new(kind: QpKind, qpn: Qpn, slots: S, reads: R) -> Self {
        Self {
            kind,
            qpn,
            attr: initial_attr(kind, Mtu::M4096),
            epoch: 0,
            requester: Requester::new(slots),
            responder: Responder::new(reads),
            pause: Pause::default(),
            ack_hold: AckHold::default(),
            requester_turn: false,
            established: false,
            notify_drained: false,
            last_wqe: LastWqe::new(kind == QpKind::XrcTgt),
        }
    }

    /// Says of a new QP that its receive WQEs come from a queue that other QPs take from as well.
    /// In ERR, those that it has not taken are not flushed; [`QpEvent::LastWqe`] tells instead.
    pub fn share_receives(&mut self) {
        self.last_wqe.share();
    }

    /// Transport service.
    #[inline]
    pub fn kind(&self) -> QpKind {
        self.kind
    }

    /// Number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// State.
    #[inline]
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// The attributes as they were set.
    #[inline]
    pub fn attr(&self) -> QpAttr {
        self.attr
    }

    /// Payload bytes of a full packet.
    #[inline]
    pub fn path_mtu(&self) -> Mtu {
        self.attr.path_mtu
    }

    /// Whether the QP is in SQD and WQEs that were started are not yet complete.
    pub fn is_draining(&self) -> bool {
        self.attr.state == QpState::Sqd && !self.requester.is_drained()
    }

    /// Whether requests are in flight that the peer has yet to answer: the answer is the next occasion
    /// to send.
    #[inline]
    pub fn is_in_flight(&self) -> bool {
        self.kind.is_reliable() && self.requester.cursor() != self.requester.unacked
    }

    /// Whether a send WQE is posted of which not all packets have been handed out.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.requester.next != self.requester.tail
    }

    /// Whether nothing but an ACK is to be said to the peer, and now.
    #[inline]
    pub fn owes_ack(&self) -> bool {
        self.responder.owes_ack_alone() && !self.ack_hold.is_on()
    }

    /// An ACK that waits for an answer of the program's waits no longer: to be called, and followed by
    /// [`Self::poll_transmit`], before the QP goes where it sends nothing any more. Else the peer would
    /// never hear that its message has arrived.
    pub fn release_ack(&mut self) {
        self.ack_hold.end();
    }

    /// Sets the most payload of a datagram: the MTU of the port. Connected QPs have their own.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        if self.kind.is_datagram() {
            self.attr.path_mtu = mtu;
        }
    }

    /// How many send WQEs there are slots for.
    pub fn send_slots(&self) -> u32 {
        self.requester.capacity()
    }

    /// Replaces the storage for send WQEs by larger storage, to which [`Self::new`] applies, and moves
    /// what is posted. The slot of a WQE is its number since RESET modulo that of slots: where the driver keeps
    /// something beside slots, it has to move that as well. Returns the old storage, or the new one
    /// if that is not larger.
    pub fn set_send_slots(&mut self, slots: S) -> S {
        self.requester.set_slots(slots)
    }

    /// Replaces the storage for READs of the peer, before `max_dest_rd_atomic` is set. Returns the
    /// old one, to be freed when no lock is held. Pending READs are forgotten: the peer asks again.
    pub fn set_read_slots(&mut self, reads: R) -> R {
        self.responder.set_read_slots(reads)
    }

    /// Changes state and attributes, or nothing.
    ///
    /// Without [`AttrMask::STATE`] the QP stays in its state; the same table tells what may change
    /// there. [`QpState::Reset`] drops all WQEs without completions, and [`Self::retired`] starts
    /// from 0 again. After [`QpState::Err`], call [`Self::flush`].
    ///
    /// # Errors
    ///
    /// Says what is wrong with the request.
    pub fn modify<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut E,
    ) -> Result<(), AttrError> {
        let _ = now;
        let from = self.attr.state;
        let to = if mask.contains(AttrMask::STATE) {
            attr.state
        } else {
            from
        };
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(AttrError::CurrentState);
        }
        let rule = state::transition(self.kind, from, to).ok_or(AttrError::Transition)?;
        let given = mask.without(AttrMask::STATE);
        let missing = rule.required.without(given);
        if !missing.is_empty() {
            return Err(AttrError::Missing(missing));
        }
        let extra = given.without(rule.required | rule.allowed);
        if !extra.is_empty() {
            return Err(AttrError::NotAllowed(extra));
        }
        let bad = attr.out_of_range(given, self.responder.read_slots());
        if !bad.is_empty() {
            return Err(AttrError::Range(bad));
        }
        self.attr.merge(attr, given);
        self.enter(from, to, given, env);
        Ok(())
    }

    /// Goes from one state to another at the consumer's wish.
    fn enter<E: Env + ?Sized>(&mut self, from: QpState, to: QpState, given: AttrMask, env: &mut E) {
        self.attr.state = to;
        match to {
            QpState::Reset => {
                self.attr = initial_attr(self.kind, self.attr.path_mtu);
                self.epoch = self.epoch.wrapping_add(1);
                self.requester.reset();
                self.responder.start(Psn::default());
                self.responder.receive = None;
                self.pause = Pause::default();
                self.ack_hold = AckHold::default();
                self.requester_turn = false;
                self.established = false;
                self.notify_drained = false;
                self.last_wqe.reset();
            }
            QpState::Init | QpState::Sqe => {}
            QpState::Rtr => self.responder.start(Psn::new(self.attr.rq_psn)),
            QpState::Rts => {
                self.notify_drained = false;
                if from == QpState::Rtr {
                    self.requester.start(Psn::new(self.attr.sq_psn));
                    self.requester.retry.refill(&self.attr);
                }
            }
            QpState::Sqd => {
                if from != to {
                    self.notify_drained = given.contains(AttrMask::EN_SQD_ASYNC_NOTIFY)
                        && self.attr.en_sqd_async_notify;
                }
                self.report_drained(env);
            }
            QpState::Err => {
                self.epoch = self.epoch.wrapping_add(1);
                self.requester.stop();
                self.ack_hold.end();
                self.responder.stop();
            }
        }
    }

    /// Leaves the state because of a failure.
    fn fail<E: Env + ?Sized>(&mut self, failure: Failure, env: &mut E) {
        let event = match failure {
            Failure::SendQueue => {
                self.attr.state = QpState::Sqe;
                return;
            }
            Failure::Completed => None,
            Failure::Event(event) => Some(event),
        };
        self.attr.state = QpState::Err;
        self.epoch = self.epoch.wrapping_add(1);
        self.requester.stop();
        self.ack_hold.end();
        if !self.responder.parting {
            self.responder.stop();
        }
        if let Some(event) = event {
            env.event(event);
        }
    }

    fn settle<E: Env + ?Sized>(&mut self, result: Result<(), Failure>, env: &mut E) {
        if let Err(failure) = result {
            self.fail(failure, env);
        }
        if self.notify_drained {
            self.report_drained(env);
        }
    }

    //= IBA 10.3.1.5
    fn report_drained<E: Env + ?Sized>(&mut self, env: &mut E) {
        let drained = self.attr.state == QpState::Sqd && self.requester.is_drained();
        if self.notify_drained && drained {
            self.notify_drained = false;
            env.event(QpEvent::SqDrained);
        }
    }

    /// The slot that the next [`Self::post`] takes, `None` if all are in flight. The driver puts
    /// what it keeps of a WQE (gather list, inline data, address) under this number first.
    #[inline]
    pub fn next_slot(&self) -> Option<u32> {
        self.requester.next_slot()
    }

    /// Takes a send WQE and returns its slot, the one that [`Self::next_slot`] named.
    ///
    /// # Errors
    ///
    /// [`PostError::State`] or [`PostError::Full`].
    #[inline]
    pub fn post(&mut self, wqe: SendWqe) -> Result<u32, PostError> {
        if !self.attr.state.may_post_send() {
            return Err(PostError::State);
        }
        self.requester.post(wqe).ok_or(PostError::Full)
    }

    /// The send WQEs retired since RESET, modulo 2^32: complete, with or without a CQE.
    #[inline]
    pub fn retired(&self) -> u32 {
        self.requester.head
    }

    /// Handles a packet that came in for this QP and passed the ICRC check.
    ///
    /// `env` reaches its payload. ACKs are coalesced: they come out of the next
    /// [`Self::poll_transmit`].
    #[inline]
    pub fn handle_packet<E: Env + ?Sized>(&mut self, now: Instant, packet: &Packet, env: &mut E) {
        if let Some(reason) = self.refusal(packet) {
            env.count(reason);
            return;
        }
        let ctx = context!(self);
        let result = if packet.bth.opcode.is_response() {
            self.requester.response(now, packet, &ctx, env)
        } else {
            if self.attr.state == QpState::Rtr && !self.established {
                self.established = true;
                env.event(QpEvent::CommEst);
            }
            match self.kind {
                QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => {
                    let expected = self.responder.expected();
                    let result = self.responder.request(packet, &ctx, env);
                    let is_message =
                        packet.bth.opcode.ends_message() && self.responder.expected() != expected;
                    let owes_ack = self.responder.owes_ack_alone();
                    self.ack_hold.came(now, is_message, owes_ack);
                    result
                }
                QpKind::Uc => self.responder.unreliable(packet, &ctx, env),
                QpKind::Ud | QpKind::Gsi => self.responder.datagram(packet, &ctx, env),
            }
        };
        self.settle(result, env);
    }

    /// Whether `packet` is in the middle of a message, and the next one of it to come in: then those
    /// behind it may be handled with it, see [`Self::handle_middles`].
    #[inline]
    pub fn awaits_middle(&self, packet: &Packet) -> bool {
        let bth = &packet.bth;
        let next = match bth.opcode.is_response() {
            true => self.requester.unacked,
            false => self.responder.expected(),
        };
        self.kind == QpKind::Rc && bth.opcode.is_middle() && bth.psn == next
    }

    /// Handles `count` packets at once that came in one behind the other: all of them from the middle of
    /// one message, with consecutive PSNs. `packet` is the first of them, and asks for an ACK if any of
    /// them does. `env` reaches their payloads as if they were one.
    ///
    /// Returns false if they have to be handled one by one. Then nothing has changed, but that some of
    /// the payload may already be where it belongs.
    #[inline]
    pub fn handle_middles<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        packet: &Packet,
        count: u32,
        env: &mut E,
    ) -> bool {
        if !self.awaits_middle(packet) || self.refusal(packet).is_some() {
            return false;
        }
        let ctx = context!(self);
        if !packet.bth.opcode.is_response() {
            return self.responder.middles(packet, count, &ctx, env);
        }
        if !self.requester.middles(packet, count, &ctx, env) {
            return false;
        }
        let result = self.requester.after_response(now, count, &ctx, env);
        self.settle(result, env);
        true
    }

    /// Why a packet is none for this QP now.
    #[inline]
    fn refusal(&self, packet: &Packet) -> Option<Counter> {
        let opcode = packet.bth.opcode;
        let takes = if opcode.is_response() {
            self.attr.state.sends()
        } else {
            self.attr.state.receives()
        };
        //= IBA 9.6.1
        //= IBA A14.3
        // Of an extended connection, one end has no responder and the other no requester.
        let strays = match self.kind {
            QpKind::XrcIni => !opcode.is_response(),
            QpKind::XrcTgt => opcode.is_response(),
            QpKind::Rc | QpKind::Uc | QpKind::Ud | QpKind::Gsi => false,
        };
        if opcode.transport() != self.kind.transport() || strays {
            Some(Counter::DropTransport)
        } else if !takes {
            Some(Counter::DropState)
        } else if !PKey::DEFAULT.matches(packet.bth.pkey) {
            Some(Counter::DropPKey)
        } else {
            None
        }
    }

    /// The time of [`Self::poll_timeout`] has come, or may have.
    pub fn handle_timeout<E: Env + ?Sized>(&mut self, now: Instant, env: &mut E) {
        // A pause whose time has come ends here, if there is nothing left to be sent after it.
        let _ = self.pause.is_on(now);
        self.ack_hold.expire(now);
        let ctx = context!(self);
        let result = self.requester.handle_timeout(now, &ctx, env);
        self.settle(result, env);
    }

    /// When [`Self::handle_timeout`] is to be called, and [`Self::poll_transmit`] after it.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = earlier(self.pause.until(), self.requester.retry.deadline());
        earlier(next, self.ack_hold.until())
    }

    /// In ERR, completes posted sends and receives with a flush error, in order; in SQE, sends.
    /// Does nothing in other states.
    ///
    /// At most `max` WQEs a call. Returns whether there may be more. Also to be called when a WQE
    /// was posted in one of these states.
    pub fn flush<E: Env + ?Sized>(&mut self, now: Instant, env: &mut E, max: u32) -> bool {
        let _ = now;
        let receives = match self.attr.state {
            QpState::Err => true,
            QpState::Sqe => false,
            QpState::Reset | QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd => {
                return false;
            }
        };
        if !self.kind.is_reliable() {
            // What was handed out is gone.
            let _ = self.requester.complete_sent(env);
        }
        let flushed = self.requester.flush(env, max);
        if !self.requester.is_empty() {
            return true;
        }
        if receives && self.last_wqe.is_shared() {
            self.responder.flush_current(&context!(self), env);
            self.last_wqe.report(env);
            return false;
        }
        let left = max.saturating_sub(flushed);
        receives && self.responder.flush(&context!(self), env, left)
    }
}

/// The attributes of a new QP. A datagram QP has the MTU of its port.
fn initial_attr(kind: QpKind, port_mtu: Mtu) -> QpAttr {
    let mut attr = QpAttr::new();
    if kind.is_datagram() {
        attr.path_mtu = port_mtu;
    }
    attr
}
