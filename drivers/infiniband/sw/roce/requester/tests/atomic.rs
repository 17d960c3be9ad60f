// SPDX-License-Identifier: GPL-2.0
//! Atomic operations, ATOMIC WRITEs and FLUSHes of ours.

use super::*;
use crate::{
    cqe::SendCqeOp,
    testing::atomic_ack,
    wire::{
        Feth,
        Selectivity, //
    },
    wqe::AtomicOp,
};

const fn atomic(op: AtomicOp) -> SendOp {
    SendOp::Atomic {
        va: BASE,
        rkey: RKEY,
        op,
    }
}

const ADD: SendOp = atomic(AtomicOp::FetchAdd(7));
const SWAP: SendOp = atomic(AtomicOp::CompareSwap {
    compare: 5,
    swap: 6,
});
const STORE: SendOp = SendOp::AtomicWrite {
    va: BASE,
    rkey: RKEY,
};
const FLUSH: SendOp = SendOp::Flush {
    va: BASE,
    rkey: RKEY,
    length: 70_000,
    feth: Feth {
        global: true,
        persistent: false,
        reserved: false,
        selectivity: Selectivity::Range,
    },
};

fn done(psn: u32) -> crate::wire::Packet {
    packet(RcReadResponseOnly, psn, 0)
}

#[test]
fn requests_and_their_responses() {
    let mut node = Node::rc();
    node.post(1, ADD, 8);
    node.post(2, SWAP, 8);
    let sent = node.sent();
    assert_eq!(sent.len(), 2);
    let (add, swap) = (sent[0].atomic.unwrap(), sent[1].atomic.unwrap());
    assert_eq!(
        (add.va, add.rkey, add.swap_add, add.compare),
        (BASE, RKEY, 7, 0)
    );
    assert_eq!((swap.swap_add, swap.compare), (6, 5));
    assert!(sent.iter().all(|p| p.bth.ack_req && p.payload_len == 0));

    node.handle(atomic_ack(100, 0x0123_4567_89ab_cdef));
    node.handle(atomic_ack(101, 99));
    assert_eq!(node.world.results, [(0, 0x0123_4567_89ab_cdef), (1, 99)]);
    let ops: Vec<_> = node
        .world
        .sends
        .iter()
        .map(|c| (c.op, c.byte_len))
        .collect();
    assert_eq!(ops, [(SendCqeOp::FetchAdd, 8), (SendCqeOp::CompareSwap, 8)]);
    assert_eq!(node.qp.poll_timeout(), None);

    node.post(3, STORE, 8);
    node.post(4, FLUSH, 0);
    let sent = node.sent();
    let short: Vec<_> = sent.iter().map(crate::testing::short).collect();
    assert_eq!(short, [(RcAtomicWrite, 102, 8), (RcFlush, 103, 0)]);
    assert_eq!(sent[0].reth.unwrap().length, 8);
    assert_eq!(sent[1].reth.unwrap().length, 70_000);
    assert!(sent[1].feth.unwrap().global);
    node.handle(done(102));
    node.handle(done(103));
    assert_eq!(node.world.sends[2].op, SendCqeOp::AtomicWrite);
    assert_eq!(node.world.sends[3].op, SendCqeOp::Flush);
    assert!(node.statuses().iter().all(|s| s.1 == WcStatus::Success));
}

#[test]
fn they_count_against_max_rd_atomic_together_with_reads() {
    let mut node = Node::rc();
    for (id, op, length) in [(1, READ, 10), (2, ADD, 8), (3, STORE, 8), (4, FLUSH, 0)] {
        node.post(id, op, length);
    }
    // Two may be outstanding.
    assert_eq!(
        node.ladder(),
        [(RcReadRequest, 100, 0), (RcFetchAdd, 101, 0)]
    );
    node.handle(packet(RcReadResponseOnly, 100, 10));
    assert_eq!(node.ladder(), [(RcAtomicWrite, 102, 8)]);
    node.handle(atomic_ack(101, 0));
    assert_eq!(node.ladder(), [(RcFlush, 103, 0)]);
    node.handle(done(102));
    node.handle(done(103));
    assert_eq!(node.statuses().len(), 4);

    let mut attr = attributes();
    attr.max_rd_atomic = 0;
    let mut node = Node::with(crate::qp::state::QpKind::Rc, &attr);
    node.post(1, ADD, 8);
    assert!(node.sent().is_empty());
    assert_eq!(node.statuses(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn no_other_ack_stands_for_the_response() {
    for (op, length) in [(ADD, 8), (STORE, 8), (FLUSH, 0)] {
        let mut node = Node::rc();
        node.post(1, op, length);
        node.post(2, WRITE, 8);
        let first = node.ladder();
        // The response was lost; the ACK of the WRITE shows it.
        node.handle(ack(101));
        assert_eq!(node.world.counted(Counter::ImpliedNak), 1);
        assert!(node.statuses().is_empty());
        assert_eq!(node.ladder(), first, "asked for again at once");
        node.timeout();
        assert_eq!(node.ladder(), first, "and by the timer");
    }
}

#[test]
fn a_response_that_does_not_fit_the_request() {
    let cases = [
        (ADD, 8, done(100)),
        (STORE, 8, atomic_ack(100, 0)),
        (STORE, 8, packet(RcReadResponseOnly, 100, 8)),
        (FLUSH, 0, packet(RcReadResponseOnly, 100, 1)),
        (FLUSH, 0, packet(RcReadResponseFirst, 100, 256)),
        (READ, 8, atomic_ack(100, 0)),
        (WRITE, 8, atomic_ack(100, 0)),
        (SendOp::Send, 8, done(100)),
    ];
    for (op, length, answer) in cases {
        let mut node = Node::rc();
        node.post(1, op, length);
        node.sent();
        node.handle(answer);
        assert_eq!(node.statuses(), [(1, WcStatus::BadRespErr)], "{op:?}");
        assert_eq!(node.qp.state(), QpState::Err);
    }
}

#[test]
fn lengths_that_are_none() {
    for (op, length) in [(ADD, 7), (SWAP, 16), (STORE, 0), (STORE, 9), (FLUSH, 1)] {
        let mut node = Node::rc();
        node.post(1, op, length);
        assert!(node.sent().is_empty());
        assert_eq!(
            node.statuses(),
            [(1, WcStatus::LocLenErr)],
            "{op:?} {length}"
        );
    }
}

#[test]
fn a_result_that_cannot_be_written() {
    let mut node = Node::rc();
    node.world.deny_send = Some(MemoryError::Access);
    node.post(1, ADD, 8);
    node.sent();
    node.handle(atomic_ack(100, 1));
    assert_eq!(node.statuses(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn fence_waits_for_them() {
    for (op, length, answer) in [
        (ADD, 8, atomic_ack(100, 3)),
        (STORE, 8, done(100)),
        (FLUSH, 0, done(100)),
    ] {
        let mut node = Node::rc();
        node.post(1, op, length);
        let mut wqe = SendWqe::new(2, SendOp::Send, 1);
        wqe.fence = true;
        node.qp.post(wqe).unwrap();
        assert_eq!(node.sent().len(), 1);
        node.handle(answer);
        assert_eq!(node.ladder(), [(RcSendOnly, 101, 1)]);
    }
}

#[test]
fn congestion_gives_the_place_back() {
    let mut node = Node::rc();
    for id in 1..=3 {
        node.post(id, ADD, 8);
    }
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    node.later(10_000_000);
    assert_eq!(node.ladder(), [(RcFetchAdd, 100, 0), (RcFetchAdd, 101, 0)]);
    node.handle(atomic_ack(100, 3));
    assert_eq!(node.ladder(), [(RcFetchAdd, 102, 0)]);
}
