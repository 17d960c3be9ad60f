// SPDX-License-Identifier: GPL-2.0
//! Requests of the peer that take one packet, change or settle memory, and have a response of their
//! own: atomic operations, ATOMIC WRITE and FLUSH.
//!
//! They are executed when they arrive, at most once. What came of them is remembered with the READs
//! (see [`super::resources`]), and a repetition gets the same answer.

use crate::{
    env::{
        Counter,
        Env,
        MemoryError, //
    },
    qp::{
        attr::QpAccess,
        Context,
        Failure, //
    },
    responder::{
        nak_code,
        resources::{
            ReadSlot,
            Reply,
            What, //
        },
        Message,
        Responder, //
    },
    wire::{
        AtomicEth,
        NakCode,
        Operation,
        Packet,
        Selectivity, //
    },
    wqe::{
        AtomicOp,
        ATOMIC_LENGTH, //
    },
};
use core::ops::DerefMut;

/// Bits of an address that must be 0.
const MISALIGNED: u64 = ATOMIC_LENGTH as u64 - 1;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// An atomic operation, ATOMIC WRITE or FLUSH in order.
    pub(super) fn atomic_request<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let limit = usize::from(ctx.attr.max_dest_rd_atomic);
        if self.message != Message::Idle || !self.resources.make_room(limit) {
            return self.refuse(NakCode::InvalidRequest, ctx, env);
        }
        let what = match execute(packet, ctx.attr.access, env) {
            Ok(Some(what)) => what,
            // Nothing was done.
            Ok(None) => return Ok(()),
            Err(code) => return self.refuse(code, ctx, env),
        };
        let reply = Reply::to(what, packet.bth.psn, self.msn.next(), false);
        self.resources.push(reply, limit);
        self.accept(packet, 1);
        Ok(())
    }

    //= IBA 9.4.5
    /// A repeated one: the answer is the same.
    pub(super) fn atomic_again<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) {
        let psn = packet.bth.psn;
        let is_atomic = packet.bth.opcode.has_atomic();
        let what = self.resources.result(psn).filter(|what| match what {
            What::Read => false,
            What::Atomic { .. } => is_atomic,
            What::Placed => !is_atomic,
        });
        let Some(what) = what else {
            env.count(Counter::DropSequence);
            return;
        };
        if !self.resources.will_bring(psn, 1) {
            let reply = Reply::to(what, psn, self.msn, true);
            self.resources.repeat(reply, ctx.attr.path_mtu);
        }
    }
}

/// Carries out a request. `None`: the memory is not there yet.
fn execute<E: Env + ?Sized>(
    packet: &Packet,
    access: QpAccess,
    env: &mut E,
) -> Result<Option<What>, NakCode> {
    match (packet.bth.opcode.operation(), packet.atomic, packet.reth) {
        (operation, Some(eth), None) => {
            //= IBA 9.4.5
            if !access.remote_atomic || eth.va & MISALIGNED != 0 {
                return Err(NakCode::InvalidRequest);
            }
            let op = operation_of(operation, &eth);
            let original = done(env.atomic(eth.rkey, eth.va, op))?;
            Ok(original.map(|original| What::Atomic { original }))
        }
        (Operation::AtomicWrite, None, Some(reth)) => {
            //= IBA A19
            let whole = packet.payload_len == ATOMIC_LENGTH && reth.length == ATOMIC_LENGTH;
            if !access.remote_write || !whole || reth.va & MISALIGNED != 0 {
                return Err(NakCode::InvalidRequest);
            }
            let placed = env.atomic_write(reth.rkey, reth.va, 0..ATOMIC_LENGTH);
            Ok(done(placed)?.map(|()| What::Placed))
        }
        (Operation::Flush, None, Some(reth)) => {
            let feth = packet.feth.ok_or(NakCode::InvalidRequest)?;
            let allowed = (access.flush_global || !feth.global)
                && (access.flush_persistent || !feth.persistent);
            let asks = (feth.global || feth.persistent) && !feth.reserved;
            if !allowed || !asks || feth.selectivity == Selectivity::Reserved {
                return Err(NakCode::InvalidRequest);
            }
            let placed = env.flush(reth.rkey, reth.va, reth.length, feth);
            Ok(done(placed)?.map(|()| What::Placed))
        }
        // Whoever calls this has looked at the opcode, and the headers are those that it has.
        (_, _, _) => Err(NakCode::InvalidRequest),
    }
}

/// What came of an access to memory, `None` if it is to be done again later.
fn done<T>(result: Result<T, MemoryError>) -> Result<Option<T>, NakCode> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MemoryError::NotResident) => Ok(None),
        Err(error) => Err(nak_code(error)),
    }
}

/// The operation of a request with an AtomicETH.
fn operation_of(operation: Operation, eth: &AtomicEth) -> AtomicOp {
    if operation == Operation::CompareSwap {
        AtomicOp::CompareSwap {
            compare: eth.compare,
            swap: eth.swap_add,
        }
    } else {
        AtomicOp::FetchAdd(eth.swap_add)
    }
}
