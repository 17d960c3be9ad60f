// SPDX-License-Identifier: GPL-2.0
//! Whether an ACK waits a little for the message that answers the one it is for.
//!
//! Two programs that talk in turns answer each message with one of their own. If the last few were
//! answered soon, the ACK of the next waits for the answer, and both travel as one train:
//!
//! ```text
//!   message ->   <- ACK, <- answer      message ->   <- answer + ACK
//!                                       (nothing to send within HOLD_NS: the ACK alone)
//! ```
//!
//! Whatever else comes in sends it off at once. Each time that it has waited in vain, more messages must
//! be answered in a row before another ACK waits.

use crate::types::Instant;

/// An ACK waits no longer than this, in nanoseconds: half of the shortest ACK timeout.
const HOLD_NS: u64 = 500_000;

/// So many messages in a row must have been answered within that time,
const ANSWERED: u32 = 8;

/// and up to so many times twice as many.
const MAX_LEVEL: u32 = 5;

/// What is known of how messages are answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckHold {
    /// When the last message came, if nothing was sent since.
    came: Option<Instant>,
    /// So many were answered in a row.
    answered: u32,
    level: u32,
    /// An ACK waits until then.
    until: Option<Instant>,
}

impl AckHold {
    /// Whether an ACK waits.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// How long.
    #[inline]
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// A request came in. `is_message`: the end of a message, and in order; `owes_ack`: nothing but an ACK
    /// is to be said.
    #[inline]
    pub(super) fn came(&mut self, now: Instant, is_message: bool, owes_ack: bool) {
        if self.until.take().is_some() {
            self.was_in_vain();
        }
        if !is_message {
            return;
        }
        if self.came.replace(now).is_some() {
            self.answered = 0;
        }
        if owes_ack && self.answered >= ANSWERED.wrapping_shl(self.level) {
            self.until = Some(now.after(HOLD_NS));
        }
    }

    /// A request of our own goes out: an ACK that waits goes with it.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant) {
        self.until = None;
        if let Some(came) = self.came.take() {
            self.answered = match now < came.after(HOLD_NS) {
                true => self.answered.saturating_add(1),
                false => 0,
            };
        }
    }

    /// The ACK goes out alone.
    #[inline]
    pub(super) fn end(&mut self) {
        self.until = None;
    }

    /// Ends a wait whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
            self.was_in_vain();
        }
    }

    fn was_in_vain(&mut self) {
        self.answered = 0;
        self.level = self.level.wrapping_add(1).min(MAX_LEVEL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{
            ack,
            packet,
            Node,
            FIRST, //
        },
        wire::Opcode,
        wqe::SendOp, //
    };
    use std::{
        vec,
        vec::Vec, //
    };

    const ACK: Opcode = Opcode::RcAcknowledge;
    const SEND: Opcode = Opcode::RcSendOnly;

    /// A message comes; returns what is said to that at once.
    fn comes(node: &mut Node, number: u32) -> Vec<(Opcode, u32, u32)> {
        node.world.receive(number.into(), 8);
        node.handle(packet(SEND, FIRST + number, 8));
        node.ladder()
    }

    /// It is answered; returns what goes out.
    fn answer(node: &mut Node, number: u32) -> Vec<(Opcode, u32, u32)> {
        node.later(1000);
        node.post(number.into(), SendOp::Send, 8);
        let sent = node.ladder();
        node.handle(ack(FIRST + number));
        sent
    }

    /// Messages are answered, until the ACK of the next one, of which the number is returned, would wait.
    fn talk(node: &mut Node, from: u32, count: u32) -> u32 {
        for number in from..from + count {
            assert_eq!(comes(node, number), vec![(ACK, FIRST + number, 0)]);
            assert_eq!(answer(node, number), vec![(SEND, FIRST + number, 8)]);
        }
        from + count
    }

    #[test]
    fn an_ack_goes_with_the_answer() {
        let mut node = Node::rc();
        let next = talk(&mut node, 0, ANSWERED);
        for number in next..next + 3 {
            assert_eq!(comes(&mut node, number), vec![]);
            assert_eq!(node.world.recvs.len(), number as usize + 1);
            assert!(node.qp.is_idle() && !node.qp.owes_ack());
            let psn = FIRST + number;
            assert_eq!(
                answer(&mut node, number),
                vec![(SEND, psn, 8), (ACK, psn, 0)]
            );
        }
    }

    #[test]
    fn it_waits_no_longer_than_that_and_then_less_often() {
        let mut node = Node::rc();
        let next = talk(&mut node, 0, ANSWERED);
        assert_eq!(comes(&mut node, next), vec![]);
        assert_eq!(node.timeout(), HOLD_NS);
        assert_eq!(node.ladder(), vec![(ACK, FIRST + next, 0)]);
        assert_eq!(answer(&mut node, next), vec![(SEND, FIRST + next, 8)]);
        let next = talk(&mut node, next + 1, 2 * ANSWERED);
        assert_eq!(comes(&mut node, next), vec![]);
    }

    #[test]
    fn whatever_comes_sends_it_off() {
        // A duplicate, the next message, one from beyond a gap.
        for (ahead, said) in [(-1i32, 0), (0, 0), (1, 1), (5, 1)] {
            let mut node = Node::rc();
            let next = talk(&mut node, 0, ANSWERED);
            assert_eq!(comes(&mut node, next), vec![]);
            node.world.receive(100, 8);
            let psn = (FIRST + next).wrapping_add_signed(ahead);
            node.handle(packet(SEND, psn, 8));
            assert_eq!(node.ladder(), vec![(ACK, FIRST + next + said, 0)]);
        }
    }

    #[test]
    fn two_messages_for_one_answer_are_not_talk() {
        let mut node = Node::rc();
        for number in 0..3 * ANSWERED {
            for part in [2 * number, 2 * number + 1] {
                assert_eq!(comes(&mut node, part), vec![(ACK, FIRST + part, 0)]);
            }
            answer(&mut node, number);
        }
    }

    #[test]
    fn nor_are_late_answers() {
        let mut node = Node::rc();
        for number in 0..3 * ANSWERED {
            assert_eq!(comes(&mut node, number), vec![(ACK, FIRST + number, 0)]);
            node.later(HOLD_NS);
            answer(&mut node, number);
        }
    }

    #[test]
    fn whoever_leaves_says_it_first() {
        let mut node = Node::rc();
        let next = talk(&mut node, 0, ANSWERED);
        assert_eq!(comes(&mut node, next), vec![]);
        node.qp.release_ack();
        assert_eq!(node.ladder(), vec![(ACK, FIRST + next, 0)]);
        assert_eq!(answer(&mut node, next), vec![(SEND, FIRST + next, 8)]);
        assert_eq!(comes(&mut node, next + 1), vec![]);
        let attr = crate::testing::attributes();
        node.go(&attr, crate::qp::QpState::Err);
        assert_eq!(node.ladder(), vec![]);
        assert_eq!(node.qp.poll_timeout(), None);
    }
}
