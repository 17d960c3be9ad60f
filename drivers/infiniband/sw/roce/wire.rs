// SPDX-License-Identifier: GPL-2.0
//! Wire formats: what stands in the UDP payload of a RoCEv2 packet.
//!
//! ```text
//! UDP port 4791 | BTH | extension headers, by opcode | payload | pad | ICRC
//! ```
//!
//! One header a file. Each has a raw form, private, whose size is asserted, and a value that holds
//! only what means something. [`Packet`] holds the values of one packet: [`Packet::parse`] is the
//! one place where bytes from the network become types, and checks every length before it is used;
//! [`Packet::emit`] is its inverse. [`icrc`] computes the invariant CRC.
//!
//! Nothing here can panic, whatever the bytes are.

mod aeth;
mod atomic;
mod bth;
mod deth;
mod feth;
pub mod icrc;
mod ieth;
mod imm;
mod opcode;
mod packet;
mod reth;
mod xrceth;

pub use aeth::{
    Aeth,
    NakCode,
    Syndrome, //
};
pub use atomic::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::{
    Feth,
    Selectivity, //
};
pub use opcode::{
    Opcode,
    Operation,
    Transport, //
};
pub use packet::Packet;
pub use reth::Reth;

use core::fmt;
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Length of the invariant CRC, in bytes.
pub const ICRC_LEN: usize = 4;

/// Length of the longest headers of one packet (BTH, XRCETH and AtomicETH), in bytes.
pub const MAX_HEADER_LEN: usize = 44;

/// Length of the longest headers that payload of a whole path MTU may follow (BTH, XRCETH, RETH and
/// immediate data), in bytes.
pub const MAX_PAYLOAD_HEADER_LEN: usize = 36;

/// Why a packet is dropped before any QP sees it. Each has its counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum Error {
    /// The packet is shorter than its headers and the ICRC, or no multiple of four bytes long.
    Length,
    /// The transport header version is not 0.
    Version,
    /// The opcode is reserved or of a transport that does not exist over RoCEv2.
    Opcode,
    /// There is more padding than payload.
    Pad,
    /// There is payload where the opcode has none.
    Payload,
    /// The syndrome of the AETH is reserved.
    Syndrome,
    /// The caller gave fewer bytes than the headers take, although the packet has them.
    Truncated,
}

impl Error {
    /// How many there are.
    pub const COUNT: usize = 7;

    /// All of them, in the order of their values.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Length,
        Self::Version,
        Self::Opcode,
        Self::Pad,
        Self::Payload,
        Self::Syndrome,
        Self::Truncated,
    ];
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "bad packet length",
            Self::Version => "unknown transport header version",
            Self::Opcode => "unknown opcode",
            Self::Pad => "more padding than payload",
            Self::Payload => "payload where there is none",
            Self::Syndrome => "reserved syndrome",
            Self::Truncated => "headers not at hand",
        })
    }
}

/// Takes a raw header off the front of `bytes`.
#[inline]
fn take<T: FromBytes + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), Error> {
    T::read_from_prefix(bytes).map_err(|_| Error::Truncated)
}

/// Writes a raw header to the front of `bytes` and returns what is left, `None` if it is too short.
#[inline]
fn put<T: IntoBytes + Immutable>(bytes: &mut [u8], raw: T) -> Option<&mut [u8]> {
    let (front, rest) = bytes.split_at_mut_checked(size_of::<T>())?;
    raw.write_to(front).ok()?;
    Some(rest)
}
