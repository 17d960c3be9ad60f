// SPDX-License-Identifier: GPL-2.0
//! Immediate Data: 4 bytes that go from the consumer's WQE to the peer's CQE as they are.

use crate::wire::{
    put,
    take,
    Error, //
};

//= IBA 9.3.6
/// Reads immediate data, in network order.
#[inline]
pub(super) fn parse(bytes: &[u8]) -> Result<([u8; 4], &[u8]), Error> {
    take::<[u8; 4]>(bytes)
}

/// Writes immediate data.
#[inline]
pub(super) fn emit(imm: [u8; 4], bytes: &mut [u8]) -> Option<&mut [u8]> {
    put(bytes, imm)
}
