// SPDX-License-Identifier: GPL-2.0
//! Requests that have responses of their own: READs, atomic operations, ATOMIC WRITE and FLUSH.

use crate::{
    qp::Context,
    requester::Requester,
    run::{
        Form,
        PayloadSource, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use core::ops::DerefMut;

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    /// Takes one of the places for requests with responses of their own. Returns whether there was
    /// one.
    #[inline]
    pub(super) fn take_rd_atomic(&mut self, ctx: &Context<'_>) -> bool {
        let free = self.rd_atomics < u32::from(ctx.attr.max_rd_atomic.max(1));
        self.rd_atomics = self.rd_atomics.wrapping_add(u32::from(free));
        free
    }

    /// The request of an atomic operation, ATOMIC WRITE or FLUSH.
    pub(super) fn request(&self, wqe: &SendWqe) -> (Form, PayloadSource) {
        let has_payload = matches!(wqe.op, SendOp::AtomicWrite { .. });
        let length = if has_payload { wqe.length } else { 0 };
        let form = Form::Message {
            op: wqe.op,
            position: 0,
            packets: 1,
            length,
            solicited: wqe.solicited,
            ack_mask: 0,
            ack_end: true,
        };
        let source = match length {
            0 => PayloadSource::None,
            _ => PayloadSource::Wqe {
                slot: self.slot(self.next),
                offset: 0,
            },
        };
        (form, source)
    }

    /// Counts the requests with responses of their own between the oldest unacknowledged PSN and the
    /// cursor.
    pub(super) fn recount_rd_atomics(&mut self) {
        let mut count = 0u32;
        let mut number = self.head;
        while number.wrapping_sub(self.head) <= self.next.wrapping_sub(self.head)
            && number != self.started
        {
            if let Some(wqe) = self.wqe(number).filter(|wqe| wqe.op.is_rd_atomic()) {
                let from = if number == self.head {
                    self.unacked.offset_from(wqe.first_psn)
                } else {
                    0
                };
                let to = if number == self.next {
                    self.position
                } else {
                    wqe.packets
                };
                if from < to {
                    count = count.wrapping_add(self.window.pieces(from, to));
                }
            }
            number = number.wrapping_add(1);
        }
        self.rd_atomics = count;
    }
}
