// SPDX-License-Identifier: GPL-2.0
//! Work requests of kernel users.
//!
//! They come in any context, with the poster's locks held, so all that happens here is that the
//! request is stored; the QP's work item carries it out.

use crate::{
    device::Ferroce,
    posted::copy_list,
    qp::{
        Payload,
        QueuePair, //
    },
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
    qp::state::QpState,
    types::{
        QKey,
        Qpn,
        RKey, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe,
        ATOMIC_LENGTH, //
    }, //
};
use zerocopy::IntoBytes;

/// Takes a send request.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// `ENOMEM` if the queue is full; `EINVAL` before RTS, for a list, inline data or a message that is
/// too long, and for what does not go with the type of the QP; `EOPNOTSUPP` for operations that this driver does not have.
pub(super) fn send(qp: &QueuePair, wr: &SendWr<'_, Ferroce>) -> Result {
    let queue = qp.kernel_sends().ok_or(EINVAL)?;
    if !qp.state().may_post_send() {
        return Err(EINVAL);
    }
    let flags = wr.flags();
    let mut payload = Payload::List;
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
        WrOp::AtomicWrite(remote) => {
            let (va, rkey) = (remote.addr, RKey(remote.rkey));
            (SendOp::AtomicWrite { va, rkey }, None)
        }
        WrOp::LocalInv(key) => {
            payload = Payload::Local(Operands::Invalidate(key));
            (SendOp::Local(LocalOp::Invalidate), None)
        }
        WrOp::RegMr { mr, key, access } => {
            let (iova, length) = mr.mapped();
            payload = Payload::Local(Operands::Register(Register {
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
    if qp.kind().is_datagram() != address.is_some()
        || (op.is_rd_atomic() && !qp.kind().is_reliable())
    {
        return Err(EINVAL);
    }
    if flags & send_flags::INLINE != 0 {
        payload = match op {
            SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::Local(_) => return Err(EINVAL),
            _ => Payload::Stored,
        };
    }
    let length = wr
        .sges()
        .fold(0u64, |sum, sge| sum.saturating_add(u64::from(sge.length)));
    let length = u32::try_from(length)
        .ok()
        .filter(|length| *length <= crate::qp::MAX_MESSAGE)
        .filter(|length| *length == 0 || !matches!(payload, Payload::Local(_)))
        .ok_or(EINVAL)?;
    let length = match op {
        // There may be more room than needed.
        SendOp::Atomic { .. } => length.min(ATOMIC_LENGTH),
        _ => length,
    };
    let mut wqe = SendWqe::new(wr.wr_id(), op, length);
    wqe.signaled = qp.signals_all() || flags & send_flags::SIGNALED != 0;
    wqe.solicited = flags & send_flags::SOLICITED != 0;
    wqe.fence = flags & send_flags::FENCE != 0;
    let caps = qp.caps();
    queue.push((wqe, address, payload), |list| match payload {
        Payload::Stored => {
            let room = list.as_mut_bytes().get_mut(..caps.max_inline_data as usize);
            let bytes = wr.copy_inline(room.ok_or(EINVAL)?)?;
            Ok(bytes.div_ceil(size_of::<uapi::Sge>()))
        }
        Payload::List | Payload::Inline(_) | Payload::Local(_) => {
            copy_list(list, caps.max_send_sge as usize, wr.sges().map(convert))
        }
    })?;
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
/// `ENOMEM` if the queue is full, `EINVAL` in RESET, for a list that is too long, or if the QP takes
/// its receives from a shared queue.
pub(super) fn receive(qp: &QueuePair, wr: &RecvWr<'_>) -> Result {
    let queue = qp.receives();
    if queue.is_shared() || qp.state() == QpState::Reset {
        return Err(EINVAL);
    }
    queue.post(wr.wr_id(), wr.sges().map(convert))?;
    // Looked at after the post: whoever changes the state looks at the queue after that.
    if qp.state() == QpState::Err {
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
