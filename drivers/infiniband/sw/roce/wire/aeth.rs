// SPDX-License-Identifier: GPL-2.0
//! ACK Extended Transport Header: 4 bytes, in ACKs and all but the middle READ responses.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! |   Syndrome    |                      MSN                      |
//! +---------------+-----------------------------------------------+
//!
//! Syndrome  0 00 ccccc  ACK, credit count
//!           0 01 ttttt  RNR NAK, timer
//!           0 11 nnnnn  NAK, code 0 to 4
//!           all others reserved
//! ```

use crate::{
    types::Msn,
    wire::{
        put,
        take,
        Error, //
    }, //
};
use core::fmt;
use zerocopy::network_endian::U32;
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

const KIND_ACK: u8 = 0x00;
const KIND_RNR_NAK: u8 = 0x20;
const KIND_NAK: u8 = 0x60;
const VALUE_MASK: u8 = 0x1f;

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    syndrome_msn: U32,
}

const _: () = assert!(size_of::<Raw>() == 4);

//= IBA 9.7.5.2.8
/// Why a request was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing; the PSN of the NAK is the expected one.
    PsnSequence = 0,
    /// The request is not valid here: opcode, length or order.
    InvalidRequest = 1,
    /// Key, bounds or rights do not allow the access.
    RemoteAccess = 2,
    /// The responder could not carry it out.
    RemoteOperational = 3,
    /// Reliable Datagram only; does not occur in RoCE.
    InvalidRd = 4,
}

//= IBA 9.7.5.1.2
/// What an acknowledge packet says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Syndrome {
    /// Positive.
    Ack {
        /// Encoded number of receive WQEs, 0 to 30; 31: flow control is not used.
        credits: u8,
    },
    /// The receiver is not ready.
    RnrNak {
        /// Encoded time to wait before the next attempt, 0 to 31.
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
}

impl Syndrome {
    /// A plain ACK without flow control credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// The syndrome with this value.
    ///
    /// # Errors
    ///
    /// [`Error::Syndrome`] if it is reserved.
    #[inline]
    pub const fn from_u8(value: u8) -> Result<Self, Error> {
        let low = value & VALUE_MASK;
        match value & !VALUE_MASK {
            KIND_ACK => Ok(Self::Ack { credits: low }),
            KIND_RNR_NAK => Ok(Self::RnrNak { timer: low }),
            KIND_NAK => Ok(Self::Nak(match low {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                _ => return Err(Error::Syndrome),
            })),
            _ => Err(Error::Syndrome),
        }
    }

    /// The value on the wire. Of credits and timer the low 5 bits count.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK | credits & VALUE_MASK,
            Self::RnrNak { timer } => KIND_RNR_NAK | timer & VALUE_MASK,
            Self::Nak(code) => KIND_NAK | code as u8,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { .. } => f.write_str("ack"),
            Self::RnrNak { timer } => write!(f, "rnr {timer}"),
            Self::Nak(code) => f.write_str(match code {
                NakCode::PsnSequence => "nak sequence",
                NakCode::InvalidRequest => "nak invalid request",
                NakCode::RemoteAccess => "nak access",
                NakCode::RemoteOperational => "nak operational",
                NakCode::InvalidRd => "nak rd",
            }),
        }
    }
}

//= IBA 9.3.5.1
/// ACK Extended Transport Header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aeth {
    /// What the packet says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (raw, rest) = take::<Raw>(bytes)?;
        let [syndrome, ..] = raw.syndrome_msn.to_bytes();
        let aeth = Self {
            syndrome: Syndrome::from_u8(syndrome)?,
            msn: Msn::new(raw.syndrome_msn.get()),
        };
        Ok((aeth, rest))
    }

    #[inline]
    pub(super) fn emit(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        let [_, a, b, c] = self.msn.get().to_be_bytes();
        put(
            bytes,
            Raw {
                syndrome_msn: U32::from_bytes([self.syndrome.to_u8(), a, b, c]),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_round_trips_or_is_reserved() {
        let mut valid = 0;
        for value in 0..=255 {
            match Syndrome::from_u8(value) {
                Ok(syndrome) => {
                    assert_eq!(syndrome.to_u8(), value);
                    valid += 1;
                }
                Err(error) => assert_eq!(error, Error::Syndrome),
            }
        }
        assert_eq!(valid, 32 + 32 + 5);
    }
}
