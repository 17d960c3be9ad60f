// SPDX-License-Identifier: GPL-2.0
//! The invariant CRC of packets, with the kernel's CRC32.

use rdma::net::{
    IpHeader,
    TxPacket, //
};
use roce::wire::{
    icrc::{
        self,
        Crc32, //
    },
    ICRC_LEN, //
};

/// The kernel's fastest CRC32 for this processor.
enum KernelCrc {}

impl Crc32 for KernelCrc {
    #[inline]
    fn update(crc: u32, data: &[u8]) -> u32 {
        rdma::crc32::update(crc, data)
    }
}

/// Writes the ICRC in the last four bytes of a packet.
pub(crate) fn seal(packet: &mut TxPacket) {
    let pseudo = pseudo(packet.ip(), packet.udp());
    let bytes = packet.payload_mut();
    let crc = expected(pseudo, bytes);
    if let (Some(crc), Some(tail)) = (crc, bytes.last_chunk_mut::<ICRC_LEN>()) {
        *tail = crc;
    }
}

/// Whether a received UDP payload ends with the right ICRC.
pub(crate) fn matches(ip: IpHeader<'_>, udp: &[u8; 8], payload: &[u8]) -> bool {
    let crc = expected(pseudo(ip, udp), payload);
    crc.is_some() && payload.last_chunk() == crc.as_ref()
}

/// State of the CRC after the headers in front of the BTH.
fn pseudo(ip: IpHeader<'_>, udp: &[u8; 8]) -> u32 {
    match ip {
        IpHeader::V4(ip) => icrc::pseudo_v4::<KernelCrc>(ip, udp),
        IpHeader::V6(ip) => icrc::pseudo_v6::<KernelCrc>(ip, udp),
    }
}

/// The ICRC that belongs in the last four bytes of `payload`. `None` if it is too short.
fn expected(pseudo: u32, payload: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (body, _) = payload.split_last_chunk::<ICRC_LEN>()?;
    let (bth, rest) = body.split_first_chunk::<12>()?;
    let state = KernelCrc::update(pseudo, &icrc::mask_bth(bth));
    Some(icrc::finish(KernelCrc::update(state, rest)))
}
