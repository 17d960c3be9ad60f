// SPDX-License-Identifier: GPL-2.0
//! The part of the ICRC that is the same for all packets of a flow.
//!
//! Between two packets of one flow (same addresses, ports and IPv4 flags) only the lengths and the
//! IPv4 identification differ before the BTH. A CRC is linear: the state over a header is that over
//! the header with these fields zero, XORed with what the fields alone would leave in an otherwise
//! empty one. The first half is kept in [`Flow`], the second comes from small constant tables, four
//! bits at a time, and costs a dozen instructions.

use super::{
    pseudo_v4,
    pseudo_v6,
    soft,
    Crc32, //
};

/// What 16 bits at one place of the headers add to the state: one row for each four bits, the
/// highest first.
type Contribution = [[u32; 16]; 4];

/// Bytes from the start of the UDP header to its end.
const UDP_LEN: usize = 8;
/// Bytes after the UDP length.
const AFTER_UDP_LENGTH: usize = 2;

const V4_TOTAL_LENGTH: Contribution = contribution(16 + UDP_LEN);
const V4_ID: Contribution = contribution(14 + UDP_LEN);
const UDP_LENGTH: Contribution = contribution(AFTER_UDP_LENGTH);
/// The payload length of IPv6 equals the UDP length, so that one look-up does for both.
const V6_LENGTHS: Contribution = sum(&contribution(34 + UDP_LEN), &contribution(AFTER_UDP_LENGTH));

/// State after the masked IP and UDP headers of one flow, for lengths and identification zero.
///
/// Valid as long as the addresses, ports, IPv4 flags, protocol or next header do not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow {
    state: u32,
    v6: bool,
}

impl Flow {
    /// The flow of a packet with these headers.
    pub fn v4<C: Crc32>(ip: &[u8; 20], udp: &[u8; 8]) -> Self {
        let &[v, t, _, _, _, _, f0, f1, ttl, p, c0, c1, a, b, c, d, e, g, h, i] = ip;
        let ip = [
            v, t, 0, 0, 0, 0, f0, f1, ttl, p, c0, c1, a, b, c, d, e, g, h, i,
        ];
        Self {
            state: pseudo_v4::<C>(&ip, &without_length(udp)),
            v6: false,
        }
    }

    /// The flow of a packet with these headers.
    pub fn v6<C: Crc32>(ip: &[u8; 40], udp: &[u8; 8]) -> Self {
        let mut ip = *ip;
        let [_, _, _, _, l0, l1, ..] = &mut ip;
        (*l0, *l1) = (0, 0);
        Self {
            state: pseudo_v6::<C>(&ip, &without_length(udp)),
            v6: true,
        }
    }

    /// What packets with a UDP length of `udp_len` bytes have in common; that is with the UDP header.
    #[inline]
    pub fn of_length(&self, udp_len: u16) -> Train {
        let lengths = if self.v6 {
            of(&V6_LENGTHS, udp_len)
        } else {
            of(&V4_TOTAL_LENGTH, udp_len.wrapping_add(20)) ^ of(&UDP_LENGTH, udp_len)
        };
        Train {
            state: self.state ^ lengths,
            v6: self.v6,
        }
    }

    /// The state after the masked IP and UDP headers of one packet of the flow.
    ///
    /// `udp_len` is the UDP length in bytes, with the UDP header; `id` is the identification of an
    /// IPv4 packet and of no account in IPv6. The BTH comes next: see [`super::mask_bth`].
    #[inline]
    pub fn packet(&self, udp_len: u16, id: u16) -> u32 {
        self.of_length(udp_len).packet(id)
    }
}

/// State after the masked IP and UDP headers of packets of one flow and one length, for an
/// identification of zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Train {
    state: u32,
    v6: bool,
}

impl Train {
    /// The state after the masked IP and UDP headers of the packet with this IPv4 identification.
    #[inline]
    pub fn packet(&self, id: u16) -> u32 {
        if self.v6 || id == 0 {
            return self.state;
        }
        self.state ^ of(&V4_ID, id)
    }
}

/// The header with a length of zero.
const fn without_length(udp: &[u8; 8]) -> [u8; 8] {
    let &[s0, s1, d0, d1, _, _, c0, c1] = udp;
    [s0, s1, d0, d1, 0, 0, c0, c1]
}

/// What `value` adds to the state.
#[inline]
fn of(table: &Contribution, value: u16) -> u32 {
    let [a, b, c, d] = table;
    let look_up = |row: &[u32; 16], shift: u32| {
        // The index is less than the length of the row.
        let index = usize::from(value.wrapping_shr(shift) & 0xf);
        row.get(index).copied().unwrap_or(0)
    };
    look_up(a, 12) ^ look_up(b, 8) ^ look_up(c, 4) ^ look_up(d, 0)
}

/// What a field of two bytes adds that has `after` bytes between its end and that of the headers.
const fn contribution(after: usize) -> Contribution {
    let high = after.wrapping_add(1);
    [
        row(4, high), //
        row(0, high),
        row(4, after),
        row(0, after),
    ]
}

/// What four bits add that stand `shift` bits up in a byte with `after` bytes after it.
const fn row(shift: u32, after: usize) -> [u32; 16] {
    let mut row = [0; 16];
    let mut rest: &mut [u32] = &mut row;
    let mut value = 0u8;
    while let Some((entry, others)) = rest.split_first_mut() {
        *entry = zeros(soft(0, &[value.wrapping_shl(shift)]), after);
        value = value.wrapping_add(1);
        rest = others;
    }
    row
}

/// The state after `count` bytes of zero.
const fn zeros(mut crc: u32, mut count: usize) -> u32 {
    while count != 0 {
        crc = soft(crc, &[0]);
        count = count.wrapping_sub(1);
    }
    crc
}

/// What two fields of the same value add together.
const fn sum(left: &Contribution, right: &Contribution) -> Contribution {
    let [a, b, c, d] = left;
    let [e, f, g, h] = right;
    [xor(a, e), xor(b, f), xor(c, g), xor(d, h)]
}

const fn xor(left: &[u32; 16], right: &[u32; 16]) -> [u32; 16] {
    let mut result = *right;
    let mut rest: &mut [u32] = &mut result;
    let mut left: &[u32] = left;
    while let (Some((entry, others)), Some((value, values))) =
        (rest.split_first_mut(), left.split_first())
    {
        *entry ^= *value;
        rest = others;
        left = values;
    }
    result
}
