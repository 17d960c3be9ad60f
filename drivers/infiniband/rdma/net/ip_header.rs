// SPDX-License-Identifier: GPL-2.0

//! The IP header of a packet, as bytes.
//!
//! C headers: [`include/uapi/linux/ip.h`](srctree/include/uapi/linux/ip.h),
//! [`include/uapi/linux/ipv6.h`](srctree/include/uapi/linux/ipv6.h)
//!
//! Would become `rust/kernel/net/ip_header.rs`.

use super::MulticastAddr;

/// Length of an IPv4 header without options, in bytes.
pub const IPV4_LEN: usize = 20;

/// Length of an IPv6 header without extension headers, in bytes.
pub const IPV6_LEN: usize = 40;

/// Length of a UDP header, in bytes.
pub const UDP_LEN: usize = 8;

/// The fixed part of an IP header, in network byte order.
#[derive(Clone, Copy)]
pub enum IpHeader<'a> {
    /// IPv4, without the options.
    V4(&'a [u8; IPV4_LEN]),
    /// IPv6, without the extension headers.
    V6(&'a [u8; IPV6_LEN]),
}

impl<'a> IpHeader<'a> {
    /// Whether this is IPv4.
    #[inline]
    pub fn is_v4(&self) -> bool {
        matches!(self, Self::V4(_))
    }

    /// Whether the destination is a multicast address.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        self.group().is_some()
    }

    /// The destination, if it is a multicast address.
    #[inline]
    pub fn group(&self) -> Option<MulticastAddr> {
        match self {
            Self::V4(bytes) => bytes
                .last_chunk::<4>()
                .and_then(|address| MulticastAddr::from_v4(*address)),
            Self::V6(bytes) => bytes
                .last_chunk::<16>()
                .filter(|address| address[0] == 0xff)
                .map(|address| MulticastAddr::V6(*address)),
        }
    }

    /// The header as a slice of 20 or 40 bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        match *self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// The fixed part of an IP header, owned.
#[derive(Clone, Copy)]
pub struct OwnedIpHeader {
    bytes: [u8; IPV6_LEN],
    v4: bool,
}

impl OwnedIpHeader {
    /// The header, borrowed.
    #[inline]
    pub fn get(&self) -> IpHeader<'_> {
        match self.bytes.first_chunk() {
            Some(bytes) if self.v4 => IpHeader::V4(bytes),
            _ => IpHeader::V6(&self.bytes),
        }
    }
}

impl From<IpHeader<'_>> for OwnedIpHeader {
    #[inline]
    fn from(header: IpHeader<'_>) -> Self {
        let mut bytes = [0; IPV6_LEN];
        match header {
            IpHeader::V4(v4) => {
                if let Some(to) = bytes.first_chunk_mut() {
                    *to = *v4;
                }
            }
            IpHeader::V6(v6) => bytes = *v6,
        }
        Self {
            bytes,
            v4: header.is_v4(),
        }
    }
}
