// SPDX-License-Identifier: GPL-2.0
//! READs of the peer.

use super::*;
use crate::types::Srqn;

#[test]
fn read_is_answered_in_order_with_acks() {
    let mut node = Node::rc();
    node.handle(write(RcWriteOnly, 100, 5, 5));
    node.handle(read(101, 600));
    node.handle(read(104, 0));
    node.handle(write(RcWriteOnly, 105, 5, 5));
    let run = node.poll(2).unwrap();
    assert_eq!((run.psn.get(), run.count), (101, 2));
    let source = PayloadSource::Remote {
        rkey: RKEY,
        va: BASE,
        srq: Srqn::default(),
    };
    assert_eq!(run.source, source);
    let run = node.poll(2).unwrap();
    assert_eq!((run.psn.get(), run.count, run.payload_len()), (103, 1, 88));
    let source = PayloadSource::Remote {
        rkey: RKEY,
        va: BASE + 512,
        srq: Srqn::default(),
    };
    assert_eq!(run.source, source);
    assert_eq!(
        node.ladder(),
        [(RcReadResponseOnly, 104, 0), (RcAcknowledge, 105, 0)]
    );
    assert_eq!(
        node.world.checked,
        [
            (BASE, 5, RemoteAccess::Write),
            (BASE, 600, RemoteAccess::Read),
            (BASE, 5, RemoteAccess::Write)
        ]
    );
}

#[test]
fn a_nak_waits_for_the_reads_before_it() {
    let mut node = Node::rc();
    node.handle(read(100, 600));
    node.handle(packet(RcSendMiddle, 103, 256));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(
        node.ladder(),
        [
            (RcReadResponseFirst, 100, 256),
            (RcReadResponseMiddle, 101, 256),
            (RcReadResponseLast, 102, 88),
            (RcAcknowledge, 103, 0)
        ]
    );
    assert!(node.sent().is_empty());
}

#[test]
fn reads_may_be_repeated_in_part() {
    let mut node = Node::rc();
    node.handle(read(100, 256 * 4));
    node.handle(read(104, 256 * 2));
    assert_eq!(node.sent().len(), 6);
    // Packet 102 was lost: the peer asks for the rest of the first READ and the second again.
    node.handle(reth(packet(RcReadRequest, 102, 0), BASE + 512, 512));
    let run = node.poll(64).unwrap();
    let source = PayloadSource::Remote {
        rkey: RKEY,
        va: BASE + 512,
        srq: Srqn::default(),
    };
    assert_eq!((run.psn.get(), run.count, run.source), (102, 2, source));
    node.handle(read(104, 256 * 2));
    assert_eq!(
        node.ladder(),
        [
            (RcReadResponseFirst, 104, 256),
            (RcReadResponseLast, 105, 256)
        ]
    );
    assert_eq!(node.world.counted(Counter::DuplicateRequest), 2);
    assert_eq!(node.world.checked.len(), 4);
}

#[test]
fn a_repetition_of_what_is_still_to_come_changes_nothing() {
    let mut node = Node::rc();
    node.handle(read(100, 256 * 4));
    node.poll(2).unwrap();
    node.handle(reth(packet(RcReadRequest, 102, 0), BASE + 512, 512));
    assert_eq!(node.ladder()[0], (RcReadResponseMiddle, 102, 256));
    assert!(node.sent().is_empty());
}

#[test]
fn reads_may_be_repeated_in_other_pieces() {
    let part = |psn: u32, packets: u32| {
        let va = BASE + u64::from(psn - 100) * 256;
        reth(packet(RcReadRequest, psn, 0), va, packets * 256)
    };
    // One piece where there were two.
    let mut node = Node::rc();
    node.handle(part(100, 4));
    node.handle(part(104, 4));
    assert_eq!(node.sent().len(), 8);
    node.handle(part(102, 6));
    let run = node.poll(64).unwrap();
    assert_eq!((run.psn.get(), run.count), (102, 6));
    // Two small pieces where there was one, of which half was sent.
    let mut node = Node::rc();
    node.handle(part(100, 8));
    assert_eq!(node.poll(6).unwrap().count, 6);
    node.handle(part(102, 2));
    node.handle(part(104, 2));
    let sent = node.ladder();
    assert_eq!(sent[0], (RcReadResponseFirst, 102, 256));
    assert_eq!(sent[1], (RcReadResponseLast, 103, 256));
    assert_eq!(sent[2], (RcReadResponseFirst, 104, 256));
    assert_eq!(sent.len(), 4);
    // A piece that reaches into one that is still to come.
    let mut node = Node::rc();
    node.handle(part(100, 4));
    assert_eq!(node.sent().len(), 4);
    node.handle(part(104, 4));
    node.handle(part(102, 4));
    let run = node.poll(64).unwrap();
    assert_eq!((run.psn.get(), run.count), (102, 4));
    let run = node.poll(64).unwrap();
    assert_eq!((run.psn.get(), run.count), (106, 2));
    let source = PayloadSource::Remote {
        rkey: RKEY,
        va: BASE + 6 * 256,
        srq: Srqn::default(),
    };
    assert_eq!(run.source, source);
    assert!(node.sent().is_empty());
}

#[test]
fn congestion_of_a_reply_that_something_took_the_place_of() {
    let mut node = Node::rc();
    node.handle(read(100, 256 * 4));
    let run = node.poll(64).unwrap();
    node.handle(read(104, 256));
    node.qp.congested(node.now, &run, 3);
    node.timeout();
    let sent = node.ladder();
    assert_eq!(
        sent,
        [
            (RcReadResponseLast, 103, 256),
            (RcReadResponseOnly, 104, 256)
        ]
    );
}

#[test]
fn repetitions_that_cannot_be_honest_are_dropped() {
    let mut node = Node::rc();
    node.handle(read(100, 256));
    node.handle(read(101, 256));
    node.sent();
    node.handle(read(102, 256));
    node.sent();
    for request in [
        read(100, 256),     // forgotten: two slots
        read(102, 512),     // beyond what was executed
        read(90, 256),      // never executed
        read(101, 1 << 31), // absurd
        read(101, u32::MAX),
    ] {
        node.handle(request);
        assert!(node.sent().is_empty(), "{request:?}");
    }
    node.handle(read(101, 256));
    assert_eq!(node.sent().len(), 1);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_repetition_without_rights_is_refused_but_kills_nothing() {
    let mut node = Node::rc();
    node.handle(read(100, 256));
    node.handle(read(101, 256));
    node.sent();
    node.world.deny_remote = Some(MemoryError::Access);
    node.handle(read(100, 256));
    assert_eq!(answers(&mut node), refused(100, NakCode::RemoteAccess));
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn too_many_reads() {
    let mut node = Node::rc();
    node.handle(read(100, 5));
    node.handle(read(101, 5));
    node.handle(read(102, 5));
    assert_eq!(
        node.ladder(),
        [
            (RcReadResponseOnly, 100, 5),
            (RcReadResponseOnly, 101, 5),
            (RcAcknowledge, 102, 0)
        ]
    );
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn a_ghost_does_not_take_the_room_of_a_read() {
    let mut node = Node::rc();
    node.handle(read(100, 5));
    node.handle(read(101, 5));
    node.sent();
    node.handle(read(100, 5));
    node.handle(read(102, 5));
    node.handle(read(103, 5));
    assert_eq!(
        node.ladder(),
        [(RcReadResponseOnly, 102, 5), (RcReadResponseOnly, 103, 5)]
    );
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn memory_that_vanishes_under_a_read() {
    let mut node = Node::rc();
    node.handle(read(100, 256 * 4));
    node.handle(read(104, 5));
    let run = node.poll(64).unwrap();
    node.qp
        .payload_failed(&run, 2, MemoryError::Access, &mut node.world);
    assert_eq!(answers(&mut node), refused(102, NakCode::RemoteAccess));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.events, [QpEvent::AccessErr]);
}

#[test]
fn congestion_of_replies() {
    let mut node = Node::rc();
    node.handle(read(100, 256 * 4));
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 1);
    assert!(node.poll(64).is_none());
    node.timeout();
    let sent = node.ladder();
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[0], (RcReadResponseMiddle, 101, 256));
    node.handle(write(RcWriteOnly, 104, 5, 5));
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    node.timeout();
    assert_eq!(answers(&mut node), acked(104));
    node.handle(packet(RcSendMiddle, 105, 256));
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    node.timeout();
    assert_eq!(answers(&mut node), refused(105, NakCode::InvalidRequest));
    assert!(node.sent().is_empty());
}
