// SPDX-License-Identifier: GPL-2.0
//! The target of an extended reliable connection: each request says which shared receive queue it is
//! for.

use super::*;
use crate::{
    testing::atomic_eth,
    types::Srqn,
    wire::{
        Operation,
        Transport, //
    },
};

const SRQ: Srqn = Srqn::new(5);
const OTHER: Srqn = Srqn::new(6);
const FOREIGN: Srqn = Srqn::new(7);

fn target() -> Node {
    let mut node = Node::with(QpKind::XrcTgt, &attributes());
    node.world.srqs = vec![SRQ, OTHER];
    node
}

/// A packet as it would be on a reliable connection, for this queue.
fn to(srq: Srqn, mut packet: Packet) -> Packet {
    packet.bth.opcode = packet.bth.opcode.over(Transport::Xrc);
    packet.xrceth = Some(srq);
    packet
}

#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    let mut node = target();
    node.world.receive(1, 1000);
    node.world.receive(2, 1000);
    node.handle(to(SRQ, packet(RcSendFirst, 100, 256)));
    node.handle(to(SRQ, packet(RcSendLastImm, 101, 5)));
    node.handle(to(OTHER, write(RcWriteOnlyImm, 102, 7, 7)));
    node.handle(to(SRQ, write(RcWriteOnly, 103, 7, 7)));
    assert_eq!(node.world.selected, [SRQ, SRQ, OTHER, SRQ]);
    let done: Vec<_> = node
        .world
        .recvs
        .iter()
        .map(|r| (r.wr_id, r.byte_len))
        .collect();
    assert_eq!(done, [(1, 261), (2, 7)]);
    assert_eq!(node.ladder(), [(XrcAcknowledge, 103, 0)]);
}

#[test]
fn reads_and_atomics_are_answered_from_the_domain_of_the_queue() {
    let mut node = target();
    node.handle(to(OTHER, read(100, 300)));
    let add = packet(RcFetchAdd, 102, 0);
    node.handle(to(SRQ, atomic_eth(add, BASE, 0, 3)));
    let run = node.poll(64).unwrap();
    let source = PayloadSource::Remote {
        rkey: RKEY,
        va: BASE,
        srq: OTHER,
    };
    assert_eq!((run.source, run.count), (source, 2));
    let opcodes: Vec<_> = (0..2)
        .map(|n| crate::testing::parse(&run.packet(n).unwrap()).bth.opcode)
        .collect();
    assert_eq!(opcodes, [XrcReadResponseFirst, XrcReadResponseLast]);
    assert_eq!(node.ladder(), [(XrcAtomicAcknowledge, 102, 0)]);
    // Asked for again, it is looked up again, and an atomic operation is not.
    node.handle(to(OTHER, read(100, 300)));
    node.handle(to(SRQ, atomic_eth(packet(RcFetchAdd, 102, 0), BASE, 0, 3)));
    assert_eq!(node.world.selected, [OTHER, SRQ, OTHER]);
    assert_eq!(node.poll(64).unwrap().source, source);
    assert_eq!(node.world.atomics.len(), 1);
    // A queue that is gone by then refuses.
    node.world.srqs.clear();
    assert_eq!(node.ladder(), [(XrcAtomicAcknowledge, 102, 0)]);
    node.handle(to(OTHER, read(100, 300)));
    assert_eq!(answers(&mut node), refused(100, NakCode::RemoteAccess));
}

#[test]
fn a_queue_that_is_not_of_the_domain_is_refused() {
    for request in [
        packet(RcSendOnly, 100, 5),
        write(RcWriteOnly, 100, 0, 0),
        read(100, 0),
        atomic_eth(packet(RcCompareSwap, 100, 0), BASE, 1, 2),
        write(RcAtomicWrite, 100, 8, 8),
    ] {
        let mut node = target();
        node.world.receive(1, 1000);
        node.handle(to(FOREIGN, request));
        assert_eq!(node.world.events, [QpEvent::AccessErr], "{request}");
        assert_eq!(answers(&mut node), refused(100, NakCode::RemoteAccess));
        assert_eq!(node.qp.state(), QpState::Err);
        let world = &node.world;
        assert_eq!((world.receives.len(), world.recvs.len()), (1, 0));
        assert!(world.written.is_empty() && world.atomics.is_empty());
    }
}

#[test]
fn all_packets_of_a_message_name_the_same_queue() {
    for (first, second) in [
        (packet(RcSendFirst, 100, 256), packet(RcSendLast, 101, 5)),
        (
            write(RcWriteFirst, 100, 256, 261),
            packet(RcWriteLast, 101, 5),
        ),
    ] {
        let mut node = target();
        node.world.receive(1, 1000);
        node.handle(to(SRQ, first));
        node.handle(to(OTHER, second));
        assert_eq!(node.world.selected, [SRQ]);
        assert_eq!(answers(&mut node), refused(101, NakCode::InvalidRequest));
        let status = node.world.recvs.first().map(|r| r.status);
        if first.bth.opcode.operation() == Operation::Send {
            assert_eq!(status, Some(WcStatus::RemInvReqErr));
        } else {
            assert_eq!(
                (status, &*node.world.events),
                (None, &[QpEvent::ReqErr][..])
            );
        }
    }
}

/// A queue that goes away in the middle of a message: what was taken from it completes in error.
#[test]
fn a_queue_that_is_destroyed() {
    let mut node = target();
    node.world.receive(1, 1000);
    node.handle(to(SRQ, packet(RcSendFirst, 100, 256)));
    node.world.srqs.clear();
    node.handle(to(SRQ, packet(RcSendLast, 101, 5)));
    assert_eq!(answers(&mut node), refused(101, NakCode::RemoteAccess));
    assert_eq!(node.world.recvs.len(), 1);
    assert_eq!(node.world.received, [(0, 256)]);
}

#[test]
fn receiver_not_ready_then_ready() {
    let mut node = target();
    node.handle(to(SRQ, packet(RcSendOnly, 100, 5)));
    let timer = attributes().min_rnr_timer;
    assert_eq!(answers(&mut node), [(100, Syndrome::RnrNak { timer })]);
    // The peer may give up on it and say something else.
    node.world.receive(1, 10);
    node.handle(to(OTHER, packet(RcSendOnly, 100, 5)));
    assert_eq!(node.world.recvs.len(), 1);
    node.handle(to(SRQ, packet(RcSendOnly, 100, 5)));
    assert_eq!(node.world.selected, [SRQ, OTHER]);
}

#[test]
fn it_takes_nothing_but_its_own_requests() {
    let mut node = target();
    node.world.receive(1, 10);
    node.handle(packet(RcSendOnly, 100, 5));
    node.handle(packet(XrcAcknowledge, 100, 0));
    node.handle(packet(XrcReadResponseOnly, 100, 5));
    assert_eq!(node.world.counted(Counter::DropTransport), 3);
    assert!(node.sent().is_empty() && node.world.selected.is_empty());
}

#[test]
fn in_error_it_tells_that_it_takes_no_more() {
    let mut node = target();
    node.world.receive(1, 1000);
    node.world.receive(2, 1000);
    node.handle(to(SRQ, packet(RcSendFirst, 100, 256)));
    node.go(&attributes(), QpState::Err);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(node.world.recvs[0].status, WcStatus::WrFlushErr);
    assert_eq!((node.world.recvs.len(), node.world.receives.len()), (1, 1));
    assert_eq!(node.world.events, [QpEvent::LastWqe]);
}
