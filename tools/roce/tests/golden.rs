// SPDX-License-Identifier: GPL-2.0
//! Packets captured from the in-kernel rxe, with what tshark says of them: see tools/capture.

use roce::wire::{
    icrc::{
        self,
        Flow,
        SoftCrc32, //
    },
    Bth,
    Packet, //
};
use std::collections::BTreeSet;

const ETHERNET: usize = 14;
const UDP: usize = 8;

/// One captured packet.
struct Captured {
    ip: Vec<u8>,
    udp: [u8; UDP],
    payload: Vec<u8>,
    /// What tshark printed, a column for each line of tools/capture/fields.
    fields: Vec<&'static str>,
}

impl Captured {
    /// The ICRC over the headers as they are, and `rest` after the BTH.
    fn icrc(&self, rest: &[u8]) -> [u8; 4] {
        let bth = self.payload[..Bth::LEN].try_into().unwrap();
        let state = match self.ip.len() {
            20 => icrc::header_v4::<SoftCrc32>(self.ip[..].try_into().unwrap(), &self.udp, bth),
            40 => icrc::header_v6::<SoftCrc32>(self.ip[..].try_into().unwrap(), &self.udp, bth),
            other => panic!("IP header of {other} bytes"),
        };
        icrc::finish(<SoftCrc32 as icrc::Crc32>::update(state, rest))
    }

    /// Column `index`, as a number; `None` if tshark printed nothing.
    fn number(&self, index: usize) -> Option<u64> {
        // Some fields are printed twice, with a comma.
        let text = self.fields[index].split(',').next().unwrap();
        match text {
            "" => None,
            "False" => Some(0),
            "True" => Some(1),
            _ => Some(match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => text.parse().unwrap(),
            }),
        }
    }
}

/// Reads a capture in the classic pcap format, little endian, Ethernet.
fn captures(pcap: &'static [u8], tsv: &'static str) -> Vec<Captured> {
    assert_eq!(pcap[..4], 0xa1b2_c3d4u32.to_le_bytes());
    let mut rest = &pcap[24..];
    let mut lines = tsv.lines();
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = &rest[16..16 + length];
        rest = &rest[16 + length..];

        let ip = match frame[12..ETHERNET] {
            [0x08, 0x00] => &frame[ETHERNET..ETHERNET + 20],
            [0x86, 0xdd] => &frame[ETHERNET..ETHERNET + 40],
            _ => panic!("not IP"),
        };
        let (udp, after) = frame[ETHERNET + ip.len()..].split_at(UDP);
        // An Ethernet frame may be longer than the packet in it.
        let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        packets.push(Captured {
            ip: ip.to_vec(),
            udp: udp.try_into().unwrap(),
            payload: after[..length - UDP].to_vec(),
            fields: lines.next().unwrap().split('\t').collect(),
        });
    }
    assert_eq!(lines.next(), None);
    packets
}

fn all() -> Vec<Captured> {
    let mut packets = captures(
        include_bytes!("golden/rxe-ipv4.pcap"),
        include_str!("golden/rxe-ipv4.tsv"),
    );
    packets.extend(captures(
        include_bytes!("golden/rxe-ipv6.pcap"),
        include_str!("golden/rxe-ipv6.tsv"),
    ));
    packets.extend(placement());
    packets
}

/// ATOMIC WRITE and FLUSH.
fn placement() -> Vec<Captured> {
    captures(
        include_bytes!("golden/rxe-placement.pcap"),
        include_str!("golden/rxe-placement.tsv"),
    )
}

#[test]
fn flush_headers() {
    use roce::wire::Selectivity::{
        Range,
        Region, //
    };
    let packets = placement();
    let seen: Vec<_> = packets
        .iter()
        .filter_map(|p| Packet::parse(&p.payload, p.payload.len()).unwrap().feth)
        .map(|feth| (feth.global, feth.persistent, feth.selectivity))
        .collect();
    // The second one was sent twice.
    let expected = [
        (true, false, Range),
        (true, false, Region),
        (true, false, Region),
        (true, true, Range),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn icrc_is_that_of_rxe() {
    for packet in all() {
        let (covered, icrc) = packet.payload.split_last_chunk::<4>().unwrap();
        let mut rest = covered[Bth::LEN..].to_vec();
        if is_flush(&packet) {
            // rxe takes the payload to begin with the BTH, so it covers the whole packet once more.
            // That is against the specification: rxe and others drop each other's FLUSHes.
            rest.extend_from_slice(covered);
        }
        assert_eq!(packet.icrc(&rest), *icrc);
    }
}

fn is_flush(packet: &Captured) -> bool {
    packet.payload[0] == roce::wire::Opcode::RcFlush.to_u8()
}

#[test]
fn a_flow_has_the_state_of_each_of_its_packets() {
    for mut packet in all() {
        let udp_len = u16::from_be_bytes([packet.udp[4], packet.udp[5]]);
        let flow = |packet: &Captured| match packet.ip.len() {
            20 => Flow::v4::<SoftCrc32>(packet.ip[..].try_into().unwrap(), &packet.udp),
            _ => Flow::v6::<SoftCrc32>(packet.ip[..].try_into().unwrap(), &packet.udp),
        };
        let of_this = flow(&packet);
        for (udp_len, id) in [
            (udp_len, 0x1234),
            (20, 0),
            (0x89ab, 0xcdef),
            (65535 - 20, 1),
        ] {
            packet.udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
            let state = if packet.ip.len() == 20 {
                packet.ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                packet.ip[4..6].copy_from_slice(&u16::to_be_bytes(id));
                icrc::pseudo_v4::<SoftCrc32>(packet.ip[..].try_into().unwrap(), &packet.udp)
            } else {
                packet.ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                icrc::pseudo_v6::<SoftCrc32>(packet.ip[..].try_into().unwrap(), &packet.udp)
            };
            assert_eq!(of_this.packet(udp_len, id), state);
            assert_eq!(flow(&packet), of_this);
        }
    }
}

#[test]
fn icrc_ignores_what_routers_change_and_nothing_else() {
    let packets = all().into_iter().filter(|p| !is_flush(p));
    for mut packet in packets.step_by(7) {
        let end = packet.payload.len() - 4;
        let icrc: [u8; 4] = packet.payload[end..].try_into().unwrap();
        let rest = packet.payload[Bth::LEN..end].to_vec();
        let masked: &[usize] = match packet.ip.len() {
            20 => &[1, 8, 10, 11],
            _ => &[1, 2, 3, 7],
        };
        for i in 0..packet.ip.len() {
            packet.ip[i] ^= 0x80;
            assert_eq!(packet.icrc(&rest) == icrc, masked.contains(&i), "ip {i}");
            packet.ip[i] ^= 0x80;
        }
        for i in 0..UDP {
            packet.udp[i] ^= 0x80;
            assert_eq!(packet.icrc(&rest) == icrc, i >= 6, "udp {i}");
            packet.udp[i] ^= 0x80;
        }
        for i in 0..Bth::LEN {
            packet.payload[i] ^= 0x80;
            assert_eq!(packet.icrc(&rest) == icrc, i == 4, "bth {i}");
            packet.payload[i] ^= 0x80;
        }
        for i in 0..rest.len() {
            let mut rest = rest.clone();
            rest[i] ^= 1;
            assert_ne!(packet.icrc(&rest), icrc, "payload {i}");
        }
    }
}

#[test]
fn every_packet_is_parsed_and_emitted_as_it_was() {
    for captured in all() {
        let bytes = &captured.payload;
        let packet = Packet::parse(bytes, bytes.len()).unwrap();
        let mut emitted = [0; 64];
        let length = packet.emit(&mut emitted);
        assert_eq!(length, packet.payload_offset as usize);
        assert_eq!(emitted[..length], bytes[..length], "{packet}");
        assert_eq!(
            length + packet.payload_len as usize + usize::from(packet.bth.pad) + 4,
            bytes.len(),
            "{packet}"
        );
        // The headers alone are enough, one byte less is not.
        assert_eq!(Packet::parse(&bytes[..length], bytes.len()), Ok(packet));
        assert!(Packet::parse(&bytes[..length - 1], bytes.len()).is_err());
    }
}

#[test]
fn tshark_agrees() {
    for captured in all() {
        let packet = Packet::parse(&captured.payload, captured.payload.len()).unwrap();
        let bth = packet.bth;
        let reth = packet.reth;
        let atomic = packet.atomic;
        let va = reth.map(|r| r.va).or(atomic.map(|a| a.va));
        let rkey = reth.map(|r| r.rkey).or(atomic.map(|a| a.rkey));
        let ours = [
            Some(u64::from(bth.opcode.to_u8())),
            Some(u64::from(bth.solicited)),
            Some(u64::from(bth.migreq)),
            Some(u64::from(bth.pad)),
            Some(u64::from(bth.pkey.0)),
            Some(u64::from(bth.dest_qp.get())),
            Some(u64::from(bth.ack_req)),
            Some(u64::from(bth.psn.get())),
            packet.deth.map(|d| u64::from(d.qkey.0)),
            packet.deth.map(|d| u64::from(d.src_qp.get())),
            va,
            rkey.map(|r| u64::from(r.0)),
            reth.map(|r| u64::from(r.length)),
            atomic.map(|a| a.swap_add),
            atomic.map(|a| a.compare),
            packet.aeth.map(|a| u64::from(a.syndrome.to_u8())),
            packet.aeth.map(|a| u64::from(a.msn.get())),
            packet.atomic_ack,
        ];
        for (index, value) in ours.into_iter().enumerate() {
            assert_eq!(captured.number(index), value, "column {index} of {packet}");
        }
        let imm = packet
            .imm
            .map(|imm| imm.map(|b| format!("{b:02x}")).concat());
        let theirs = captured.fields[18].split(',').next();
        assert_eq!(theirs, Some(imm.unwrap_or_default().as_str()), "{packet}");
    }
}

#[test]
fn the_captures_hold_every_opcode_and_every_padding() {
    for (name, packets) in [
        (
            "IPv4",
            captures(
                include_bytes!("golden/rxe-ipv4.pcap"),
                include_str!("golden/rxe-ipv4.tsv"),
            ),
        ),
        (
            "IPv6",
            captures(
                include_bytes!("golden/rxe-ipv6.pcap"),
                include_str!("golden/rxe-ipv6.tsv"),
            ),
        ),
    ] {
        let seen: BTreeSet<(u8, u8)> = packets
            .iter()
            .chain(&placement())
            .map(|p| Packet::parse(&p.payload, p.payload.len()).unwrap().bth)
            .map(|bth| (bth.opcode.to_u8(), bth.pad))
            .collect();
        for opcode in (0..=255).filter_map(roce::wire::Opcode::from_u8) {
            use roce::wire::Opcode::{
                Cnp,
                RcAtomicWrite,
                RcSendLastInv,
                RcSendOnlyInv, //
            };
            // rxe has no XRC.
            if opcode.transport() == roce::wire::Transport::Xrc {
                continue;
            }
            let pads = match opcode {
                // rxe sends no CNP, and an invalidation ends the connection.
                Cnp => continue,
                RcAtomicWrite | RcSendLastInv => 0..=0,
                RcSendOnlyInv => 2..=2,
                _ if opcode.has_payload() && opcode.ends_message() => 0..=3,
                _ => 0..=0,
            };
            for pad in pads {
                assert!(
                    seen.contains(&(opcode.to_u8(), pad)),
                    "{name}: no {opcode} with pad {pad}"
                );
            }
        }
    }
}
