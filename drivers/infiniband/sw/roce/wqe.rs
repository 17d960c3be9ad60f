// SPDX-License-Identifier: GPL-2.0
//! Work queue elements as values. The layout in shared memory is the driver's matter.

use crate::{
    cqe::WcStatus,
    types::{
        Psn,
        QKey,
        Qpn,
        RKey,
        Srqn, //
    },
    wire::Feth, //
};

/// Bytes that an atomic operation or an ATOMIC WRITE works on.
pub const ATOMIC_LENGTH: u32 = 8;

/// What an atomic operation does to the 64 bits that it finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// Replaces them if they are what is expected.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// What takes its place.
        swap: u64,
    },
    /// Adds to them, modulo 2^64.
    FetchAdd(u64),
}

/// What a send WQE asks for. Immediate data is in network order, as the consumer gave it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm([u8; 4]),
    /// SEND with invalidate.
    SendInv(RKey),
    /// RDMA WRITE.
    Write {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// RDMA WRITE with immediate.
    WriteImm {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: RKey,
        /// Immediate data.
        imm: [u8; 4],
    },
    /// RDMA READ.
    Read {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// An atomic operation; what was there before comes back.
    Atomic {
        /// Remote virtual address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: RKey,
        /// What is done.
        op: AtomicOp,
    },
    /// ATOMIC WRITE: 8 bytes at once.
    AtomicWrite {
        /// Remote virtual address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// FLUSH.
    Flush {
        /// Remote virtual address.
        va: u64,
        /// Remote key.
        rkey: RKey,
        /// Bytes that are to be flushed.
        length: u32,
        /// How, and what.
        feth: Feth,
    },
    /// A datagram; the driver keeps the address vector beside the slot.
    Datagram {
        /// Destination QP.
        dest: Qpn,
        /// Queue key that goes into the DETH.
        qkey: QKey,
        /// Immediate data, if any.
        imm: Option<[u8; 4]>,
    },
    /// Something that is done here, without a packet; the driver keeps the operands beside the slot.
    Local(LocalOp),
    /// A WQE that did not pass validation; completes with this status, in its turn.
    Invalid(WcStatus),
}

/// An operation on memory keys of this side (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LocalOp {
    /// A key is made invalid.
    Invalidate,
    /// A fast-registration region becomes valid.
    Register,
    /// A memory window is bound.
    Bind,
}

/// A validated send WQE with the requester's progress on it. The driver fills the first seven
/// fields; [`crate::qp::Qp::post`] sets the rest.
///
/// The scatter-gather list or inline data is kept by the driver under the same slot number.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// The consumer's identifier, returned in the CQE.
    pub wr_id: u64,
    /// The operation and its remote operands.
    pub op: SendOp,
    /// Bytes of the list: payload, or room for the response; at most 2^31.
    pub length: u32,
    /// Report success, not only failure.
    pub signaled: bool,
    /// Set the solicited-event bit of the last packet.
    pub solicited: bool,
    /// Wait for all earlier READs and atomics.
    pub fence: bool,
    /// The shared receive queue at the peer of an extended reliable connection.
    pub srq: Srqn,
    /// First PSN; set when the WQE is first sent.
    pub first_psn: Psn,
    /// The PSNs it takes: request packets, or response packets of a READ. None for a local operation.
    pub packets: u32,
    /// Why it cannot complete with success, once known.
    pub error: Option<WcStatus>,
}

impl SendWqe {
    /// A WQE as the driver hands it in.
    pub const fn new(wr_id: u64, op: SendOp, length: u32) -> Self {
        Self {
            wr_id,
            op,
            length,
            signaled: true,
            solicited: false,
            fence: false,
            srq: Srqn::new(0),
            first_psn: Psn::new(0),
            packets: 0,
            error: None,
        }
    }
}

impl SendOp {
    /// Whether the peer answers with a response of its own, which no other ACK stands for: these
    /// are bounded by `max_rd_atomic`, and a fence waits for them.
    #[inline]
    pub const fn is_rd_atomic(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::Atomic { .. }
            | Self::AtomicWrite { .. }
            | Self::Flush { .. } => true,
            Self::Send
            | Self::SendImm(_)
            | Self::SendInv(_)
            | Self::Write { .. }
            | Self::WriteImm { .. }
            | Self::Datagram { .. }
            | Self::Local(_)
            | Self::Invalid(_) => false,
        }
    }
}

/// A receive WQE: all that the responder needs to know of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvWqe {
    /// The consumer's identifier, returned in the CQE.
    pub wr_id: u64,
    /// Sum of the lengths of its scatter list, in bytes.
    pub length: u64,
}
