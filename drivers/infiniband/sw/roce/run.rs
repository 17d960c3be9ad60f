// SPDX-License-Identifier: GPL-2.0
//! A run: consecutive packets of one message, described once.
//!
//! The driver turns a run into as few buffers as the path allows; on the wire each packet is a
//! plain RoCEv2 packet. A run of one is the simple case.

use crate::types::{
    Psn,
    RKey, //
};

/// The most bytes of BTH and extension headers that one of our packets carries.
pub const MAX_HEADER: usize = 64;

/// Where the payload of a run comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadSource {
    /// No payload.
    None,
    /// The gather list or inline data of the send WQE in `slot`, from `offset` bytes on.
    Wqe {
        /// Slot of the WQE.
        slot: u32,
        /// Bytes into its payload.
        offset: u32,
    },
    /// Memory of ours that the peer reads.
    Remote {
        /// The key that the peer gave.
        rkey: RKey,
        /// Virtual address.
        va: u64,
    },
}

/// BTH and extension headers of one packet, ready for the wire, and what follows them.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket {
    /// Header bytes; the first [`Self::header_len`] are valid.
    pub header: [u8; MAX_HEADER],
    /// Valid bytes of `header`.
    pub header_len: usize,
    /// Payload bytes after the header.
    pub payload_len: u32,
    /// Offset of the payload from the start of the run's payload source, in bytes.
    pub payload_offset: u32,
    /// Zero bytes after the payload, to a multiple of four.
    pub pad: u8,
    /// PSN, for messages and error reports.
    pub psn: Psn,
}
