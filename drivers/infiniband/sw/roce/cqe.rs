// SPDX-License-Identifier: GPL-2.0
//! Completion queue elements as values.

use crate::types::{
    Qpn,
    RKey, //
};

/// Completion status; the values are those of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// The message did not fit the local buffers.
    LocLenErr = 1,
    /// The QP could not carry out the operation.
    LocQpOpErr = 2,
    /// A scatter-gather entry names no memory that may be used so.
    LocProtErr = 4,
    /// Flushed: the QP was or went into the error state first.
    WrFlushErr = 5,
    /// A memory management operation failed: binding, registering or invalidating, the latter also
    /// at the peer's wish.
    MwBindErr = 6,
    /// A bad response packet.
    BadRespErr = 7,
    /// Local access error (RDMA WRITE with immediate).
    LocAccessErr = 8,
    /// The responder found the request invalid.
    RemInvReqErr = 9,
    /// The responder refused access to its memory.
    RemAccessErr = 10,
    /// The responder could not complete the operation.
    RemOpErr = 11,
    /// No answer after all retries.
    RetryExcErr = 12,
    /// The responder had no receive WQE after all RNR retries.
    RnrRetryExcErr = 13,
}

/// What a completed send WQE was; the values are those of `enum ib_wc_opcode`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum SendCqeOp {
    /// SEND in any form.
    Send = 0,
    /// RDMA WRITE in any form.
    Write = 1,
    /// RDMA READ.
    Read = 2,
    /// Compare and swap.
    CompareSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Binding of a memory window.
    Bind = 5,
    /// Invalidation of a key.
    Invalidate = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// Fast registration (`IB_WC_REG_MR`).
    Register = 10,
}

/// Completion of a send WQE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendCqe {
    /// From the WQE.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What it was.
    pub op: SendCqeOp,
    /// Bytes moved (READ and atomics: bytes received).
    pub byte_len: u32,
}

/// What came with a received message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecvData {
    /// Nothing but the payload.
    None,
    /// Immediate data, in network order.
    Imm([u8; 4]),
    /// A key of ours that the peer invalidated.
    Invalidated(RKey),
}

/// Completion of a receive WQE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvCqe {
    /// From the WQE.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// RDMA WRITE with immediate (the payload is elsewhere), not a SEND.
    pub write_imm: bool,
    /// Bytes of the message; of a datagram with the 40 bytes of GRH.
    pub byte_len: u32,
    /// Immediate or invalidated key.
    pub data: RecvData,
    /// Source QP of a datagram, else the connected peer.
    pub src_qp: Qpn,
    /// The peer asked for a solicited event, or the status is an error.
    pub solicited: bool,
}
