// SPDX-License-Identifier: GPL-2.0
//! Base Transport Header: 12 bytes, in every packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-+-+---+-------+-------------------------------+
//! |    OpCode     |S|M|Pad| TVer  |             P_Key             |
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B|   resv    |                Destination QP                 |
//! +-+-+-----------+-----------------------------------------------+
//! |A|    resv     |                      PSN                      |
//! +-+-------------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M MigReq, F FECN, B BECN, A AckReq. The byte with F and B is the one that
//! the ICRC masks.

use crate::{
    types::{
        PKey,
        Psn,
        Qpn, //
    },
    wire::{
        put,
        take,
        Error,
        Opcode, //
    }, //
};
use core::fmt;
use zerocopy::network_endian::{
    U16,
    U32, //
};
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

const SOLICITED: u8 = 0x80;
const MIGREQ: u8 = 0x40;
const PAD_MASK: u8 = 0x30;
const PAD_SHIFT: u32 = 4;
const TVER_MASK: u8 = 0x0f;
const FECN: u32 = 0x8000_0000;
const BECN: u32 = 0x4000_0000;
const ACK_REQ: u32 = 0x8000_0000;

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    opcode: u8,
    flags: u8,
    pkey: U16,
    fecn_becn_qp: U32,
    ack_psn: U32,
}

const _: () = assert!(size_of::<Raw>() == Bth::LEN);

//= IBA 9.2
/// Base Transport Header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The responder raises a solicited event when the message is complete.
    pub solicited: bool,
    /// Path migration state: set when migrated, as it is without alternate paths.
    pub migreq: bool,
    /// Zero bytes that bring the payload to a multiple of four: 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: PKey,
    /// QP that the packet is for.
    pub dest_qp: Qpn,
    /// The responder is to acknowledge this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// The packet met congestion on its way.
    pub fecn: bool,
    /// The packets of the other direction met congestion.
    pub becn: bool,
}

impl Bth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 12;

    /// A header of the default partition with no flag but MigReq set and no padding.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            dest_qp,
            ack_req: false,
            psn,
            fecn: false,
            becn: false,
        }
    }

    /// Reads a header from the front of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`], [`Error::Version`] or [`Error::Opcode`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (raw, _) = take::<Raw>(bytes)?;
        if raw.flags & TVER_MASK != 0 {
            return Err(Error::Version);
        }
        let fecn_becn_qp = raw.fecn_becn_qp.get();
        let ack_psn = raw.ack_psn.get();
        Ok(Self {
            opcode: Opcode::from_u8(raw.opcode).ok_or(Error::Opcode)?,
            solicited: raw.flags & SOLICITED != 0,
            migreq: raw.flags & MIGREQ != 0,
            pad: (raw.flags & PAD_MASK) >> PAD_SHIFT,
            pkey: PKey(raw.pkey.get()),
            dest_qp: Qpn::new(fecn_becn_qp),
            ack_req: ack_psn & ACK_REQ != 0,
            psn: Psn::new(ack_psn),
            fecn: fecn_becn_qp & FECN != 0,
            becn: fecn_becn_qp & BECN != 0,
        })
    }

    /// Whether `bytes` start with the header of the packet `ahead` PSNs behind the one with the header
    /// `first`, which says the same in all else but perhaps that it asks for an ACK; if so, whether it
    /// does.
    #[inline]
    pub fn follows(first: &[u8; Self::LEN], bytes: &[u8], ahead: u32) -> Option<bool> {
        let [a @ .., s0, s1, s2, s3] = first;
        let [b @ .., t0, t1, t2, t3] = bytes.first_chunk::<{ Self::LEN }>()?;
        let first_word = u32::from_be_bytes([*s0, *s1, *s2, *s3]);
        let word = u32::from_be_bytes([*t0, *t1, *t2, *t3]);
        let psn = Psn::new(first_word).add(ahead).get();
        let others = !ACK_REQ & !Psn::MASK;
        let same = u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b)
            && word & !ACK_REQ == first_word & others | psn;
        same.then_some(word & ACK_REQ != 0)
    }

    /// Writes the header to the front of `bytes` and returns the rest, `None` if it is too short.
    #[inline]
    pub(crate) fn emit<'a>(&self, bytes: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let flag8 = |on, bit| if on { bit } else { 0u8 };
        let flag32 = |on, bit| if on { bit } else { 0u32 };
        put(
            bytes,
            Raw {
                opcode: self.opcode.to_u8(),
                flags: flag8(self.solicited, SOLICITED)
                    | flag8(self.migreq, MIGREQ)
                    | (self.pad << PAD_SHIFT) & PAD_MASK,
                pkey: U16::new(self.pkey.0),
                fecn_becn_qp: U32::new(
                    self.dest_qp.get() | flag32(self.fecn, FECN) | flag32(self.becn, BECN),
                ),
                ack_psn: U32::new(self.psn.get() | flag32(self.ack_req, ACK_REQ)),
            },
        )
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} qp {:#x} psn {}",
            self.opcode,
            self.dest_qp.get(),
            self.psn
        )?;
        for (on, name) in [
            (self.ack_req, " ackreq"),
            (self.solicited, " se"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ] {
            if on {
                f.write_str(name)?;
            }
        }
        if self.pkey != PKey::DEFAULT {
            write!(f, " pkey {:#06x}", self.pkey.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bth: &Bth) -> [u8; 14] {
        let mut bytes = [0x55; 14];
        assert!(bth.emit(&mut bytes).is_some());
        bytes
    }

    #[test]
    fn what_follows() {
        let first = Bth::new(Opcode::RcSendMiddle, Qpn::new(7), Psn::new(Psn::MASK - 1));
        let header: [u8; 12] = bytes(&first)[..12].try_into().unwrap();
        let mut next = Bth {
            psn: Psn::new(1),
            ..first
        };
        assert_eq!(Bth::follows(&header, &bytes(&next), 3), Some(false));
        assert_eq!(Bth::follows(&header, &bytes(&next), 2), None);
        assert_eq!(Bth::follows(&header, &bytes(&next)[..11], 3), None);
        next.ack_req = true;
        assert_eq!(Bth::follows(&header, &bytes(&next), 3), Some(true));
        // Whatever else differs.
        for bit in 0..64 {
            let mut other = bytes(&next);
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Bth::follows(&header, &other, 3), None, "bit {bit}");
        }
        // What is reserved beside the ACK request.
        let mut other = bytes(&next);
        other[8] ^= 0x20;
        assert_eq!(Bth::follows(&header, &other, 3), None);
    }
}
