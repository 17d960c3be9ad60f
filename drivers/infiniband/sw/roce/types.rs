// SPDX-License-Identifier: GPL-2.0
//! Numbers with their own arithmetic: PSN, MSN, QPN, keys, MTU and time.
//!
//! Every function here is total: no argument can make it panic.

use core::fmt;

/// Packet Sequence Number: 24 bits, serial-number arithmetic (IBTA 9.7.2).
///
/// Has no `Ord`: "before" is not transitive around the circle.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Psn(u32);

impl Psn {
    /// The bits of a PSN.
    pub const MASK: u32 = 0x00ff_ffff;

    /// Makes a PSN of the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, less than 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[inline]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MASK)
    }

    /// The PSN `n` packets earlier.
    #[inline]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & Self::MASK)
    }

    /// The next PSN.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The signed distance from `other` to `self`, in packets: positive when `self` is later.
    #[inline]
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// The number of packets from `first` forward to `self`, less than 2^24.
    #[inline]
    pub const fn offset_from(self, first: Self) -> u32 {
        self.0.wrapping_sub(first.0) & Self::MASK
    }

    /// The later of both.
    #[inline]
    pub const fn later(self, other: Self) -> Self {
        if self.is_before(other) {
            other
        } else {
            self
        }
    }

    /// Whether `self` comes before `other`: at most 2^23 packets earlier.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Whether `self` lies in the `count` PSNs that start with `first`.
    #[inline]
    pub const fn is_within(self, first: Self, count: u32) -> bool {
        self.0.wrapping_sub(first.0) & Self::MASK < count
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Queue Pair Number, 24 bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the General Services Interface.
    pub const GSI: Self = Self(1);

    /// The destination of datagrams to a multicast group.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// Makes a QPN of the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The value, less than 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Number of a shared receive queue, 24 bits, as an XRCETH names it. 0 is that of none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Srqn(u32);

impl Srqn {
    /// Makes one of the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The value, less than 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Message Sequence Number: 24 bits, counts the messages that a responder has completed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Msn(u32);

impl Msn {
    /// Makes an MSN of the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The value, less than 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next MSN.
    #[inline]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// Partition key; the top bit is full membership.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member: the only entry of a RoCE port's table.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two keys may talk: same partition, at least one full member (IBTA 10.9.3).
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

/// Queue key of a datagram QP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QKey(pub u32);

/// Remote key: names a memory region in a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RKey(pub u32);

/// Path MTU of RoCE: payload bytes of a full packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mtu {
    /// 256 bytes.
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes.
    #[default]
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes.
    M4096,
}

impl Mtu {
    /// Payload bytes of a full packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::M256 => 256,
            Self::M512 => 512,
            Self::M1024 => 1024,
            Self::M2048 => 2048,
            Self::M4096 => 4096,
        }
    }

    /// log2 of [`Self::bytes`].
    #[inline]
    pub const fn shift(self) -> u32 {
        self.bytes().trailing_zeros()
    }

    /// From the code of `enum ib_mtu` (1 to 5).
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::M256,
            2 => Self::M512,
            3 => Self::M1024,
            4 => Self::M2048,
            5 => Self::M4096,
            _ => return None,
        })
    }

    /// The code of `enum ib_mtu` (1 to 5).
    pub const fn code(self) -> u32 {
        self.shift().wrapping_sub(7)
    }

    /// Bytes of `packets` full packets, modulo 2^32.
    #[inline]
    pub const fn span(self, packets: u32) -> u32 {
        packets.wrapping_shl(self.shift())
    }

    /// The packets that `length` bytes of payload take; an empty message takes one.
    #[inline]
    pub const fn packets(self, length: u32) -> u32 {
        let full = length.wrapping_shr(self.shift());
        if length == 0 || length & self.bytes().wrapping_sub(1) != 0 {
            full.wrapping_add(1)
        } else {
            full
        }
    }
}

/// A point in time: nanoseconds of the caller's monotonic clock.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

impl Instant {
    /// The instant `ns` nanoseconds later, at most the end of time.
    #[inline]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}
