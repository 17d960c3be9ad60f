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
//! bounded amount of work. After [`Qp::handle_packet`] (once per batch), [`Qp::handle_timeout`],
//! [`Qp::post`] and [`Qp::modify`] the caller calls [`Qp::poll_transmit`] until it returns `None`
//! (or its budget is used up), then looks at [`Qp::retired`] and [`Qp::poll_timeout`]; in
//! [`QpState::Err`] and [`QpState::Sqe`] it also calls [`Qp::flush`].

pub mod attr;
pub mod state;

use crate::{
    env::{
        Env,
        MemoryError, //
    },
    run::Run,
    types::{
        Instant,
        Mtu,
        Qpn, //
    },
    wire::Packet,
    wqe::SendWqe, //
};
use attr::QpAttr;
use core::ops::DerefMut;
use state::{
    AttrMask,
    QpKind,
    QpState, //
};

pub use crate::responder::read::ReadSlot;

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

/// A queue pair. `S` holds the send WQEs that are posted and not retired, `R` the READs of the
/// peer.
pub struct Qp<S, R> {
    kind: QpKind,
    qpn: Qpn,
    attr: QpAttr,
    slots: S,
    reads: R,
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
            attr: QpAttr::new(),
            slots,
            reads,
        }
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

    /// Whether the QP is in SQD and WQEs that were started are not yet complete.
    pub fn is_draining(&self) -> bool {
        false
    }

    /// Sets the most payload of a datagram: the MTU of the port. Connected QPs have their own.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        if self.kind.is_datagram() {
            self.attr.path_mtu = mtu;
        }
    }

    /// Replaces the storage for READs of the peer, before `max_dest_rd_atomic` is set. Returns the
    /// old one, to be freed when no lock is held. Pending READs are forgotten: the peer asks again.
    pub fn set_read_slots(&mut self, reads: R) -> R {
        core::mem::replace(&mut self.reads, reads)
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
        let _ = (now, attr, mask, env);
        Err(AttrError::Transition)
    }

    /// The slot that the next [`Self::post`] takes, `None` if all are in flight. The driver puts
    /// what it keeps of a WQE (gather list, inline data, address) under this number first.
    #[inline]
    pub fn next_slot(&self) -> Option<u32> {
        None
    }

    /// Takes a send WQE and returns its slot, the one that [`Self::next_slot`] named.
    ///
    /// # Errors
    ///
    /// [`PostError::State`] or [`PostError::Full`].
    pub fn post(&mut self, wqe: SendWqe) -> Result<u32, PostError> {
        let _ = wqe;
        Err(PostError::State)
    }

    /// The send WQEs retired since RESET, modulo 2^32: complete, with or without a CQE.
    #[inline]
    pub fn retired(&self) -> u32 {
        0
    }

    /// Handles a packet that came in for this QP and passed the ICRC check.
    ///
    /// `env` reaches its payload. ACKs are coalesced: they come out of the next
    /// [`Self::poll_transmit`].
    pub fn handle_packet<E: Env + ?Sized>(&mut self, now: Instant, packet: &Packet, env: &mut E) {
        let _ = (now, packet, env);
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
        let _ = (now, max_packets, env);
        None
    }

    /// The payload of packet `index` of a run could not be read; the packets before it were sent,
    /// it and those after it not.
    ///
    /// A send WQE completes in its turn with an error and the QP goes into ERR (datagrams: SQE); a
    /// READ of the peer is refused.
    pub fn payload_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        index: u32,
        error: MemoryError,
        env: &mut E,
    ) {
        let _ = (run, index, error, env);
    }

    /// The way out was full: packet `index` of a run and those after it were not sent.
    ///
    /// They are handed out again after a short pause, which grows while this goes on. It is no
    /// retry.
    pub fn congested(&mut self, now: Instant, run: &Run, index: u32) {
        let _ = (now, run, index);
    }

    /// The time of [`Self::poll_timeout`] has come, or may have.
    pub fn handle_timeout<E: Env + ?Sized>(&mut self, now: Instant, env: &mut E) {
        let _ = (now, env);
    }

    /// When [`Self::handle_timeout`] is to be called, and [`Self::poll_transmit`] after it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// In ERR, completes posted sends and receives with a flush error, in order; in SQE, sends.
    /// Does nothing in other states.
    ///
    /// At most `max` WQEs a call. Returns whether there may be more. Also to be called when a WQE
    /// was posted in one of these states.
    pub fn flush<E: Env + ?Sized>(&mut self, now: Instant, env: &mut E, max: u32) -> bool {
        let _ = (now, env, max);
        false
    }
}
