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

    /// The flow that `packet` belongs to, if it has an ICRC.
    pub(crate) fn of(port: &Port, packet: &RxPacket) -> Option<Self> {
        has_icrc(port, packet).then(|| Self::new(packet.ip(), packet.udp()))
    }

    /// The ICRC of packets of the flow with a UDP payload of `length` bytes.
    #[inline]
    pub(crate) fn of_length(&self, length: usize) -> TrainCrc {
        TrainCrc(self.0.of_length((length as u16).wrapping_add(8)))
    }
}

/// Whether `packet` has an ICRC: those that have not left this host have none, nor those of a `port` where
/// it is switched off.
#[inline]
fn has_icrc(port: &Port, packet: &RxPacket) -> bool {
    !packet.on_loopback() && port.uses_icrc()
}

/// The ICRC of all packets of one length of a flow.
#[derive(Clone, Copy)]
pub(crate) struct TrainCrc(icrc::Train);

impl TrainCrc {
    /// Writes the ICRC in the last four bytes of a packet's UDP payload. `id` is the IPv4
    /// identification that it goes out with.
    #[inline]
    pub(crate) fn seal(&self, payload: &mut [u8], id: u16) {
        let crc = self.of_payload(payload, id);
        if let (Some(crc), Some(tail)) = (crc, payload.last_chunk_mut()) {
            *tail = crc;
        }
    }

    /// Whether a received UDP payload ends with the right ICRC.
    #[inline]
    pub(crate) fn matches(&self, payload: &[u8], id: u16) -> bool {
        let crc = self.of_payload(payload, id);
        crc.is_some() && payload.last_chunk() == crc.as_ref()
    }

    /// The ICRC that belongs in the last four bytes of `payload`. `None` if it is too short.
    #[inline]
    fn of_payload(&self, payload: &[u8], id: u16) -> Option<[u8; ICRC_LEN]> {
        let (body, _) = payload.split_last_chunk::<ICRC_LEN>()?;
        let masked = *body.get(icrc::MASKED_IN_BTH)?;
        let state = icrc::unmask(self.0.packet(id), masked);
        Some(icrc::finish(KernelCrc::update(state, body)))
    }
}

/// The flow that packets came in with last: most often it is that of the next one as well.
#[derive(Default)]
pub(crate) struct LastFlow(Option<(HeaderKey, FlowCrc)>);

/// What tells flows apart that have different CRCs: whether it is IPv4; addresses; ports; IPv4 flags and
/// protocol.
type HeaderKey = (bool, [u64; 4], [u8; 4], [u8; 3]);

/// The key of a packet with these headers. What else is in them is masked, fixed, or not part of the
/// flow.
#[inline]
fn header_key(ip: &IpHeader<'_>, udp: &[u8; 8]) -> Option<HeaderKey> {
    let ports = *udp.first_chunk()?;
    Some(match ip {
        IpHeader::V4(ip) => {
            let addresses = u64::from_ne_bytes(*ip.last_chunk()?);
            (true, [addresses, 0, 0, 0], ports, [ip[6], ip[7], ip[9]])
        }
        IpHeader::V6(ip) => {
            let addresses: &[u8; 32] = ip.last_chunk()?;
            let addresses = zerocopy::transmute!(*addresses);
            (false, addresses, ports, [0, 0, ip[6]])
        }
    })
}

/// Whether two keys are the same. Not `==`: that would be a call, for each packet.
#[inline]
fn is_same(left: &HeaderKey, right: &HeaderKey) -> bool {
    let (v4, [a, b, c, d], ports, others) = left;
    let (other_v4, [e, f, g, h], other_ports, more) = right;
    let differ = (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h);
    differ == 0 && v4 == other_v4 && ports == other_ports && others == more
}

impl LastFlow {
    /// As [`FlowCrc::of`], most often without computing anything.
    #[inline]
    pub(crate) fn of(&mut self, port: &Port, packet: &RxPacket) -> Option<FlowCrc> {
        if !has_icrc(port, packet) {
            return None;
        }
        let key = header_key(&packet.ip(), packet.udp())?;
        match &self.0 {
            Some((last, crc)) if is_same(last, &key) => Some(*crc),
            _ => {
                let crc = FlowCrc::new(packet.ip(), packet.udp());
                self.0 = Some((key, crc));
                Some(crc)
            }
        }
    }
}
