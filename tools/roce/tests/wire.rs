// SPDX-License-Identifier: GPL-2.0
//! Properties of the wire formats: whatever the bytes, whatever the values.

use proptest::{
    option,
    prelude::*, //
};
use roce::{
    types::{
        Msn,
        PKey,
        Psn,
        QKey,
        Qpn,
        RKey,
        Srqn, //
    },
    wire::{
        Aeth,
        AtomicEth,
        Bth,
        Deth,
        Error,
        Feth,
        Opcode,
        Packet,
        Reth,
        Selectivity,
        Syndrome,
        ICRC_LEN,
        MAX_HEADER_LEN, //
    },
};

fn opcodes() -> Vec<Opcode> {
    (0..=255).filter_map(Opcode::from_u8).collect()
}

prop_compose! {
    fn bth(opcode: Opcode)(
        flags in any::<[bool; 5]>(),
        pad in 0..4u8,
        pkey: u16,
        dest_qp: u32,
        psn: u32,
    ) -> Bth {
        let [solicited, migreq, ack_req, fecn, becn] = flags;
        Bth {
            opcode,
            solicited,
            migreq,
            pad: if opcode.has_payload() { pad } else { 0 },
            pkey: PKey(pkey),
            dest_qp: Qpn::new(dest_qp),
            ack_req,
            psn: Psn::new(psn),
            fecn,
            becn,
        }
    }
}

prop_compose! {
    /// A packet with all that its opcode has, and nothing else.
    fn packet()(opcode in proptest::sample::select(opcodes()))(
        bth in bth(opcode),
        numbers in any::<[u64; 4]>(),
        words in any::<[u32; 8]>(),
        syndrome in (0..=255u8).prop_filter_map("reserved", |v| Syndrome::from_u8(v).ok()),
        payload_words in 1..1100u32,
    ) -> Packet {
        let opcode = bth.opcode;
        let mut packet = Packet::new(bth);
        packet.deth = opcode.has_deth().then_some(Deth {
            qkey: QKey(words[0]),
            src_qp: Qpn::new(words[1]),
        });
        packet.xrceth = opcode.has_xrceth().then_some(Srqn::new(words[1]));
        packet.feth = opcode.has_feth().then_some(Feth {
            global: words[7] & 1 != 0,
            persistent: words[7] & 2 != 0,
            reserved: words[7] & 4 != 0,
            selectivity: match (words[7] >> 4) & 3 {
                0 => Selectivity::Range,
                1 => Selectivity::Region,
                _ => Selectivity::Reserved,
            },
        });
        packet.reth = opcode.has_reth().then_some(Reth {
            va: numbers[0],
            rkey: RKey(words[2]),
            length: words[3],
        });
        packet.atomic = opcode.has_atomic().then_some(AtomicEth {
            va: numbers[0],
            rkey: RKey(words[2]),
            swap_add: numbers[1],
            compare: numbers[2],
        });
        packet.aeth = opcode.has_aeth().then_some(Aeth {
            syndrome,
            msn: Msn::new(words[4]),
        });
        packet.atomic_ack = opcode.has_atomic_ack().then_some(numbers[3]);
        packet.imm = opcode.has_imm().then_some(words[5].to_be_bytes());
        packet.ieth = opcode.has_ieth().then_some(RKey(words[6]));
        if opcode.has_payload() {
            packet.payload_len = payload_words * 4 - u32::from(bth.pad);
        }
        packet
    }
}

/// The length of the UDP payload that carries this packet.
fn udp_payload_len(packet: &Packet) -> usize {
    packet.bth.opcode.header_len()
        + packet.payload_len as usize
        + usize::from(packet.bth.pad)
        + ICRC_LEN
}

proptest! {
    #[test]
    fn round_trip(packet in packet()) {
        let mut bytes = [0; MAX_HEADER_LEN];
        let length = packet.emit(&mut bytes);
        prop_assert_eq!(length, packet.bth.opcode.header_len());
        prop_assert_eq!(length, packet.payload_offset as usize);
        let parsed = Packet::parse(&bytes[..length], udp_payload_len(&packet));
        prop_assert_eq!(parsed, Ok(packet));
        // More bytes at hand make no difference.
        let parsed = Packet::parse(&bytes, udp_payload_len(&packet));
        prop_assert_eq!(parsed, Ok(packet));
        prop_assert!(!packet.to_string().contains('\n'));
    }

    #[test]
    fn truncated_at_each_byte(packet in packet()) {
        let mut bytes = [0; MAX_HEADER_LEN];
        let length = packet.emit(&mut bytes);
        let whole = udp_payload_len(&packet);
        for cut in 0..length {
            // The caller has less than the headers of a whole packet.
            prop_assert_eq!(Packet::parse(&bytes[..cut], whole), Err(Error::Truncated));
            // The packet ends there.
            let parsed = Packet::parse(&bytes[..cut], cut);
            prop_assert!(parsed.is_err());
            // There is not enough room to write to.
            prop_assert_eq!(packet.emit(&mut [0; MAX_HEADER_LEN][..cut]), 0);
        }
        // The packet ends before the ICRC does, or amid its padding.
        for cut in length..length + ICRC_LEN {
            prop_assert_eq!(Packet::parse(&bytes, cut), Err(Error::Length));
        }
        let no_payload = Packet::parse(&bytes, length + ICRC_LEN);
        prop_assert_eq!(no_payload.err(), (packet.bth.pad != 0).then_some(Error::Pad));
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80), length in 0..5000usize) {
        for length in [length, bytes.len(), usize::MAX, usize::MAX & !3] {
            if let Ok(packet) = Packet::parse(&bytes, length) {
                // What was parsed is what would have been sent, but for reserved bits.
                let mut emitted = [0; MAX_HEADER_LEN];
                let headers = packet.emit(&mut emitted);
                prop_assert_eq!(headers, packet.bth.opcode.header_len());
                prop_assert_eq!(Packet::parse(&emitted[..headers], length), Ok(packet));
                prop_assert_eq!(udp_payload_len(&packet), length);
                let _ = packet.to_string();
            }
        }
    }

    #[test]
    fn valid_opcode_then_any_bytes(
        opcode in proptest::sample::select(opcodes()),
        mut bytes in proptest::collection::vec(any::<u8>(), 64),
        words in 0..300usize,
    ) {
        bytes[0] = opcode.to_u8();
        bytes[1] &= 0xf0;
        match Packet::parse(&bytes, words * 4) {
            Ok(packet) => {
                prop_assert_eq!(packet.bth.opcode, opcode);
                prop_assert_eq!(packet.deth.is_some(), opcode.has_deth());
                prop_assert_eq!(packet.xrceth.is_some(), opcode.has_xrceth());
                prop_assert_eq!(packet.feth.is_some(), opcode.has_feth());
                prop_assert_eq!(packet.reth.is_some(), opcode.has_reth());
                prop_assert_eq!(packet.atomic.is_some(), opcode.has_atomic());
                prop_assert_eq!(packet.aeth.is_some(), opcode.has_aeth());
                prop_assert_eq!(packet.atomic_ack.is_some(), opcode.has_atomic_ack());
                prop_assert_eq!(packet.imm.is_some(), opcode.has_imm());
                prop_assert_eq!(packet.ieth.is_some(), opcode.has_ieth());
            }
            Err(Error::Length) => prop_assert!(words * 4 < opcode.header_len() + ICRC_LEN),
            Err(Error::Pad) => prop_assert!(bytes[1] & 0x30 != 0),
            Err(Error::Payload) => prop_assert!(!opcode.has_payload()),
            Err(Error::Syndrome) => prop_assert!(opcode.has_aeth()),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn a_header_that_is_missing_is_not_made_up(packet in packet(), which in 0..9) {
        let mut short = packet;
        match which {
            0 => short.deth = None,
            1 => short.reth = None,
            2 => short.atomic = None,
            3 => short.aeth = None,
            4 => short.atomic_ack = None,
            5 => short.imm = None,
            6 => short.feth = None,
            7 => short.xrceth = None,
            _ => short.ieth = None,
        }
        let length = short.emit(&mut [0; MAX_HEADER_LEN]);
        prop_assert_eq!(length == 0, short != packet);
    }

    #[test]
    fn psn_is_a_serial_number(start: u32, n in 0..0x80_0000u32, other: u32) {
        let start = Psn::new(start);
        let later = start.add(n);
        prop_assert_eq!(later.since(start), n as i32);
        prop_assert_eq!(start.since(later), -(n as i32));
        prop_assert_eq!(later.sub(n), start);
        prop_assert_eq!(start.is_before(later), n != 0);
        prop_assert!(!later.is_before(start));
        prop_assert!(later.is_within(start, n + 1));
        prop_assert!(!later.is_within(start, n));
        prop_assert_eq!(start.add(0x100_0000), start);
        prop_assert_eq!(start.next(), start.add(1));
        prop_assert!(start.get() <= Psn::MASK);
        // Total, whatever the numbers.
        let other = Psn::new(other);
        prop_assert_eq!(start.add(other.since(start) as u32), other);
    }

    #[test]
    fn psn_survives_extremes(value: u32, n in option::of(any::<u32>())) {
        let n = n.unwrap_or(u32::MAX);
        prop_assert_eq!(Psn::new(value).add(n).sub(n), Psn::new(value));
    }
}

#[test]
fn every_opcode_byte() {
    for value in 0..=255 {
        let mut bytes = [0; 64];
        bytes[0] = value;
        let length = Opcode::from_u8(value).map_or(60, Opcode::header_len) + ICRC_LEN;
        let parsed = Packet::parse(&bytes, length);
        match Opcode::from_u8(value) {
            Some(opcode) => assert_eq!(parsed.unwrap().bth.opcode, opcode),
            None => assert_eq!(parsed, Err(Error::Opcode)),
        }
        for version in 1..16 {
            bytes[1] = version;
            assert_eq!(Packet::parse(&bytes, length), Err(Error::Version));
        }
    }
}

#[test]
fn every_syndrome_in_an_ack() {
    for value in 0..=255 {
        let mut bytes = [0; 16];
        bytes[0] = Opcode::RcAcknowledge.to_u8();
        bytes[12] = value;
        let parsed = Packet::parse(&bytes, 20).map(|p| p.aeth.unwrap().syndrome);
        assert_eq!(parsed, Syndrome::from_u8(value));
    }
}

#[test]
fn psn_wraps() {
    assert_eq!(Psn::new(Psn::MASK).next(), Psn::new(0));
    assert_eq!(Psn::new(0).sub(1), Psn::new(Psn::MASK));
    assert!(Psn::new(0xff_fff0).is_before(Psn::new(5)));
    assert!(!Psn::new(5).is_before(Psn::new(0xff_fff0)));
    // Half the circle away counts as before, from both sides.
    assert!(Psn::new(0).is_before(Psn::new(0x80_0000)));
    assert!(Psn::new(0x80_0000).is_before(Psn::new(0)));
}

#[test]
fn errors_have_distinct_values_and_texts() {
    for (index, error) in Error::ALL.into_iter().enumerate() {
        assert_eq!(error as usize, index);
        assert!(!error.to_string().is_empty());
    }
}
