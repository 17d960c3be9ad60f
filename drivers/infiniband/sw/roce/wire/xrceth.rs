// SPDX-License-Identifier: GPL-2.0
//! XRC Extended Transport Header: 4 bytes, in every request of an extended reliable connection.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! |     resv      |                  XRC SRQ                      |
//! +---------------+-----------------------------------------------+
//! ```

use crate::{
    types::Srqn,
    wire::{
        put,
        take,
        Error, //
    }, //
};
use zerocopy::network_endian::U32;

//= IBA A14.3
/// Reads the header.
#[inline]
pub(super) fn parse(bytes: &[u8]) -> Result<(Srqn, &[u8]), Error> {
    let (raw, rest) = take::<U32>(bytes)?;
    Ok((Srqn::new(raw.get()), rest))
}

/// Writes the header.
#[inline]
pub(super) fn emit(srq: Srqn, bytes: &mut [u8]) -> Option<&mut [u8]> {
    put(bytes, U32::new(srq.get()))
}
