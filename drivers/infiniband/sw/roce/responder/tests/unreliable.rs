// SPDX-License-Identifier: GPL-2.0
//! Unreliable connections: what is received, and what is dropped without a word.

use super::*;

fn uc() -> Node {
    Node::with(QpKind::Uc, &attributes())
}

fn first(psn: u32) -> Packet {
    packet(UcSendFirst, psn, 256)
}

fn middle(psn: u32) -> Packet {
    packet(UcSendMiddle, psn, 256)
}

fn last(psn: u32, payload: u32) -> Packet {
    packet(UcSendLast, psn, payload)
}

fn only(psn: u32, payload: u32) -> Packet {
    packet(UcSendOnly, psn, payload)
}

/// Identifier, status and length of the receives that completed.
fn received(node: &Node) -> Vec<(u64, WcStatus, u32)> {
    let cqes = node.world.recvs.iter();
    cqes.map(|c| (c.wr_id, c.status, c.byte_len)).collect()
}

/// It works on, says nothing and tells of nothing.
fn is_silent(node: &mut Node) {
    assert!(node.sent().is_empty());
    assert!(node.world.events.is_empty(), "{:?}", node.world.events);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn messages_of_all_kinds() {
    let mut node = uc();
    for id in 1..=4 {
        node.world.receive(id, 1000);
    }
    node.handle(first(100));
    node.handle(middle(101));
    node.handle(last(102, 7));
    node.handle(packet(UcSendOnlyImm, 103, 0));
    node.handle(reth(packet(UcWriteFirst, 104, 256), BASE, 300));
    node.handle(packet(UcWriteLast, 105, 44));
    node.handle(reth(packet(UcWriteOnlyImm, 106, 5), BASE, 5));
    let done = WcStatus::Success;
    let expected = [(1, done, 519), (2, done, 0), (3, done, 5)];
    assert_eq!(received(&node), expected);
    assert_eq!(
        node.world.written,
        [(BASE, 256), (BASE + 256, 44), (BASE, 5)]
    );
    assert!(node.world.recvs[2].write_imm);
    is_silent(&mut node);
}

/// Each packet of a message in turn meets memory that is not there, and is handed in again later.
#[test]
fn what_waits_for_pages_is_not_lost() {
    let sends = [first(100), middle(101), last(102, 9)];
    let writes = [
        reth(packet(UcWriteFirst, 100, 256), BASE, 521),
        packet(UcWriteMiddle, 101, 256),
        packet(UcWriteLastImm, 102, 9),
    ];
    for message in [sends, writes] {
        for late in 0..3 {
            let mut node = uc();
            node.world.receive(1, 1000);
            for (number, packet) in message.iter().enumerate() {
                if number == late {
                    node.world.not_resident = true;
                    node.handle(*packet);
                    node.world.not_resident = false;
                }
                node.handle(*packet);
            }
            assert_eq!(received(&node), [(1, WcStatus::Success, 521)]);
            node.handle(only(103, 0));
            is_silent(&mut node);
        }
    }
}

/// Loses each packet of a message in turn: the message is dropped, and the next one comes whole,
/// whether its first packet is the first or the only one.
#[test]
fn any_lost_packet_drops_its_message_only() {
    let sends = || [first(100), middle(101), last(102, 9)];
    let writes = || {
        [
            reth(packet(UcWriteFirst, 100, 256), BASE, 600),
            packet(UcWriteMiddle, 101, 256),
            packet(UcWriteLast, 102, 88),
        ]
    };
    for message in [sends(), writes()] {
        for lost in 0..3 {
            let nexts = [
                vec![only(103, 3)],
                vec![first(103), last(104, 1)],
                vec![reth(packet(UcWriteOnly, 103, 3), BASE, 3)],
                vec![
                    reth(packet(UcWriteFirst, 103, 256), BASE, 257),
                    packet(UcWriteLast, 104, 1),
                ],
            ];
            for next in nexts {
                let mut node = uc();
                node.world.receive(1, 1000);
                node.world.receive(2, 1000);
                for (number, packet) in message.iter().enumerate() {
                    if number != lost {
                        node.handle(*packet);
                    }
                }
                assert!(node.world.recvs.is_empty(), "lost {lost}");
                let before = node.world.written.len();
                let is_send = next[0].reth.is_none();
                let packets = next.len();
                for packet in next {
                    node.handle(packet);
                }
                if is_send {
                    let [(1, WcStatus::Success, _)] = received(&node)[..] else {
                        panic!("lost {lost}: {:?}", node.world.recvs);
                    };
                } else {
                    assert_eq!(node.world.written.len(), before + packets, "lost {lost}");
                }
                is_silent(&mut node);
            }
        }
    }
}

#[test]
fn the_buffer_of_a_dropped_message_is_used_from_its_start() {
    let mut node = uc();
    node.world.receive(1, 1000);
    node.handle(first(100));
    node.handle(first(105));
    node.handle(last(106, 4));
    assert_eq!(node.world.received, [(0, 256), (0, 256), (256, 4)]);
    assert_eq!(received(&node), [(1, WcStatus::Success, 260)]);
    assert_eq!(node.world.counted(Counter::OutOfSequence), 1);
}

#[test]
fn late_and_doubled_packets_are_dropped() {
    let mut node = uc();
    for id in 1..=3 {
        node.world.receive(id, 1000);
    }
    node.handle(only(100, 1));
    node.handle(only(100, 1));
    node.handle(only(102, 2));
    // It was overtaken: messages stay in order.
    node.handle(only(101, 3));
    node.handle(only(103, 4));
    let done = WcStatus::Success;
    assert_eq!(received(&node), [(1, done, 1), (2, done, 2), (3, done, 4)]);
    assert_eq!(node.world.counted(Counter::DuplicateRequest), 2);
    is_silent(&mut node);

    // Half of all PSNs later, and more, is a gap all the same.
    node.world.receive(4, 1000);
    node.handle(only(103u32.wrapping_sub(5000) & 0xff_ffff, 5));
    assert_eq!(received(&node).last(), Some(&(4, done, 5)));
}

#[test]
fn without_a_receive_the_message_is_dropped() {
    let mut node = uc();
    node.handle(first(100));
    node.world.receive(1, 1000);
    node.handle(middle(101));
    node.handle(last(102, 1));
    assert!(node.world.recvs.is_empty());
    assert_eq!(node.world.counted(Counter::DropNoReceive), 1);
    assert_eq!(node.world.counted(Counter::DropSequence), 2);
    node.handle(only(103, 1));
    assert_eq!(received(&node), [(1, WcStatus::Success, 1)]);

    node.handle(reth(packet(UcWriteOnlyImm, 104, 5), BASE, 5));
    assert!(node.world.written.is_empty());
    assert_eq!(node.world.counted(Counter::RnrSent), 0);
    is_silent(&mut node);
}

#[test]
fn what_is_wrong_with_a_message_hurts_it_alone() {
    let mut foreign = reth(packet(UcWriteOnly, 100, 5), BASE, 5);
    foreign.reth.as_mut().unwrap().rkey = RKey(1);
    let cases: [Vec<Packet>; 9] = [
        vec![foreign],
        vec![middle(100), last(101, 1)],
        vec![packet(UcWriteMiddle, 100, 256)],
        vec![packet(UcSendFirst, 100, 255), middle(101), last(102, 1)],
        vec![only(100, 257)],
        vec![first(100), last(101, 0)],
        vec![first(100), packet(UcWriteLast, 101, 5)],
        vec![reth(packet(UcWriteOnly, 100, 5), BASE, 6)],
        // Longer than the receive.
        vec![
            first(100),
            middle(101),
            middle(102),
            middle(103),
            last(104, 1),
        ],
    ];
    for packets in cases {
        let mut node = uc();
        node.world.receive(1, 1000);
        for packet in &packets {
            node.handle(*packet);
        }
        assert!(node.world.recvs.is_empty(), "{packets:?}");
        node.handle(only(110, 1));
        assert_eq!(received(&node), [(1, WcStatus::Success, 1)], "{packets:?}");
        is_silent(&mut node);
    }

    let mut attr = attributes();
    attr.access.remote_write = false;
    let mut node = Node::with(QpKind::Uc, &attr);
    node.handle(reth(packet(UcWriteOnly, 100, 5), BASE, 5));
    assert!(node.world.written.is_empty());
    is_silent(&mut node);
}

#[test]
fn a_receive_that_is_to_blame_ends_the_qp() {
    let mut node = uc();
    node.world.receive(1, 1000);
    node.world.deny_receive = Some(MemoryError::Access);
    node.handle(only(100, 1));
    assert_eq!(received(&node), [(1, WcStatus::LocProtErr, 0)]);
    assert_eq!(node.qp.state(), QpState::Err);
    assert!(node.sent().is_empty());

    let mut node = uc();
    node.world.receives.push_back(Receive::Invalid { wr_id: 9 });
    node.handle(only(100, 1));
    assert_eq!(received(&node), [(9, WcStatus::LocQpOpErr, 0)]);
    assert_eq!(node.qp.state(), QpState::Err);

    let mut node = uc();
    node.world.receive(1, 1000);
    node.world.cq_full = true;
    node.handle(only(100, 1));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.events, [QpEvent::Fatal]);
    assert!(node.sent().is_empty());
}

#[test]
fn packets_of_other_transports() {
    let mut node = uc();
    node.world.receive(1, 1000);
    for opcode in [RcSendOnly, RcAcknowledge, UdSendOnly, RcReadRequest] {
        node.handle(packet(opcode, 100, 0));
    }
    assert_eq!(node.world.counted(Counter::DropTransport), 4);
    assert!(node.world.recvs.is_empty());
    is_silent(&mut node);
    // A packet that asks for an answer gets none.
    let mut asks = only(100, 1);
    asks.bth.ack_req = true;
    node.handle(asks);
    is_silent(&mut node);
}
