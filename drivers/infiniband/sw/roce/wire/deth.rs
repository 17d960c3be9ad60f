// SPDX-License-Identifier: GPL-2.0
//! Datagram Extended Transport Header: 8 bytes, in every datagram.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                             Q_Key                             |
//! +---------------+-----------------------------------------------+
//! |     resv      |                   Source QP                   |
//! +---------------+-----------------------------------------------+
//! ```

use crate::{
    types::{
        QKey,
        Qpn, //
    },
    wire::{
        put,
        take,
        Error, //
    }, //
};
use zerocopy::network_endian::U32;
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Unaligned, //
};

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    qkey: U32,
    src_qp: U32,
}

const _: () = assert!(size_of::<Raw>() == 8);

//= IBA 9.3.2
/// Datagram Extended Transport Header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Deth {
    /// Must match the Q_Key of the destination QP.
    pub qkey: QKey,
    /// QP that sent the datagram.
    pub src_qp: Qpn,
}

impl Deth {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (raw, rest) = take::<Raw>(bytes)?;
        let deth = Self {
            qkey: QKey(raw.qkey.get()),
            src_qp: Qpn::new(raw.src_qp.get()),
        };
        Ok((deth, rest))
    }

    #[inline]
    pub(super) fn emit(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        put(
            bytes,
            Raw {
                qkey: U32::new(self.qkey.0),
                src_qp: U32::new(self.src_qp.get()),
            },
        )
    }
}
