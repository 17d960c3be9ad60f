// SPDX-License-Identifier: GPL-2.0
//! Work requests of kernel users.
//!
//! They come in any context, with the poster's locks held, so all that happens here is that the
//! request is stored; the QP's work item carries it out.

use crate::{
    device::Ferroce,
    qp::QueuePair,
    receives::ReceiveQueue,
    region::{
        Operands,
        Register, //
    },
    uapi, //
};
use kernel::prelude::*;
use rdma::verbs::{
    send_flags,
    RecvWr,
    Remote,
    SendOp as WrOp,
    SendWr,
    Sge, //
};
use roce::{
    types::{
        QKey,
        Qpn,
        RKey, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe, //
    }, //
};

/// Takes a send request.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// `ENOMEM` if the queue is full; `EINVAL` for a list or a message that is too long, and for what
/// does not go with the type of the QP; `EOPNOTSUPP` for operations that this driver does not have.
pub(super) fn send(qp: &QueuePair, wr: &SendWr<'_, Ferroce>) -> Result {
    let queue = qp.kernel_sends().ok_or(EINVAL)?;
    let flags = wr.flags();
    if flags & send_flags::INLINE != 0 {
        // None was promised when the QP was made.
        return Err(EINVAL);
    }
    let mut operands = None;
    let (op, address) = match wr.op()? {
        WrOp::Send => (SendOp::Send, None),
        WrOp::SendImm(imm) => (SendOp::SendImm(imm), None),
        WrOp::SendInv(rkey) => (SendOp::SendInv(RKey(rkey)), None),
        WrOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            pkey_index,
            imm,
        } => {
            if pkey_index != 0 {
                return Err(EINVAL);
            }
            let op = SendOp::Datagram {
                dest: Qpn::new(remote_qpn),
                qkey: QKey(remote_qkey),
                imm,
            };
            (op, Some(ah.drv().clone()))
        }
        WrOp::RdmaWrite(remote, imm) => {
            let (va, rkey) = (remote.addr, RKey(remote.rkey));
            let op = match imm {
                None => SendOp::Write { va, rkey },
                Some(imm) => SendOp::WriteImm { va, rkey, imm },
            };
            (op, None)
        }
        WrOp::RdmaRead(remote) => {
            let (va, rkey) = (remote.addr, RKey(remote.rkey));
            (SendOp::Read { va, rkey }, None)
        }
        WrOp::CompareSwap {
            remote,
            compare,
            swap,
        } => (
            atomic(remote, AtomicOp::CompareSwap { compare, swap }),
            None,
        ),
        WrOp::FetchAdd { remote, add } => (atomic(remote, AtomicOp::FetchAdd(add)), None),
        WrOp::LocalInv(key) => {
            operands = Some(Operands::Invalidate(key));
            (SendOp::Local(LocalOp::Invalidate), None)
        }
        WrOp::RegMr { mr, key, access } => {
            let (iova, length) = mr.mapped();
            operands = Some(Operands::Register(Register {
                region: mr.drv().key(),
                key,
                access,
                iova,
                length,
            }));
            (SendOp::Local(LocalOp::Register), None)
        }
        WrOp::Other(_) => {
            return Err(EOPNOTSUPP);
        }
    };
    if qp.kind().is_datagram() != address.is_some() {
        return Err(EINVAL);
    }
    let length = wr
        .sges()
        .fold(0u64, |sum, sge| sum.saturating_add(u64::from(sge.length)));
    let length = u32::try_from(length)
        .ok()
        .filter(|length| *length <= crate::qp::MAX_MESSAGE)
        .filter(|length| *length == 0 || operands.is_none())
        .ok_or(EINVAL)?;
    let mut wqe = SendWqe::new(wr.wr_id(), op, length);
    wqe.signaled = qp.signals_all() || flags & send_flags::SIGNALED != 0;
    wqe.solicited = flags & send_flags::SOLICITED != 0;
    wqe.fence = flags & send_flags::FENCE != 0;
    queue.push((wqe, address, operands), wr.sges().map(convert))?;
    qp.kick();
    Ok(())
}

/// Takes a receive request.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// `ENOMEM` if the queue is full, `EINVAL` for a list that is too long, or if the QP takes its
/// receives from a shared queue.
pub(super) fn receive(qp: &QueuePair, wr: &RecvWr<'_>) -> Result {
    let queue = qp.receives();
    if queue.is_shared() {
        return Err(EINVAL);
    }
    queue.post(wr.wr_id(), wr.sges().map(convert))?;
    if qp.is_flushing() {
        qp.kick();
    }
    Ok(())
}

/// Takes a receive request for a shared queue.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// `ENOMEM` if the queue is full, `EINVAL` for a list that is too long.
pub(super) fn receive_shared(queue: &ReceiveQueue, wr: &RecvWr<'_>) -> Result {
    queue.post(wr.wr_id(), wr.sges().map(convert))
}

fn atomic(remote: Remote, op: AtomicOp) -> SendOp {
    SendOp::Atomic {
        va: remote.addr,
        rkey: RKey(remote.rkey),
        op,
    }
}

fn convert(sge: Sge) -> uapi::Sge {
    uapi::Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    }
}
