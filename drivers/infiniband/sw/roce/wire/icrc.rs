// SPDX-License-Identifier: GPL-2.0
//! Invariant CRC: the last 4 bytes of a packet, over all that no router changes.
//!
//! ```text
//! 8 bytes 0xff | IP header* | UDP header* | BTH* | extension headers | payload | pad
//! ```
//!
//! The marked headers enter with the fields that may change on the way as all ones: of IPv4 type of
//! service, time to live and header checksum; of IPv6 traffic class, flow label and hop limit; of
//! UDP the checksum; of the BTH the byte with FECN and BECN. The leading ones stand for the link
//! header of an InfiniBand fabric. The polynomial is that of Ethernet, and the bytes go out in the
//! order of an Ethernet frame check sequence.
//!
//! A caller computes [`header_v4`] or [`header_v6`], updates the state with everything after the BTH,
//! and ends with [`finish`]. Who sends many packets of one flow keeps a [`Flow`] instead, and takes
//! all from the BTH on in one go: `C::update(unmask(flow.packet(udp_len, id), bth[4]), body)`.

mod flow;

pub use flow::{
    Flow,
    Train, //
};

/// A CRC with polynomial 0xEDB88320 (reflected), without inversion: the kernel's `crc32_le`.
pub trait Crc32 {
    /// The state after `data`.
    fn update(crc: u32, data: &[u8]) -> u32;
}

/// State after the eight bytes of ones: what every ICRC starts with.
const START: u32 = soft(0xffff_ffff, &[0xff; 8]);

/// The state after the masked IPv4, UDP and BTH headers.
#[inline]
pub fn header_v4<C: Crc32>(ip: &[u8; 20], udp: &[u8; 8], bth: &[u8; 12]) -> u32 {
    C::update(pseudo_v4::<C>(ip, udp), &mask_bth(bth))
}

/// The state after the masked IPv6, UDP and BTH headers.
#[inline]
pub fn header_v6<C: Crc32>(ip: &[u8; 40], udp: &[u8; 8], bth: &[u8; 12]) -> u32 {
    C::update(pseudo_v6::<C>(ip, udp), &mask_bth(bth))
}

/// The state after the masked IPv4 and UDP headers.
///
/// Of one flow it is the same for all packets of one length and one IPv4 identification.
#[inline]
pub fn pseudo_v4<C: Crc32>(ip: &[u8; 20], udp: &[u8; 8]) -> u32 {
    let &[v, _, l0, l1, i0, i1, f0, f1, _, p, _, _, a, b, c, d, e, g, h, i] = ip;
    let &[s0, s1, d0, d1, n0, n1, _, _] = udp;
    C::update(
        START,
        &[
            v, 0xff, l0, l1, i0, i1, f0, f1, 0xff, p, 0xff, 0xff, a, b, c, d, e, g, h, i, s0, s1,
            d0, d1, n0, n1, 0xff, 0xff,
        ],
    )
}

/// The state after the masked IPv6 and UDP headers.
///
/// Of one flow it is the same for all packets of one length.
#[inline]
pub fn pseudo_v6<C: Crc32>(ip: &[u8; 40], udp: &[u8; 8]) -> u32 {
    let &[v, _, _, _, l0, l1, n, _, ..] = ip;
    let &[.., s0, s1, d0, d1, n0, n1, _, _] = udp;
    let crc = C::update(START, &[v | 0x0f, 0xff, 0xff, 0xff, l0, l1, n, 0xff]);
    let (_, addresses) = ip.split_at(8);
    let crc = C::update(crc, addresses);
    C::update(crc, &[s0, s1, d0, d1, n0, n1, 0xff, 0xff])
}

/// The place in the BTH of the byte that enters the ICRC as ones.
pub const MASKED_IN_BTH: usize = 4;

/// What the state before the BTH must differ by, so that the state before its masked byte differs by
/// the low, and the high, four bits of that byte.
const BEFORE_BTH: [[u32; 16]; 2] = [row_before_bth(0), row_before_bth(4)];

/// Changes the state before the BTH such that a BTH with `octet` at [`MASKED_IN_BTH`], as it is on the
/// wire, has the effect that it would have with ones there.
#[inline]
pub fn unmask(state: u32, octet: u8) -> u32 {
    // A byte enters together with the lowest of the state, so a change of one is one of the other.
    let change = !octet;
    let [low, high] = &BEFORE_BTH;
    let look_up = |row: &[u32; 16], bits: u8| row.get(usize::from(bits)).copied().unwrap_or(0);
    state ^ look_up(low, change & 0xf) ^ look_up(high, change >> 4)
}

const fn row_before_bth(shift: u32) -> [u32; 16] {
    let mut row = [0; 16];
    let mut rest: &mut [u32] = &mut row;
    let mut value = 0u32;
    while let Some((entry, others)) = rest.split_first_mut() {
        *entry = value.wrapping_shl(shift);
        let mut left = MASKED_IN_BTH;
        while left != 0 {
            *entry = before_zero(*entry);
            left = usize::wrapping_sub(left, 1);
        }
        value = value.wrapping_add(1);
        rest = others;
    }
    row
}

/// The state that a byte of zero turns into `after`.
const fn before_zero(after: u32) -> u32 {
    // No two entries of the table have the same highest byte.
    let mut rest: &[u32] = &TABLE;
    let mut index = 0u32;
    while let Some((&entry, others)) = rest.split_first() {
        if entry >> 24 == after >> 24 {
            return ((after ^ entry) << 8) | index;
        }
        index = index.wrapping_add(1);
        rest = others;
    }
    0
}

/// The BTH as it enters the ICRC.
#[inline]
pub const fn mask_bth(bth: &[u8; 12]) -> [u8; 12] {
    let &[a, b, c, d, _, f, g, h, i, j, k, l] = bth;
    [a, b, c, d, 0xff, f, g, h, i, j, k, l]
}

/// The bytes on the wire for the state after the whole packet.
#[inline]
pub const fn finish(crc: u32) -> [u8; 4] {
    (!crc).to_le_bytes()
}

/// A byte-wise implementation, for tests, simulators and constants.
#[derive(Clone, Copy, Debug)]
pub struct SoftCrc32;

impl Crc32 for SoftCrc32 {
    fn update(crc: u32, data: &[u8]) -> u32 {
        soft(crc, data)
    }
}

/// The state after one byte, for each value of state and byte combined.
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut rest: &mut [u32] = &mut table;
    let mut i = 0u32;
    while let Some((entry, after)) = rest.split_first_mut() {
        let mut crc = i;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
            bit = u32::wrapping_add(bit, 1);
        }
        *entry = crc;
        i = i.wrapping_add(1);
        rest = after;
    }
    table
}

const fn soft(mut crc: u32, mut data: &[u8]) -> u32 {
    while let Some((&byte, rest)) = data.split_first() {
        let index = (crc ^ byte as u32) & 0xff;
        let entry = match TABLE.split_at_checked(index as usize) {
            Some((_, &[entry, ..])) => entry,
            // The index is less than the length of the table.
            Some((_, &[])) | None => 0,
        };
        crc = (crc >> 8) ^ entry;
        data = rest;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever stands in the masked byte, as it is or as ones.
    #[test]
    fn in_one_go_or_masked_first() {
        for octet in 0..=255 {
            let state = 0x1234_5678u32.wrapping_mul(2 * u32::from(octet) + 1);
            let bth = [0x07, 0x40, 0xff, 0xff, octet, 0, 1, 2, 0x80, 9, 8, 7];
            let masked = soft(state, &mask_bth(&bth));
            assert_eq!(soft(unmask(state, octet), &bth), masked);
        }
    }

    #[test]
    fn is_the_crc_of_ethernet() {
        assert_eq!(!soft(0xffff_ffff, b"123456789"), 0xcbf4_3926);
    }
}
