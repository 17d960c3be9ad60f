// SPDX-License-Identifier: GPL-2.0
//! The responder against a peer that is played by hand.

mod atomic;
mod middles;
mod read;
mod unreliable;
mod xrc;

use crate::{
    cqe::{
        RecvData,
        WcStatus, //
    },
    env::{
        Counter,
        MemoryError,
        QpEvent,
        Receive,
        RemoteAccess, //
    },
    qp::state::{
        QpKind,
        QpState, //
    },
    run::PayloadSource,
    testing::{
        attributes,
        packet,
        reth,
        Node,
        BASE,
        RKEY, //
    },
    types::RKey,
    wire::{
        NakCode,
        Opcode,
        Packet,
        Syndrome, //
    },
};
use std::{
    vec,
    vec::Vec, //
};
use Opcode::*;

/// The answers that the QP has to give, as PSN and syndrome.
fn answers(node: &mut Node) -> Vec<(u32, Syndrome)> {
    let sent = node.sent();
    let syndrome = |packet: &Packet| packet.aeth.unwrap().syndrome;
    sent.iter()
        .map(|packet| (packet.bth.psn.get(), syndrome(packet)))
        .collect()
}

fn acked(psn: u32) -> Vec<(u32, Syndrome)> {
    vec![(psn, Syndrome::ACK)]
}

fn refused(psn: u32, code: NakCode) -> Vec<(u32, Syndrome)> {
    vec![(psn, Syndrome::Nak(code))]
}

fn write(opcode: Opcode, psn: u32, payload: u32, length: u32) -> Packet {
    reth(packet(opcode, psn, payload), BASE, length)
}

fn read(psn: u32, length: u32) -> Packet {
    reth(packet(RcReadRequest, psn, 0), BASE, length)
}

fn quiet(mut packet: Packet) -> Packet {
    packet.bth.ack_req = false;
    packet
}

#[test]
fn send_is_placed_and_completed() {
    let mut node = Node::rc();
    node.world.receive(7, 1000);
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(packet(RcSendMiddle, 101, 256));
    let mut last = packet(RcSendLastImm, 102, 13);
    last.bth.solicited = true;
    node.handle(last);
    assert_eq!(node.world.received, [(0, 256), (256, 256), (512, 13)]);
    let cqe = node.world.recvs[0];
    assert_eq!((cqe.wr_id, cqe.status), (7, WcStatus::Success));
    assert_eq!((cqe.byte_len, cqe.solicited), (525, true));
    assert_eq!(cqe.data, RecvData::Imm([1, 2, 3, 4]));
    let sent = node.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].bth.psn.get(), 102);
    assert_eq!(sent[0].aeth.unwrap().msn.get(), 1);
    assert!(node.sent().is_empty());
}

#[test]
fn acks_are_coalesced_and_sent_only_when_asked_for() {
    let mut node = Node::rc();
    for id in 0..4 {
        node.world.receive(id, 10);
    }
    node.handle(quiet(packet(RcSendOnly, 100, 5)));
    assert!(node.sent().is_empty());
    node.handle(packet(RcSendOnly, 101, 5));
    node.handle(packet(RcSendOnly, 102, 5));
    node.handle(quiet(packet(RcSendOnly, 103, 5)));
    let sent = node.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].bth.psn.get(), 103);
    assert_eq!(sent[0].aeth.unwrap().msn.get(), 4);
}

#[test]
fn one_sequence_nak_a_gap() {
    let mut node = Node::rc();
    for id in 0..9 {
        node.world.receive(id, 10);
    }
    node.handle(packet(RcSendOnly, 100, 5));
    node.handle(packet(RcSendOnly, 102, 5));
    assert_eq!(answers(&mut node), refused(101, NakCode::PsnSequence));
    node.handle(packet(RcSendOnly, 103, 5));
    node.handle(packet(RcSendOnly, 104, 5));
    assert!(node.sent().is_empty());
    assert_eq!(node.world.counted(Counter::OutOfSequence), 3);
    // The peer has gone back, and 101 was lost again.
    node.handle(packet(RcSendOnly, 102, 5));
    assert_eq!(answers(&mut node), refused(101, NakCode::PsnSequence));
    node.handle(packet(RcSendOnly, 101, 5));
    node.handle(packet(RcSendOnly, 103, 5));
    assert_eq!(answers(&mut node), refused(102, NakCode::PsnSequence));
    node.handle(packet(RcSendOnly, 102, 5));
    assert_eq!(answers(&mut node), acked(102));
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_nak_that_was_not_yet_sent_names_what_is_missing_now() {
    let mut node = Node::rc();
    for id in 0..9 {
        node.world.receive(id, 10);
    }
    node.handle(packet(RcSendOnly, 101, 5));
    node.handle(packet(RcSendOnly, 100, 5));
    assert_eq!(answers(&mut node), refused(101, NakCode::PsnSequence));
    node.handle(packet(RcSendOnly, 102, 5));
    node.handle(packet(RcSendOnly, 101, 5));
    node.handle(packet(RcSendOnly, 102, 5));
    assert_eq!(answers(&mut node), acked(102));
}

#[test]
fn duplicates_are_acknowledged_and_not_executed() {
    let mut node = Node::rc();
    node.world.receive(1, 10);
    node.handle(packet(RcSendOnly, 100, 5));
    node.handle(write(RcWriteOnly, 101, 5, 5));
    node.sent();
    node.handle(packet(RcSendOnly, 100, 5));
    node.handle(write(RcWriteOnly, 101, 5, 5));
    assert_eq!(answers(&mut node), acked(101));
    assert_eq!(node.world.recvs.len(), 1);
    assert_eq!(node.world.written.len(), 1);
    assert_eq!(node.world.counted(Counter::DuplicateRequest), 2);
}

#[test]
fn no_receive_is_an_rnr_nak_and_the_message_starts_again() {
    let mut node = Node::rc();
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(packet(RcSendLast, 101, 5));
    assert_eq!(answers(&mut node), [(100, Syndrome::RnrNak { timer: 12 })]);
    assert_eq!(node.world.counted(Counter::RnrSent), 1);
    node.world.receive(1, 500);
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(packet(RcSendLast, 101, 5));
    assert_eq!(answers(&mut node), acked(101));
    assert_eq!(node.world.recvs[0].byte_len, 261);
}

#[test]
fn a_message_may_wait_for_a_receive() {
    for first in [
        packet(RcSendOnly, 100, 256),
        write(RcWriteOnlyImm, 100, 256, 256),
    ] {
        let mut node = Node::rc();
        node.world.receives.push_back(Receive::Soon);
        node.handle(first);
        assert_eq!(answers(&mut node), []);
        assert_eq!(node.world.counted(Counter::RnrSent), 0);
        assert!(node.world.written.is_empty() && node.world.recvs.is_empty());
        node.world.receive(1, 500);
        node.handle(first);
        assert_eq!(answers(&mut node), acked(100));
        assert_eq!(node.world.recvs.len(), 1);
    }
}

#[test]
fn write_with_immediate_needs_a_receive_at_its_last_packet_only() {
    let mut node = Node::rc();
    node.handle(write(RcWriteFirst, 100, 256, 300));
    node.handle(packet(RcWriteLastImm, 101, 44));
    assert_eq!(answers(&mut node), [(101, Syndrome::RnrNak { timer: 12 })]);
    node.world.receive(1, 0);
    node.handle(packet(RcWriteLastImm, 101, 44));
    assert_eq!(answers(&mut node), acked(101));
    assert_eq!(node.world.written, [(BASE, 256), (BASE + 256, 44)]);
    let cqe = node.world.recvs[0];
    assert!(cqe.write_imm);
    assert_eq!(cqe.byte_len, 300);
    assert_eq!(cqe.data, RecvData::Imm([1, 2, 3, 4]));
}

#[test]
fn send_with_invalidate() {
    let mut node = Node::rc();
    node.world.receive(1, 10);
    node.handle(packet(RcSendOnlyInv, 100, 5));
    assert_eq!(node.world.recvs[0].data, RecvData::Invalidated(RKEY));
    assert_eq!(answers(&mut node), acked(100));
    node.world.receive(2, 10);
    node.world.deny_invalidate = true;
    node.handle(packet(RcSendOnlyInv, 101, 5));
    assert_eq!(node.world.recvs[1].status, WcStatus::MwBindErr);
    assert_eq!(answers(&mut node), refused(101, NakCode::RemoteAccess));
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn payload_lengths() {
    let one = |packet: Packet| vec![packet];
    let after_first = |packet: Packet| vec![packet_first(), packet];
    fn packet_first() -> Packet {
        packet(RcSendFirst, 100, 256)
    }
    let after_write = |packet: Packet| vec![write(RcWriteFirst, 100, 256, 600), packet];
    let bad = [
        one(packet(RcSendFirst, 100, 255)),
        one(packet(RcSendFirst, 100, 257)),
        one(packet(RcSendFirst, 100, 0)),
        one(packet(RcSendOnly, 100, 257)),
        after_first(packet(RcSendMiddle, 101, 255)),
        after_first(packet(RcSendMiddle, 101, 257)),
        after_first(packet(RcSendLast, 101, 0)),
        after_first(packet(RcSendLast, 101, 257)),
        one(write(RcWriteOnly, 100, 5, 6)),
        one(write(RcWriteOnly, 100, 6, 5)),
        one(write(RcWriteOnly, 100, 257, 257)),
        one(write(RcWriteFirst, 100, 256, 256)),
        one(write(RcWriteFirst, 100, 255, 600)),
        one(write(RcWriteFirst, 100, 256, (1 << 31) + 1)),
        one(write(RcWriteOnly, 100, 0, u32::MAX)),
        after_write(packet(RcWriteMiddle, 101, 255)),
        after_write(packet(RcWriteLast, 101, 256)),
        after_write(packet(RcWriteLast, 101, 0)),
        vec![
            write(RcWriteFirst, 100, 256, 512),
            packet(RcWriteMiddle, 101, 256),
        ],
        one(read(100, (1 << 31) + 1)),
    ];
    for packets in bad {
        let mut node = Node::rc();
        node.world.receive(1, 10_000);
        let psn = 99 + packets.len() as u32;
        for packet in &packets {
            node.handle(*packet);
        }
        assert_eq!(
            answers(&mut node),
            refused(psn, NakCode::InvalidRequest),
            "{packets:?}"
        );
        assert_eq!(node.qp.state(), QpState::Err);
    }
    let good = [
        one(packet(RcSendOnly, 100, 0)),
        one(packet(RcSendOnly, 100, 256)),
        after_first(packet(RcSendLast, 101, 1)),
        after_first(packet(RcSendLast, 101, 256)),
        one(write(RcWriteOnly, 100, 0, 0)),
        one(write(RcWriteFirst, 100, 256, 1 << 31)),
        vec![
            write(RcWriteFirst, 100, 256, 600),
            packet(RcWriteMiddle, 101, 256),
            packet(RcWriteLast, 102, 88),
        ],
    ];
    for packets in good {
        let mut node = Node::rc();
        node.world.receive(1, 10_000);
        for packet in &packets {
            node.handle(*packet);
        }
        assert_eq!(node.qp.state(), QpState::Rts, "{packets:?}");
    }
}

#[test]
fn order_of_opcodes() {
    let starts = [
        packet(RcSendFirst, 100, 256),
        write(RcWriteFirst, 100, 256, 600),
    ];
    let wrong: [&[Packet]; 2] = [
        &[
            packet(RcSendFirst, 101, 256),
            packet(RcSendOnly, 101, 5),
            packet(RcWriteMiddle, 101, 256),
            packet(RcWriteLast, 101, 5),
            write(RcWriteOnly, 101, 5, 5),
            read(101, 5),
        ],
        &[
            packet(RcSendMiddle, 101, 256),
            packet(RcSendOnly, 101, 5),
            write(RcWriteFirst, 101, 256, 600),
            read(101, 5),
        ],
    ];
    for (start, wrong) in starts.iter().zip(wrong) {
        for second in wrong {
            let mut node = Node::rc();
            node.world.receive(1, 10_000);
            node.handle(*start);
            node.handle(*second);
            let expected = refused(101, NakCode::InvalidRequest);
            assert_eq!(answers(&mut node), expected, "{second:?}");
        }
    }
    for first in [
        RcSendMiddle,
        RcSendLast,
        RcWriteMiddle,
        RcWriteLast,
        RcFetchAdd,
    ] {
        let mut node = Node::rc();
        node.handle(packet(first, 100, 256));
        let expected = refused(100, NakCode::InvalidRequest);
        assert_eq!(answers(&mut node), expected, "{first:?}");
        assert_eq!(node.world.events, [QpEvent::ReqErr]);
    }
}

#[test]
fn a_broken_message_completes_its_receive() {
    let mut node = Node::rc();
    node.world.receive(1, 10_000);
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(packet(RcSendOnly, 101, 5));
    assert_eq!(node.world.recvs[0].status, WcStatus::RemInvReqErr);
    assert!(node.world.events.is_empty());
}

#[test]
fn a_message_longer_than_its_receive() {
    let mut node = Node::rc();
    node.world.receive(1, 300);
    node.world.receive(2, 300);
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(packet(RcSendLast, 101, 45));
    assert_eq!(node.world.recvs[0].status, WcStatus::LocLenErr);
    assert_eq!(answers(&mut node), refused(101, NakCode::InvalidRequest));
    assert_eq!(node.qp.state(), QpState::Err);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    let flushed = node.world.recvs[1];
    assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
    // A receive posted in ERR is flushed as well.
    node.world.receive(3, 300);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(node.world.recvs[2].wr_id, 3);
}

#[test]
fn bad_receive_lists() {
    let mut node = Node::rc();
    node.world.receive(1, 300);
    node.world.deny_receive = Some(MemoryError::Access);
    node.handle(packet(RcSendOnly, 100, 5));
    assert_eq!(node.world.recvs[0].status, WcStatus::LocProtErr);
    assert_eq!(answers(&mut node), refused(100, NakCode::RemoteOperational));

    let mut node = Node::rc();
    node.world.receives.push_back(Receive::Invalid { wr_id: 9 });
    node.handle(packet(RcSendOnly, 100, 5));
    let cqe = node.world.recvs[0];
    assert_eq!((cqe.wr_id, cqe.status), (9, WcStatus::LocQpOpErr));
    assert_eq!(answers(&mut node), refused(100, NakCode::RemoteOperational));
}

#[test]
fn rights() {
    let mut attr = attributes();
    attr.access.remote_read = false;
    attr.access.remote_write = false;
    for request in [write(RcWriteOnly, 100, 5, 5), read(100, 5), read(100, 0)] {
        let mut node = Node::with(QpKind::Rc, &attr);
        node.handle(request);
        assert_eq!(answers(&mut node), refused(100, NakCode::InvalidRequest));
    }
    for mut request in [write(RcWriteOnly, 100, 5, 5), read(100, 5)] {
        request.reth.as_mut().unwrap().rkey = RKey(1);
        let mut node = Node::rc();
        node.handle(request);
        assert_eq!(answers(&mut node), refused(100, NakCode::RemoteAccess));
        assert_eq!(node.world.events, [QpEvent::AccessErr]);
        assert_eq!(node.world.counted(Counter::AccessViolation), 1);
    }
    // Nothing needs no key.
    for mut request in [write(RcWriteOnly, 100, 0, 0), read(100, 0)] {
        request.reth.as_mut().unwrap().rkey = RKey(1);
        let mut node = Node::rc();
        node.handle(request);
        assert_eq!(node.qp.state(), QpState::Rts);
        assert!(node.world.checked.is_empty());
    }
}

#[test]
fn rights_are_checked_for_every_packet() {
    let mut node = Node::rc();
    node.handle(write(RcWriteFirst, 100, 256, 600));
    node.world.deny_remote = Some(MemoryError::Access);
    node.handle(packet(RcWriteMiddle, 101, 256));
    assert_eq!(answers(&mut node), refused(101, NakCode::RemoteAccess));
}

#[test]
fn states_and_transports() {
    let mut node = Node::reset(QpKind::Rc);
    let attr = attributes();
    node.world.receive(1, 10);
    node.world.receive(2, 10);
    node.handle(packet(RcSendOnly, 100, 5));
    node.go(&attr, QpState::Init);
    node.handle(packet(RcSendOnly, 100, 5));
    assert_eq!(node.world.counted(Counter::DropState), 2);
    node.go(&attr, QpState::Rtr);
    node.handle(packet(UdSendOnly, 100, 5));
    assert_eq!(node.world.counted(Counter::DropTransport), 1);
    let mut foreign = packet(RcSendOnly, 100, 5);
    foreign.bth.pkey = crate::types::PKey(0x8001);
    node.handle(foreign);
    assert_eq!(node.world.counted(Counter::DropPKey), 1);
    node.handle(packet(RcAcknowledge, 100, 0));
    assert_eq!(node.world.counted(Counter::DropState), 3);
    assert!(node.world.events.is_empty());
    node.handle(packet(RcSendOnly, 100, 5));
    node.handle(packet(RcSendOnly, 101, 5));
    assert_eq!(node.world.events, [QpEvent::CommEst]);
    assert_eq!(answers(&mut node), acked(101));
}

/// Devices differ in the bit for path migration, and switches set those for congestion.
#[test]
fn bits_that_say_nothing_to_this_device_are_ignored() {
    for bits in 0..8 {
        let mut node = Node::rc();
        node.world.receive(1, 1000);
        for mut packet in [
            packet(RcSendFirst, 100, 256),
            packet(RcSendLast, 101, 5),
            write(RcWriteOnly, 102, 5, 5),
            read(103, 5),
        ] {
            packet.bth.migreq = bits & 1 != 0;
            packet.bth.fecn = bits & 2 != 0;
            packet.bth.becn = bits & 4 != 0;
            node.handle(packet);
        }
        assert_eq!(node.world.recvs[0].byte_len, 261, "{bits}");
        assert_eq!(node.world.written, [(BASE, 5)]);
        let sent = node.ladder();
        assert_eq!(sent, [(RcReadResponseOnly, 103, 5)]);
        assert_eq!(node.qp.state(), QpState::Rts);
    }
}

#[test]
fn a_full_cq_is_fatal_and_the_peer_learns_of_it() {
    let mut node = Node::rc();
    node.world.receive(1, 10);
    node.world.cq_full = true;
    node.handle(packet(RcSendOnly, 100, 5));
    assert_eq!(node.world.events, [QpEvent::Fatal]);
    assert_eq!(answers(&mut node), refused(100, NakCode::RemoteOperational));
}
