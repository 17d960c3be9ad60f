// SPDX-License-Identifier: GPL-2.0
//! READ requests of the peer.

use crate::{
    env::{
        Counter,
        Env,
        RemoteAccess, //
    },
    qp::{
        Context,
        Failure, //
    },
    requester::MAX_MESSAGE,
    responder::{
        check,
        nak_code,
        resources::{
            ReadSlot,
            Reply,
            What, //
        },
        Answer,
        Message,
        Responder, //
    },
    wire::{
        NakCode,
        Packet,
        Reth, //
    },
};
use core::ops::DerefMut;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// A READ request in order.
    pub(super) fn read_request<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let reth = match packet.reth {
            Some(reth)
                if self.message == Message::Idle
                    && ctx.attr.access.remote_read
                    && reth.length <= MAX_MESSAGE =>
            {
                reth
            }
            Some(_) | None => return self.refuse(NakCode::InvalidRequest, ctx, env),
        };
        if let Err(code) = check(&reth, RemoteAccess::Read, env) {
            return self.refuse(code, ctx, env);
        }
        let limit = usize::from(ctx.attr.max_dest_rd_atomic);
        if !self.resources.make_room(limit) {
            return self.refuse(NakCode::InvalidRequest, ctx, env);
        }
        let packets = ctx.attr.path_mtu.packets(reth.length);
        let mut reply = self.reply_to(packet, packets, &reth, false);
        reply.msn = self.msn.next();
        self.resources.push(reply, limit);
        self.accept(packet, packets);
        Ok(())
    }

    /// A repeated READ request.
    pub(super) fn read_again<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) {
        let psn = packet.bth.psn;
        let Some(reth) = packet.reth.filter(|reth| reth.length <= MAX_MESSAGE) else {
            env.count(Counter::DropSequence);
            return;
        };
        let packets = ctx.attr.path_mtu.packets(reth.length);
        if !self.resources.may_repeat(psn, packets, self.expected) {
            env.count(Counter::DropSequence);
            return;
        }
        if self.resources.will_bring(psn, packets) {
            return;
        }
        let checked = match ctx.attr.access.remote_read {
            true => packet
                .xrceth
                .map_or(Ok(()), |srq| env.select_srq(srq).map_err(nak_code))
                .and_then(|()| check(&reth, RemoteAccess::Read, env)),
            false => Err(NakCode::InvalidRequest),
        };
        match checked {
            Ok(()) => {
                let reply = self.reply_to(packet, packets, &reth, true);
                self.resources.repeat(reply, ctx.attr.path_mtu);
            }
            // It was good once. If the peer still waits for it, it learns of this; if this is a
            // ghost, nothing happens.
            Err(code) => match self.answer {
                Answer::None | Answer::Ack => self.answer = Answer::Refused { psn, code },
                Answer::Sequence { .. } | Answer::NotReady | Answer::Refused { .. } => {}
            },
        }
    }

    fn reply_to(&self, packet: &Packet, packets: u32, reth: &Reth, repeated: bool) -> Reply {
        Reply {
            what: What::Read,
            first: packet.bth.psn,
            packets,
            sent: 0,
            va: reth.va,
            rkey: reth.rkey,
            srq: packet.xrceth.unwrap_or_default(),
            length: reth.length,
            msn: self.msn,
            repeated,
        }
    }
}
