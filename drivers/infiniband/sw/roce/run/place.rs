// SPDX-License-Identifier: GPL-2.0
//! Where a packet is in its message, and its opcode for that.

use crate::{
    wire::Opcode,
    wqe::{
        AtomicOp,
        SendOp, //
    }, //
};

/// Place of a packet in its message.
#[derive(Clone, Copy)]
pub(super) enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    #[inline]
    pub(super) const fn of(number: u32, packets: u32) -> Self {
        match (number == 0, number.wrapping_add(1) >= packets) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    #[inline]
    pub(super) const fn ends(self) -> bool {
        match self {
            Self::First | Self::Middle => false,
            Self::Last | Self::Only => true,
        }
    }
}

/// The opcode of a request packet. READs and datagrams have forms of their own; they read as SEND.
#[inline]
pub(super) const fn request_opcode(op: SendOp, place: Place) -> Opcode {
    match op {
        SendOp::Write { .. } => match place {
            Place::First => Opcode::RcWriteFirst,
            Place::Middle => Opcode::RcWriteMiddle,
            Place::Last => Opcode::RcWriteLast,
            Place::Only => Opcode::RcWriteOnly,
        },
        SendOp::WriteImm { .. } => match place {
            Place::First => Opcode::RcWriteFirst,
            Place::Middle => Opcode::RcWriteMiddle,
            Place::Last => Opcode::RcWriteLastImm,
            Place::Only => Opcode::RcWriteOnlyImm,
        },
        SendOp::SendImm(_) => match place {
            Place::First => Opcode::RcSendFirst,
            Place::Middle => Opcode::RcSendMiddle,
            Place::Last => Opcode::RcSendLastImm,
            Place::Only => Opcode::RcSendOnlyImm,
        },
        SendOp::SendInv(_) => match place {
            Place::First => Opcode::RcSendFirst,
            Place::Middle => Opcode::RcSendMiddle,
            Place::Last => Opcode::RcSendLastInv,
            Place::Only => Opcode::RcSendOnlyInv,
        },
        SendOp::Atomic { op, .. } => match op {
            AtomicOp::CompareSwap { .. } => Opcode::RcCompareSwap,
            AtomicOp::FetchAdd(_) => Opcode::RcFetchAdd,
        },
        SendOp::AtomicWrite { .. } => Opcode::RcAtomicWrite,
        SendOp::Flush { .. } => Opcode::RcFlush,
        SendOp::Send
        | SendOp::Read { .. }
        | SendOp::Datagram { .. }
        | SendOp::Local(_)
        | SendOp::Invalid(_) => match place {
            Place::First => Opcode::RcSendFirst,
            Place::Middle => Opcode::RcSendMiddle,
            Place::Last => Opcode::RcSendLast,
            Place::Only => Opcode::RcSendOnly,
        },
    }
}
