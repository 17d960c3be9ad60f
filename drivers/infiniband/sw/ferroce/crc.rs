// SPDX-License-Identifier: GPL-2.0
//! The invariant CRC of packets, with the kernel's CRC32.

use crate::port::Port;
use rdma::net::{
    IpHeader,
    RxPacket, //
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

/// The ICRC of all packets of a flow: what does not change from one to the next was computed once.
#[derive(Clone, Copy)]
pub(crate) struct FlowCrc(icrc::Flow);

impl FlowCrc {
    /// The flow of a packet with these headers; their lengths, checksums and the IPv4 identification
    /// do not matter.
    pub(crate) fn new(ip: IpHeader<'_>, udp: &[u8; 8]) -> Self {
        Self(match ip {
            IpHeader::V4(ip) => icrc::Flow::v4::<KernelCrc>(ip, udp),
            IpHeader::V6(ip) => icrc::Flow::v6::<KernelCrc>(ip, udp),
        })
    }

    /// The flow that `packet` belongs to, if packets of it have an ICRC: those that have not left this
    /// host have none, nor those of a `port` where it is switched off.
    pub(crate) fn of(port: &Port, packet: &RxPacket) -> Option<Self> {
        let has_icrc = !packet.on_loopback() && port.uses_icrc();
        has_icrc.then(|| Self::new(packet.ip(), packet.udp()))
    }

    /// Writes the ICRC in the last four bytes of a packet's UDP payload. `id` is the IPv4
    /// identification that it goes out with.
    #[inline]
    pub(crate) fn seal(&self, payload: &mut [u8], id: u16) {
        let udp_len = (payload.len() as u16).wrapping_add(8);
        let Some((body, tail)) = payload.split_last_chunk_mut::<ICRC_LEN>() else {
            return;
        };
        // The byte that counts as ones has them meanwhile: one pass instead of two.
        let Some(masked) = body.get_mut(icrc::MASKED_IN_BTH) else {
            return;
        };
        let kept = core::mem::replace(masked, 0xff);
        *tail = icrc::finish(KernelCrc::update(self.0.packet(udp_len, id), body));
        if let Some(masked) = body.get_mut(icrc::MASKED_IN_BTH) {
            *masked = kept;
        }
    }

    /// Whether a received UDP payload ends with the right ICRC.
    #[inline]
    pub(crate) fn matches(&self, payload: &[u8], id: u16) -> bool {
        let crc = self.expected(payload, id);
        crc.is_some() && payload.last_chunk() == crc.as_ref()
    }

    /// The ICRC that belongs in the last four bytes of `payload`. `None` if it is too short.
    #[inline]
    fn expected(&self, payload: &[u8], id: u16) -> Option<[u8; ICRC_LEN]> {
        let (body, _) = payload.split_last_chunk::<ICRC_LEN>()?;
        let (bth, rest) = body.split_first_chunk::<12>()?;
        let udp_len = (payload.len() as u16).wrapping_add(8);
        let state = KernelCrc::update(self.0.packet(udp_len, id), &icrc::mask_bth(bth));
        Some(icrc::finish(KernelCrc::update(state, rest)))
    }
}
