// SPDX-License-Identifier: GPL-2.0
//! RDMA Extended Transport Header: 16 bytes, in the first packet of a WRITE and in READ requests.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                    Virtual Address (63-32)                    |
//! +---------------------------------------------------------------+
//! |                    Virtual Address (31-0)                     |
//! +---------------------------------------------------------------+
//! |                             R_Key                             |
//! +---------------------------------------------------------------+
//! |                          DMA Length                           |
//! +---------------------------------------------------------------+
//! ```

use crate::{
    types::RKey,
    wire::{
        put,
        take,
        Error, //
    }, //
};
use zerocopy::network_endian::{
    U32,
    U64, //
};
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
    va: U64,
    rkey: U32,
    length: U32,
}

const _: () = assert!(size_of::<Raw>() == 16);

//= IBA 9.3.3
/// RDMA Extended Transport Header. The sum of address and length may overflow: nothing here has
/// been checked against a memory region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key that authorises the access.
    pub rkey: RKey,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Reth {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (raw, rest) = take::<Raw>(bytes)?;
        let reth = Self {
            va: raw.va.get(),
            rkey: RKey(raw.rkey.get()),
            length: raw.length.get(),
        };
        Ok((reth, rest))
    }

    #[inline]
    pub(super) fn emit(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        put(
            bytes,
            Raw {
                va: U64::new(self.va),
                rkey: U32::new(self.rkey.0),
                length: U32::new(self.length),
            },
        )
    }
}
