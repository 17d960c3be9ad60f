// SPDX-License-Identifier: GPL-2.0
//! Atomic Extended Transport Header: 28 bytes, in the requests; Atomic ACK Extended Transport
//! Header: 8 bytes, in the answer.
//!
//! ```text
//! AtomicETH                                       AtomicAckETH
//! +----------------------------------+            +----------------------------------+
//! |      Virtual Address (63-0)      |            |    Original Remote Data (63-0)   |
//! +----------------------------------+            +----------------------------------+
//! |          R_Key (31-0)            |
//! +----------------------------------+
//! |   Swap or Add Data (63-0)        |
//! +----------------------------------+
//! |       Compare Data (63-0)        |
//! +----------------------------------+
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
    swap_add: U64,
    compare: U64,
}

const _: () = assert!(size_of::<Raw>() == 28);

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAck {
    original: U64,
}

const _: () = assert!(size_of::<RawAck>() == 8);

//= IBA 9.3.4
/// Atomic Extended Transport Header. The values are in the order of the responder's CPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicEth {
    /// Virtual address at the responder; must be a multiple of 8.
    pub va: u64,
    /// Key that authorises the access.
    pub rkey: RKey,
    /// Value to store or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

impl AtomicEth {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (raw, rest) = take::<Raw>(bytes)?;
        let atomic = Self {
            va: raw.va.get(),
            rkey: RKey(raw.rkey.get()),
            swap_add: raw.swap_add.get(),
            compare: raw.compare.get(),
        };
        Ok((atomic, rest))
    }

    #[inline]
    pub(super) fn emit(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        put(
            bytes,
            Raw {
                va: U64::new(self.va),
                rkey: U32::new(self.rkey.0),
                swap_add: U64::new(self.swap_add),
                compare: U64::new(self.compare),
            },
        )
    }
}

//= IBA 9.3.5.3
/// Reads an Atomic ACK Extended Transport Header: the value before the operation.
#[inline]
pub(super) fn parse_ack(bytes: &[u8]) -> Result<(u64, &[u8]), Error> {
    let (raw, rest) = take::<RawAck>(bytes)?;
    Ok((raw.original.get(), rest))
}

/// Writes an Atomic ACK Extended Transport Header.
#[inline]
pub(super) fn emit_ack(original: u64, bytes: &mut [u8]) -> Option<&mut [u8]> {
    put(
        bytes,
        RawAck {
            original: U64::new(original),
        },
    )
}
