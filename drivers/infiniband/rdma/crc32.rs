// SPDX-License-Identifier: GPL-2.0

//! The Ethernet CRC-32, as fast as the CPU can do it.
//!
//! C header: [`include/linux/crc32.h`](srctree/include/linux/crc32.h)
//!
//! Would become `rust/kernel/crc32.rs`.

use crate::bindings;

/// Continues the CRC-32 (reflected polynomial 0xedb88320) `crc` over `data`.
///
/// The CRC of nothing is the start value, usually `!0`; whoever wants the usual final inversion
/// inverts the result.
///
/// # Context
///
/// Any. With interrupts disabled it may be slower, as it cannot use vector registers then.
#[inline]
pub fn update(crc: u32, data: &[u8]) -> u32 {
    // SAFETY: `data` is valid for reads of its length, which is all that `crc32_le`
    // (lib/crc/crc32-main.c) wants.
    unsafe { bindings::crc32_le(crc, data.as_ptr().cast(), data.len()) }
}
