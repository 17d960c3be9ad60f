// SPDX-License-Identifier: GPL-2.0
//! Invalidate Extended Transport Header: the 4 bytes of the R_Key that SEND with invalidate names.

use crate::{
    types::RKey,
    wire::{
        put,
        take,
        Error, //
    }, //
};
use zerocopy::network_endian::U32;

//= IBA 9.3.7
/// Reads the header.
#[inline]
pub(super) fn parse(bytes: &[u8]) -> Result<(RKey, &[u8]), Error> {
    let (raw, rest) = take::<U32>(bytes)?;
    Ok((RKey(raw.get()), rest))
}

/// Writes the header.
#[inline]
pub(super) fn emit(rkey: RKey, bytes: &mut [u8]) -> Option<&mut [u8]> {
    put(bytes, U32::new(rkey.0))
}
