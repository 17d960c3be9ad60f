// SPDX-License-Identifier: GPL-2.0
//! Unreliable connections: a WQE is complete when it has been sent.

use super::*;
use crate::{
    qp::state::{
        AttrMask,
        QpKind, //
    },
    wqe::AtomicOp,
};

fn uc() -> Node {
    Node::with(QpKind::Uc, &attributes())
}

fn transmitted(node: &mut Node) {
    node.qp.transmitted(&mut node.world);
}

#[test]
fn packets_and_completions() {
    let mut node = uc();
    assert!(node.qp.is_idle());
    node.post(1, SendOp::SendImm([1, 2, 3, 4]), 600);
    node.post(2, WRITE, 257);
    node.post(3, SendOp::Send, 0);
    let sent = node.sent();
    let short: Vec<_> = sent.iter().map(crate::testing::short).collect();
    assert_eq!(
        short,
        [
            (UcSendFirst, 100, 256),
            (UcSendMiddle, 101, 256),
            (UcSendLastImm, 102, 88),
            (UcWriteFirst, 103, 256),
            (UcWriteLast, 104, 1),
            (UcSendOnly, 105, 0)
        ]
    );
    assert!(sent.iter().all(|p| !p.bth.ack_req), "nobody answers");
    assert!(node.statuses().is_empty(), "not sent yet");
    assert!(!node.qp.is_idle(), "completions are due once they are sent");
    transmitted(&mut node);
    assert!(node.qp.is_idle());
    let done = WcStatus::Success;
    assert_eq!(node.statuses(), [(1, done), (2, done), (3, done)]);
    assert_eq!(node.qp.poll_timeout(), None, "no timer");
    assert_eq!(node.qp.retired(), 3);
}

#[test]
fn no_window_but_what_is_not_yet_sent() {
    let mut node = uc();
    node.post(1, WRITE, WINDOW * 256 * 3);
    for round in 0..3 {
        assert_eq!(node.sent().len() as u32, WINDOW, "round {round}");
        assert!(node.statuses().is_empty());
        transmitted(&mut node);
    }
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn congestion_sends_the_rest_again() {
    let mut node = uc();
    node.post(1, WRITE, 1000);
    node.post(2, SendOp::Send, 10);
    let run = node.poll(64).unwrap();
    assert_eq!(run.count, 4);
    let next = node.poll(64).unwrap();
    // Two packets got out.
    node.qp.congested(node.now, &run, 2);
    node.qp.congested(node.now, &next, 0);
    transmitted(&mut node);
    assert!(node.statuses().is_empty());
    assert!(node.sent().is_empty(), "a pause");
    node.later(10_000_000);
    let rest = [
        (UcWriteMiddle, 102, 256),
        (UcWriteLast, 103, 232),
        (UcSendOnly, 104, 10),
    ];
    assert_eq!(node.ladder(), rest);
    transmitted(&mut node);
    assert_eq!(node.statuses().len(), 2);
}

#[test]
fn what_it_does_not_have() {
    let ops = [
        (READ, 8),
        (SendOp::SendInv(RKEY), 8),
        (
            SendOp::Atomic {
                va: BASE,
                rkey: RKEY,
                op: AtomicOp::FetchAdd(1),
            },
            8,
        ),
        (
            SendOp::AtomicWrite {
                va: BASE,
                rkey: RKEY,
            },
            8,
        ),
        (SendOp::Invalid(WcStatus::LocQpOpErr), 0),
    ];
    for (op, length) in ops {
        let mut node = uc();
        node.post(1, WRITE, 8);
        node.post(2, op, length);
        node.post(3, WRITE, 8);
        assert_eq!(node.ladder(), [(UcWriteOnly, 100, 8)], "{op:?}");
        assert!(node.statuses().is_empty());
        transmitted(&mut node);
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr)];
        assert_eq!(node.statuses(), expected, "{op:?}");
        assert_eq!(node.qp.state(), QpState::Sqe);
        node.qp.flush(node.now, &mut node.world, 64);
        assert_eq!(node.statuses()[2], (3, WcStatus::WrFlushErr));

        // It goes on from there, with the PSN where it was.
        let mut attr = attributes();
        attr.state = QpState::Rts;
        node.qp
            .modify(node.now, &attr, AttrMask::STATE, &mut node.world)
            .unwrap();
        node.post(4, SendOp::Send, 1);
        assert_eq!(node.ladder(), [(UcSendOnly, 101, 1)]);
        transmitted(&mut node);
        assert_eq!(node.statuses()[3], (4, WcStatus::Success));
    }
}

#[test]
fn unreadable_payload_fails_the_wqe_in_its_turn() {
    let mut node = uc();
    node.post(1, SendOp::Send, 10);
    node.post(2, SendOp::Send, 600);
    let _ = node.poll(64).unwrap();
    let run = node.poll(64).unwrap();
    node.qp
        .payload_failed(&run, 1, MemoryError::Access, &mut node.world);
    assert!(node.statuses().is_empty(), "the first is not complete yet");
    transmitted(&mut node);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr)];
    assert_eq!(node.statuses(), expected);
    assert_eq!(node.qp.state(), QpState::Sqe);
}

#[test]
fn drained_when_all_is_sent() {
    let mut node = uc();
    node.post(1, WRITE, 600);
    let mut attr = attributes();
    assert!(node.poll(1).is_some());
    attr.state = QpState::Sqd;
    attr.en_sqd_async_notify = true;
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    node.qp
        .modify(node.now, &attr, mask, &mut node.world)
        .unwrap();
    assert!(node.qp.is_draining());
    node.post(2, WRITE, 1);
    assert_eq!(node.ladder().len(), 2, "the one that was begun");
    transmitted(&mut node);
    assert_eq!(node.world.events, [QpEvent::SqDrained]);
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}
