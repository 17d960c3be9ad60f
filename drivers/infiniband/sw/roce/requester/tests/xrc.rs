// SPDX-License-Identifier: GPL-2.0
//! The initiator of an extended reliable connection: each request names a queue at the peer.

use super::*;
use crate::{qp::state::QpKind, types::Srqn, wire::Transport, wqe::AtomicOp};

fn initiator() -> Node {
    Node::with(QpKind::XrcIni, &attributes())
}

fn post_to(node: &mut Node, srq: u32, wr_id: u64, op: SendOp, length: u32) {
    let mut wqe = SendWqe::new(wr_id, op, length);
    wqe.srq = Srqn::new(srq);
    node.qp.post(wqe).unwrap();
}

fn over_xrc(mut packet: crate::wire::Packet) -> crate::wire::Packet {
    packet.bth.opcode = packet.bth.opcode.over(Transport::Xrc);
    packet
}

#[test]
fn every_request_names_its_queue() {
    let mut node = initiator();
    post_to(&mut node, 3, 1, SendOp::SendImm([1; 4]), 600);
    post_to(&mut node, 0x12_3456, 2, WRITE, 300);
    post_to(&mut node, 3, 3, READ, 700);
    let add = SendOp::Atomic {
        va: BASE,
        rkey: RKEY,
        op: AtomicOp::FetchAdd(1),
    };
    post_to(&mut node, 9, 4, add, 8);
    let sent = node.sent();
    let short: Vec<_> = sent
        .iter()
        .map(|p| (p.bth.opcode, p.xrceth.unwrap().get()))
        .collect();
    assert_eq!(
        short,
        [
            (XrcSendFirst, 3),
            (XrcSendMiddle, 3),
            (XrcSendLastImm, 3),
            (XrcWriteFirst, 0x12_3456),
            (XrcWriteLast, 0x12_3456),
            (XrcReadRequest, 3),
            (XrcFetchAdd, 9),
        ]
    );
    assert_eq!(sent[6].payload_offset, 44);
    node.handle(over_xrc(ack(104)));
    for (opcode, psn, length) in [
        (XrcReadResponseFirst, 105, 256),
        (XrcReadResponseMiddle, 106, 256),
        (XrcReadResponseLast, 107, 188),
    ] {
        node.handle(packet(opcode, psn, length));
    }
    let mut found = packet(XrcAtomicAcknowledge, 108, 0);
    found.atomic_ack = Some(41);
    node.handle(found);
    let ok = WcStatus::Success;
    assert_eq!(node.statuses(), [(1, ok), (2, ok), (3, ok), (4, ok)]);
    assert_eq!(node.world.results, [(3, 41)]);
}

#[test]
fn what_is_lost_is_sent_again_for_the_same_queue() {
    let mut node = initiator();
    post_to(&mut node, 3, 1, SendOp::Send, 300);
    let first = node.sent();
    node.timeout();
    assert_eq!(node.sent(), first);
    node.handle(over_xrc(nak(101, NakCode::PsnSequence)));
    assert_eq!(node.sent()[..], first[1..]);
    node.handle(over_xrc(nak(101, NakCode::RemoteAccess)));
    assert_eq!(node.statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn it_takes_nothing_but_responses() {
    let mut node = initiator();
    node.world.receive(1, 100);
    let mut request = over_xrc(packet(RcSendOnly, 100, 5));
    request.xrceth = Some(Srqn::new(3));
    node.handle(request);
    node.handle(ack(100));
    assert_eq!(node.world.counted(Counter::DropTransport), 2);
    assert!(node.sent().is_empty() && node.world.recvs.is_empty());
}
