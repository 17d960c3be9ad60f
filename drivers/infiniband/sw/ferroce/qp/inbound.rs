// SPDX-License-Identifier: GPL-2.0
//! A datagram that came in, besides its transport headers.

use rdma::net::{
    IpHeader,
    RxPacket, //
};
use roce::wire::Packet;

/// What is known of a packet besides its transport headers.
pub(crate) struct Inbound<'a> {
    /// The payload, without pad and ICRC.
    pub(crate) payload: &'a [u8],
    /// The IP header that it came with; if it came with others, that of all of them.
    pub(crate) ip: IpHeader<'a>,
    /// Bytes of UDP payload.
    length: usize,
    /// IPv4 identification.
    id: u16,
    /// VLAN that it came through.
    pub(crate) vlan: Option<u16>,
    /// Ethernet source address.
    pub(crate) source_mac: Option<[u8; 6]>,
}

/// Bytes of global route header in front of a received datagram.
const GRH_BYTES: usize = 40;

/// Bytes of a UDP header.
const UDP_HEADER: u16 = 8;

impl<'a> Inbound<'a> {
    /// What is known of a datagram of `packet`, of which `parsed` was made; `id` is its IPv4
    /// identification.
    pub(crate) fn new(packet: &'a RxPacket, bytes: &'a [u8], id: u16, parsed: &Packet) -> Self {
        let start = parsed.payload_offset as usize;
        let end = start.saturating_add(parsed.payload_len as usize);
        Self {
            payload: bytes.get(start..end).unwrap_or_default(),
            ip: packet.ip(),
            length: bytes.len(),
            id,
            vlan: packet.vlan_id(),
            source_mac: packet.src_mac(),
        }
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
