// SPDX-License-Identifier: GPL-2.0
//! Atomic operations, ATOMIC WRITEs and FLUSHes of the peer.

use super::*;
use crate::{
    testing::atomic_eth,
    wire::{
        Feth,
        Selectivity, //
    },
    wqe::AtomicOp, //
};

fn add(psn: u32, value: u64) -> Packet {
    atomic_eth(packet(RcFetchAdd, psn, 0), BASE, 0, value)
}

fn swap(psn: u32) -> Packet {
    atomic_eth(packet(RcCompareSwap, psn, 0), BASE + 8, 5, 6)
}

fn store(psn: u32) -> Packet {
    reth(packet(RcAtomicWrite, psn, 8), BASE, 8)
}

const GLOBAL: Feth = Feth {
    global: true,
    persistent: false,
    reserved: false,
    selectivity: Selectivity::Range,
};

fn flush(psn: u32, feth: Feth) -> Packet {
    let mut packet = reth(packet(RcFlush, psn, 0), BASE, 5000);
    packet.feth = Some(feth);
    packet
}

/// The answers, as opcode, PSN, MSN and original value.
fn replies(node: &mut Node) -> Vec<(Opcode, u32, u32, Option<u64>)> {
    let sent = node.sent();
    sent.iter()
        .map(|p| {
            let msn = p.aeth.unwrap().msn.get();
            (p.bth.opcode, p.bth.psn.get(), msn, p.atomic_ack)
        })
        .collect()
}

#[test]
fn executed_and_answered() {
    let mut node = Node::rc();
    node.handle(add(100, 7));
    node.handle(swap(101));
    assert_eq!(
        node.world.atomics,
        [
            (BASE, AtomicOp::FetchAdd(7)),
            (
                BASE + 8,
                AtomicOp::CompareSwap {
                    compare: 5,
                    swap: 6
                }
            )
        ]
    );
    assert_eq!(
        replies(&mut node),
        [
            (RcAtomicAcknowledge, 100, 1, Some(0)),
            (RcAtomicAcknowledge, 101, 2, Some(1))
        ]
    );
    node.handle(store(102));
    node.handle(flush(103, GLOBAL));
    assert_eq!(node.world.atomic_writes, [BASE]);
    assert_eq!(node.world.flushes, [(BASE, 5000, GLOBAL)]);
    assert_eq!(
        replies(&mut node),
        [
            (RcReadResponseOnly, 102, 3, None),
            (RcReadResponseOnly, 103, 4, None)
        ]
    );
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_duplicate_gets_the_first_answer() {
    let mut node = Node::rc();
    node.handle(add(100, 7));
    node.handle(store(101));
    let first = replies(&mut node);
    assert_eq!(first.len(), 2);
    for _ in 0..3 {
        node.handle(add(100, 7));
        node.handle(store(101));
        let again = replies(&mut node);
        let without_msn = |list: &[(Opcode, u32, u32, Option<u64>)]| -> Vec<_> {
            list.iter().map(|r| (r.0, r.1, r.3)).collect()
        };
        assert_eq!(without_msn(&again), without_msn(&first));
    }
    assert_eq!(node.world.atomics.len(), 1);
    assert_eq!(node.world.atomic_writes.len(), 1);
    assert_eq!(node.world.counted(Counter::DuplicateRequest), 6);

    // Two are remembered; the first is forgotten with the third.
    node.handle(flush(102, GLOBAL));
    node.sent();
    node.handle(add(100, 7));
    assert!(node.sent().is_empty());
    assert_eq!(node.world.counted(Counter::DropSequence), 1);
    node.handle(store(101));
    node.handle(flush(102, GLOBAL));
    assert_eq!(node.sent().len(), 2);
    assert_eq!(node.world.flushes.len(), 1);
}

#[test]
fn a_duplicate_of_another_kind_gets_nothing() {
    let mut node = Node::rc();
    node.handle(add(100, 7));
    node.handle(reth(packet(RcReadRequest, 101, 0), BASE, 8));
    node.sent();
    node.handle(store(100));
    node.handle(flush(100, GLOBAL));
    node.handle(add(101, 1));
    assert!(node.sent().is_empty());
    assert_eq!(node.world.atomics.len(), 1);
    assert!(node.world.atomic_writes.is_empty() && node.world.flushes.is_empty());
}

#[test]
fn a_duplicate_while_the_answer_is_pending_changes_nothing() {
    let mut node = Node::rc();
    node.handle(reth(packet(RcReadRequest, 100, 0), BASE, 600));
    node.handle(add(103, 7));
    node.handle(add(103, 7));
    let sent = node.ladder();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[3], (RcAtomicAcknowledge, 103, 0));
    assert_eq!(node.world.atomics.len(), 1);
}

#[test]
fn what_is_refused() {
    let mut misaligned = add(100, 1);
    misaligned.atomic.as_mut().unwrap().va += 4;
    let mut odd_store = store(100);
    odd_store.reth.as_mut().unwrap().va += 1;
    let mut foreign = add(100, 1);
    foreign.atomic.as_mut().unwrap().rkey = RKey(1);
    let mut foreign_store = store(100);
    foreign_store.reth.as_mut().unwrap().rkey = RKey(1);
    let mut nothing = GLOBAL;
    nothing.global = false;
    let mut persistent = GLOBAL;
    persistent.persistent = true;
    let mut reserved = GLOBAL;
    reserved.reserved = true;
    let mut selectivity = GLOBAL;
    selectivity.selectivity = Selectivity::Reserved;
    let short = reth(packet(RcAtomicWrite, 100, 4), BASE, 4);
    let long = reth(packet(RcAtomicWrite, 100, 8), BASE, 16);
    let (invalid, access) = (NakCode::InvalidRequest, NakCode::RemoteAccess);
    let cases = [
        (misaligned, invalid),
        (odd_store, invalid),
        (short, invalid),
        (long, invalid),
        (foreign, access),
        (foreign_store, access),
        (flush(100, nothing), invalid),
        (flush(100, persistent), invalid),
        (flush(100, reserved), invalid),
        (flush(100, selectivity), invalid),
    ];
    for (request, code) in cases {
        let mut node = Node::rc();
        node.handle(request);
        assert_eq!(answers(&mut node), refused(100, code), "{request}");
        assert_eq!(node.qp.state(), QpState::Err);
        assert!(node.world.atomics.is_empty() && node.world.atomic_writes.is_empty());
    }

    let mut attr = attributes();
    attr.access.remote_atomic = false;
    attr.access.remote_write = false;
    attr.access.flush_global = false;
    for request in [add(100, 1), swap(100), store(100), flush(100, GLOBAL)] {
        let mut node = Node::with(QpKind::Rc, &attr);
        node.handle(request);
        assert_eq!(answers(&mut node), refused(100, invalid), "{request}");
        assert!(node.world.atomics.is_empty() && node.world.atomic_writes.is_empty());
    }

    let mut node = Node::rc();
    node.world.deny_remote = Some(MemoryError::Fault);
    node.handle(add(100, 1));
    let code = NakCode::RemoteOperational;
    assert_eq!(answers(&mut node), refused(100, code));
}

/// More than what came would be read from whatever lies behind the packet, less would be a part of a word.
#[test]
fn an_atomic_write_has_eight_bytes() {
    for payload in [0, 1, 4, 7, 9, 12, 256] {
        for length in [8, payload] {
            let mut node = Node::rc();
            let request = reth(packet(RcAtomicWrite, 100, payload), BASE, length);
            node.handle(request);
            let expected = refused(100, NakCode::InvalidRequest);
            assert_eq!(
                answers(&mut node),
                expected,
                "{payload} bytes, {length} said"
            );
            assert_eq!(node.qp.state(), QpState::Err);
            assert!(node.world.atomic_writes.is_empty() && node.world.written.is_empty());
        }
    }
}

#[test]
fn too_many_at_once() {
    let mut node = Node::rc();
    for psn in 100..103 {
        node.handle(add(psn, 1));
    }
    assert_eq!(node.world.atomics.len(), 2, "nothing beyond the limit");
    // What was executed is answered before the refusal.
    let limit = (102, Syndrome::Nak(NakCode::InvalidRequest));
    let done = |psn| (psn, Syndrome::ACK);
    assert_eq!(answers(&mut node), [done(100), done(101), limit]);
}

#[test]
fn amid_a_message() {
    let mut node = Node::rc();
    node.world.receive(1, 1000);
    node.handle(packet(RcSendFirst, 100, 256));
    node.handle(add(101, 1));
    assert!(node.world.atomics.is_empty());
    assert_eq!(answers(&mut node), refused(101, NakCode::InvalidRequest));
}

#[test]
fn congestion_of_the_answer() {
    let mut node = Node::rc();
    node.handle(add(100, 1));
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    node.later(10_000_000);
    let again = replies(&mut node);
    assert_eq!(again, [(RcAtomicAcknowledge, 100, 1, Some(0))]);
    assert_eq!(node.world.atomics.len(), 1);
}
