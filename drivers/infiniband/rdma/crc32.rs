// SPDX-License-Identifier: GPL-2.0

//! The Ethernet CRC-32, as fast as the CPU can do it.
//!
//! C header: [`include/linux/crc32.h`](srctree/include/linux/crc32.h)
//!
//! Would become `rust/kernel/crc32.rs`.

use crate::bindings;

/// For less bytes than this the vector registers are not worth it: whoever uses them saves those of the program
/// that runs, which has to be given them back.
const SHORT: usize = 64;

/// What a byte leaves in the state that has as many others behind it as the number of the row.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut rows = [[0; 256]; 8];
    let mut number = 0;
    while number < 256 {
        let mut crc = number as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        rows[0][number] = crc;
        number += 1;
    }
    let mut row = 1;
    while row < 8 {
        let mut number = 0;
        while number < 256 {
            let before: u32 = rows[row - 1][number];
            rows[row][number] = before >> 8 ^ rows[0][before as u8 as usize];
            number += 1;
        }
        row += 1;
    }
    rows
}

/// [`update`] by table, eight bytes at a time.
fn short(mut crc: u32, mut data: &[u8]) -> u32 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    while let Some(([a, b, c, d, e, f, g, h], rest)) = data.split_first_chunk() {
        let [i, j, k, l] = (crc ^ u32::from_le_bytes([*a, *b, *c, *d])).to_le_bytes();
        let first = t7[i as usize] ^ t6[j as usize] ^ t5[k as usize] ^ t4[l as usize];
        let second = t3[*e as usize] ^ t2[*f as usize] ^ t1[*g as usize] ^ t0[*h as usize];
        crc = first ^ second;
        data = rest;
    }
    for byte in data {
        crc = crc >> 8 ^ t0[(crc as u8 ^ byte) as usize];
    }
    crc
}

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
    if data.len() < SHORT {
        return short(crc, data);
    }
    // SAFETY: `data` is valid for reads of its length, which is all that `crc32_le`
    // (lib/crc/crc32-main.c) wants.
    unsafe { bindings::crc32_le(crc, data.as_ptr().cast(), data.len()) }
}

#[cfg(ferroce_kunit)]
#[kernel::prelude::kunit_tests(rdma_crc32)]
mod tests {
    use super::*;
    use kernel::prelude::*;

    #[test]
    fn is_the_one_of_ethernet() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(!update(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(update(0x1234_5678, &[]), 0x1234_5678);
    }

    /// Of any length and alignment, and in pieces: as bit by bit.
    #[test]
    fn whatever_the_length() -> Result {
        let mut data = KVec::new();
        for n in 0..600u32 {
            data.push((n.wrapping_mul(2_654_435_761) >> 24) as u8, GFP_KERNEL)?;
        }
        for start in 0..9 {
            for len in [0, 1, 3, 4, 7, 8, 15, 16, 63, 64, 65, 255, 512, 590] {
                let piece = &data[start..start + len];
                let mut want = !0u32;
                for byte in piece {
                    want ^= u32::from(*byte);
                    for _ in 0..8 {
                        want = if want & 1 == 1 {
                            want >> 1 ^ 0xedb8_8320
                        } else {
                            want >> 1
                        };
                    }
                }
                assert_eq!(update(!0, piece), want);
                let (a, b) = piece.split_at(len / 3);
                assert_eq!(update(update(!0, a), b), want);
            }
        }
        Ok(())
    }
}
