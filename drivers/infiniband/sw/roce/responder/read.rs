// SPDX-License-Identifier: GPL-2.0
//! READ requests of the peer that are being answered, or were.

use crate::types::{
    Msn,
    Psn,
    RKey, //
};

/// One READ request of the peer: the PSNs it took, and the reply that is being streamed.
///
/// Storage for [`crate::qp::Qp`]: make as many [`ReadSlot::default`]s as the QP's
/// `max_dest_rd_atomic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSlot {
    /// First PSN of the request as it first came.
    pub(super) first: Psn,
    /// The PSNs that it takes.
    pub(super) packets: u32,
    /// First PSN of the current reply: later than `first` after a partial repetition.
    pub(super) reply: Psn,
    /// Packets of the current reply.
    pub(super) reply_packets: u32,
    /// Packets of the current reply that have been handed out.
    pub(super) sent: u32,
    /// Where the current reply reads.
    pub(super) va: u64,
    /// The key that the peer gave.
    pub(super) rkey: RKey,
    /// Bytes of the current reply.
    pub(super) length: u32,
    /// MSN of its AETH.
    pub(super) msn: Msn,
    /// The reply repeats an earlier one.
    pub(super) repeated: bool,
}
