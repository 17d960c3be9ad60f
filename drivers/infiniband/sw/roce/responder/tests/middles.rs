// SPDX-License-Identifier: GPL-2.0
//! Packets from the middle of a message that are handled at once.

use super::*;

/// In the middle of a SEND of which one packet was received, into 2,000 bytes.
fn in_a_send() -> Node {
    let mut node = Node::rc();
    node.world.receive(7, 2000);
    node.handle(packet(RcSendFirst, 100, 256));
    node
}

#[test]
fn of_a_send() {
    let mut node = in_a_send();
    assert!(node.handle_middles(packet(RcSendMiddle, 101, 256), 5));
    assert!(answers(&mut node).is_empty());
    node.handle(packet(RcSendLast, 106, 10));
    assert_eq!(node.world.received, [(0, 256), (256, 5 * 256), (1536, 10)]);
    assert_eq!(node.world.recvs[0].byte_len, 1546);
    assert_eq!(answers(&mut node), acked(106));
}

#[test]
fn of_a_write() {
    let mut node = Node::rc();
    node.handle(write(RcWriteFirst, 100, 256, 256 * 4));
    let mut middle = packet(RcWriteMiddle, 101, 256);
    middle.bth.ack_req = true;
    // Not what is to be the last.
    assert!(!node.handle_middles(middle, 3));
    assert!(node.handle_middles(middle, 2));
    assert_eq!(answers(&mut node), acked(102));
    node.handle(packet(RcWriteLast, 103, 256));
    let written = [(BASE, 256), (BASE + 256, 512), (BASE + 768, 256)];
    assert_eq!(node.world.written, written);
    assert_eq!(answers(&mut node), acked(103));
}

/// What is not plainly right is left to the way for one packet, which finds out what is wrong.
#[test]
fn only_what_is_right() {
    let mut node = in_a_send();
    let cases = [
        ("early", packet(RcSendMiddle, 102, 256), 2),
        ("duplicate", packet(RcSendMiddle, 100, 256), 2),
        ("short", packet(RcSendMiddle, 101, 252), 2),
        ("of another message", packet(RcWriteMiddle, 101, 256), 2),
        ("too long together", packet(RcSendMiddle, 101, 256), 7),
        (
            "longer than can be counted",
            packet(RcSendMiddle, 101, 256),
            u32::MAX,
        ),
        ("the last", packet(RcSendLast, 101, 256), 1),
        ("of another transport", packet(UcSendMiddle, 101, 256), 2),
    ];
    for (what, packet, count) in cases {
        assert!(!node.handle_middles(packet, count), "{what}");
    }
    let mut other_partition = packet(RcSendMiddle, 101, 256);
    other_partition.bth.pkey = crate::types::PKey(0x1234);
    assert!(!node.handle_middles(other_partition, 2));
    node.world.deny_receive = Some(MemoryError::Access);
    assert!(!node.handle_middles(packet(RcSendMiddle, 101, 256), 2));
    node.world.deny_receive = None;
    assert!(answers(&mut node).is_empty());
    assert!(node.world.recvs.is_empty());
    // Nothing has changed.
    assert!(node.handle_middles(packet(RcSendMiddle, 101, 256), 2));
}

#[test]
fn not_without_a_first() {
    let mut node = Node::rc();
    node.world.receive(7, 2000);
    assert!(!node.handle_middles(packet(RcSendMiddle, 100, 256), 2));
    assert!(!node.handle_middles(packet(RcReadResponseMiddle, 100, 256), 2));
}
