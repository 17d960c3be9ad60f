// SPDX-License-Identifier: GPL-2.0
//! A datagram that came in, besides its transport headers.

use crate::{
    crc::TrainCrc,
    region::memory_error, //
};
use core::ops::Range;
use rdma::{
    net::{
        IpHeader,
        RxPacket, //
    },
    umem::{
        SharedBytes,
        Umem, //
    }, //
};
use roce::{
    env::MemoryError,
    wire::{
        Bth,
        Packet, //
    }, //
};

/// The payload of a packet, without pad and ICRC; or those of several that lie one behind the other.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// In packets.
    Packets {
        /// From the first byte of payload on.
        bytes: &'a [u8],
        /// Bytes of payload of each packet.
        each: usize,
        /// Bytes from the payload of one to that of the next.
        stride: usize,
    },
    /// Still in the sender's memory: so many bytes from an offset on.
    Memory {
        umem: &'a Umem,
        offset: u64,
        length: usize,
    },
}

impl<'a> Payload<'a> {
    /// Bytes that lie in one piece.
    #[inline]
    pub(crate) fn one(bytes: &'a [u8]) -> Self {
        Self::Packets {
            bytes,
            each: bytes.len(),
            stride: bytes.len(),
        }
    }

    /// The payloads of packets of which the first is `parsed`, has `length` bytes, and is at the start of
    /// `packets`.
    #[inline]
    pub(crate) fn of(packets: &'a [u8], length: usize, parsed: &Packet) -> Self {
        Self::Packets {
            bytes: packets
                .get(parsed.payload_offset as usize..)
                .unwrap_or_default(),
            each: parsed.payload_len as usize,
            stride: length,
        }
    }

    /// The part of it in `range`; of packets, if it is of the first one.
    #[inline]
    pub(crate) fn part(&self, range: Range<usize>) -> Option<Self> {
        Some(match *self {
            Self::Packets { bytes, each, .. } => Self::one(bytes.get(..each)?.get(range)?),
            Self::Memory {
                umem,
                offset,
                length,
            } => {
                let start = offset.checked_add(range.start as u64)?;
                let len = range.end.checked_sub(range.start)?;
                (range.end <= length).then_some(Self::Memory {
                    umem,
                    offset: start,
                    length: len,
                })?
            }
        })
    }

    /// Copies out all of it, which is `N` bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Fault`] if it is not.
    pub(crate) fn read<const N: usize>(&self) -> Result<[u8; N], MemoryError> {
        let (Self::Packets { each: length, .. } | Self::Memory { length, .. }) = *self;
        if length != N {
            return Err(MemoryError::Fault);
        }
        let mut bytes = [0; N];
        let mut to = bytes.as_mut_slice();
        self.for_each(0..N, |_, piece| {
            let (here, rest) = core::mem::take(&mut to)
                .split_at_mut_checked(piece.len())
                .ok_or(MemoryError::Fault)?;
            to = rest;
            piece.copy_to(here).map_err(memory_error)
        })?;
        Ok(bytes)
    }

    /// Calls `f` with the bytes in `range`, piece by piece, and how far each is from the start of it.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Fault`] if there are not so many; those of `f`.
    #[inline]
    pub(crate) fn for_each(
        &self,
        range: Range<usize>,
        mut f: impl FnMut(u64, SharedBytes<'_>) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let (bytes, each, stride) = match *self {
            Self::Packets {
                bytes,
                each,
                stride,
            } => (bytes, each, stride),
            Self::Memory { .. } => {
                let Some(Self::Memory {
                    umem,
                    offset,
                    length,
                }) = self.part(range)
                else {
                    return Err(MemoryError::Fault);
                };
                let mut ahead = 0u64;
                return umem
                    .pieces(offset, length, |piece| {
                        let at = ahead;
                        ahead = ahead.wrapping_add(piece.len() as u64);
                        f(at, piece)
                    })
                    .map_err(memory_error)?;
            }
        };
        let mut at = range.start;
        while at < range.end {
            let number = at.checked_div(each).ok_or(MemoryError::Fault)?;
            let within = at.wrapping_sub(number.wrapping_mul(each));
            let left = range.end.wrapping_sub(at);
            let length = each.wrapping_sub(within).min(left);
            let start = number.wrapping_mul(stride).wrapping_add(within);
            let piece = bytes.get(start..start.wrapping_add(length));
            f(
                at.wrapping_sub(range.start) as u64,
                piece.ok_or(MemoryError::Fault)?.into(),
            )?;
            at = at.wrapping_add(length);
        }
        Ok(())
    }
}

/// What is known of a packet besides its transport headers; or of several that are handled at once.
pub(crate) struct Inbound<'a> {
    pub(crate) payload: Payload<'a>,
    /// The IP header that it came with; if it came with others, that of all of them.
    pub(crate) ip: IpHeader<'a>,
    /// Bytes of UDP payload.
    length: usize,
    /// IPv4 identification.
    id: u16,
    /// What it came in; `None` if it is not built.
    packet: Option<&'a RxPacket>,
}

/// Bytes of global route header in front of a received datagram.
const GRH_BYTES: usize = 40;

/// Bytes of a UDP header.
const UDP_HEADER: u16 = 8;

impl<'a> Inbound<'a> {
    /// What is known of a datagram of `packet`, of which `parsed` was made; `id` is its IPv4
    /// identification. Its `length` bytes are the first of `bytes`; if others are handled with it, they
    /// follow there.
    #[inline]
    pub(crate) fn new(
        packet: &'a RxPacket,
        bytes: &'a [u8],
        length: usize,
        id: u16,
        parsed: &Packet,
    ) -> Self {
        Self {
            payload: Payload::of(bytes, length, parsed),
            ip: packet.ip(),
            length,
            id,
            packet: Some(packet),
        }
    }

    /// What is known of packets that are not built, on their way to another QP of the device.
    #[inline]
    pub(super) fn direct(payload: Payload<'a>, ip: IpHeader<'a>) -> Self {
        Self {
            payload,
            ip,
            length: 0,
            id: 0,
            packet: None,
        }
    }

    /// VLAN that it came through.
    pub(crate) fn vlan(&self) -> Option<u16> {
        self.packet?.vlan_id()
    }

    /// Ethernet source address.
    pub(crate) fn source_mac(&self) -> Option<[u8; 6]> {
        self.packet?.src_mac()
    }

    /// Whether it can be kept.
    pub(super) fn can_wait(&self) -> bool {
        self.packet.is_some()
    }

    /// The 40 bytes that stand for the GRH: an IPv6 header, or an IPv4 header in the last 20.
    pub(crate) fn grh(&self) -> [u8; GRH_BYTES] {
        let mut grh = [0u8; GRH_BYTES];
        let udp_length = (self.length as u16).wrapping_add(UDP_HEADER);
        match &self.ip {
            IpHeader::V6(ip) => {
                grh = **ip;
                [grh[4], grh[5]] = udp_length.to_be_bytes();
            }
            IpHeader::V4(ip) => {
                if let Some(tail) = grh.last_chunk_mut() {
                    *tail = single_v4(ip, udp_length, self.id);
                }
            }
        }
        grh
    }
}

/// Datagrams that follow each other, all of them from the middle of one message.
pub(super) struct InboundRun<'a> {
    /// They are the first in here, each of `length` bytes.
    pub(super) bytes: &'a [u8],
    pub(super) length: usize,
    pub(super) count: u32,
    /// The first of them, which asks for an ACK if one of them does.
    pub(super) first: Packet,
}

impl<'a> InboundRun<'a> {
    /// The run that begins with the datagram of `length` bytes at the start of `bytes`, of which `first`
    /// was made and which has the IPv4 identification `id`. Those behind it belong to it if they are
    /// alike, and have the right ICRC.
    #[inline]
    pub(super) fn new(
        bytes: &'a [u8],
        length: usize,
        id: u16,
        mut first: Packet,
        crc: Option<&TrainCrc>,
    ) -> Self {
        let mut count = 1u32;
        let header = bytes.first_chunk();
        if let Some((header, (_, mut rest))) = header.zip(bytes.split_at_checked(length)) {
            while let Some((next, others)) = rest.split_at_checked(length) {
                let Some(asks) = Bth::follows(header, next, count) else {
                    break;
                };
                let id = id.wrapping_add(count as u16);
                if crc.is_some_and(|crc| !crc.matches(next, id)) {
                    break;
                }
                first.bth.ack_req |= asks;
                count = count.wrapping_add(1);
                rest = others;
            }
        }
        Self {
            bytes,
            length,
            count,
            first,
        }
    }
}

/// The IPv4 header of one datagram: of `ip`, which may have come with several.
fn single_v4(ip: &[u8; 20], udp_length: u16, id: u16) -> [u8; 20] {
    let mut single = *ip;
    [single[2], single[3]] = udp_length.wrapping_add(20).to_be_bytes();
    [single[4], single[5]] = id.to_be_bytes();
    if single != *ip {
        [single[10], single[11]] = [0, 0];
        let words: &[[u8; 2]; 10] = zerocopy::transmute_ref!(&single);
        let sum = words.iter().fold(0u32, |sum, word| {
            sum.wrapping_add(u32::from(u16::from_be_bytes(*word)))
        });
        // Ten words carry nine times at most, so twice is enough.
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        let sum = (sum & 0xffff).wrapping_add(sum >> 16);
        [single[10], single[11]] = (!(sum as u16)).to_be_bytes();
    }
    single
}
