// SPDX-License-Identifier: GPL-2.0
//! Local operations: in order, once, and without a packet.

use crate::{
    cqe::{
        SendCqeOp,
        WcStatus, //
    },
    env::MemoryError,
    qp::state::QpState,
    testing::{
        ack,
        answer,
        packet,
        reth,
        Node,
        BASE,
        FIRST,
        RKEY, //
    },
    wire::{
        NakCode,
        Opcode::*,
        Syndrome, //
    },
    wqe::{
        LocalOp,
        SendOp,
        SendWqe, //
    },
};

const BIND: SendOp = SendOp::Local(LocalOp::Bind);
const REGISTER: SendOp = SendOp::Local(LocalOp::Register);
const INVALIDATE: SendOp = SendOp::Local(LocalOp::Invalidate);
const READ: SendOp = SendOp::Read {
    va: BASE,
    rkey: RKEY,
};

fn ids(node: &Node) -> std::vec::Vec<u64> {
    node.world.sends.iter().map(|cqe| cqe.wr_id).collect()
}

#[test]
fn alone_it_completes_at_once() {
    for (op, cqe) in [
        (BIND, SendCqeOp::Bind),
        (REGISTER, SendCqeOp::Register),
        (INVALIDATE, SendCqeOp::Invalidate),
    ] {
        let mut node = Node::rc();
        node.post(7, op, 0);
        assert!(node.poll(64).is_none());
        assert_eq!(node.world.sends.len(), 1);
        assert_eq!(node.world.sends[0].op, cqe);
        assert_eq!(node.world.sends[0].status, WcStatus::Success);
        assert_eq!(node.qp.retired(), 1);
        assert!(node.qp.poll_timeout().is_none());
    }
}

#[test]
fn it_is_done_before_what_follows_and_complete_after_what_precedes() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 300);
    node.post(2, REGISTER, 0);
    node.post(3, BIND, 0);
    node.post(4, SendOp::Send, 1);
    node.post(5, BIND, 0);
    let sent = node.ladder();
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[2], (RcSendOnly, FIRST + 2, 1));
    let done: std::vec::Vec<_> = node.world.local.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(done, [1, 2, 4]);
    assert!(node.world.sends.is_empty());
    node.handle(ack(FIRST + 1));
    assert_eq!(ids(&node), [1, 2, 3]);
    node.handle(ack(FIRST + 2));
    assert_eq!(ids(&node), [1, 2, 3, 4, 5]);
    assert_eq!(node.world.local.len(), 3);
}

#[test]
fn it_is_never_replayed() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1);
    node.post(2, BIND, 0);
    node.post(3, SendOp::Send, 1);
    node.post(4, READ, 256);
    node.post(5, REGISTER, 0);
    let first = node.ladder();
    node.timeout();
    assert_eq!(node.ladder(), first);
    node.handle(answer(FIRST + 1, Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(ids(&node), [1, 2]);
    assert_eq!(node.ladder(), first[1..]);
    assert_eq!(node.world.local.len(), 2);
    let mut response = packet(RcReadResponseOnly, FIRST + 2, 256);
    response.bth.ack_req = false;
    node.handle(response);
    assert_eq!(ids(&node), [1, 2, 3, 4, 5]);
}

#[test]
fn an_invalidation_waits_for_all_before_it() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1);
    node.post(2, INVALIDATE, 0);
    node.post(3, REGISTER, 0);
    node.post(4, SendOp::Send, 1);
    assert_eq!(node.ladder().len(), 1);
    node.timeout();
    assert_eq!(node.ladder().len(), 1);
    assert!(node.world.local.is_empty());
    node.handle(ack(FIRST));
    assert_eq!(node.ladder(), [(RcSendOnly, FIRST + 1, 1)]);
    assert_eq!(ids(&node), [1, 2, 3]);
    assert_eq!(node.world.local.len(), 2);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut node = Node::rc();
    node.post(1, READ, 1);
    let mut wqe = SendWqe::new(2, BIND, 0);
    wqe.fence = true;
    node.qp.post(wqe).unwrap();
    assert_eq!(node.ladder().len(), 1);
    assert!(node.world.local.is_empty());
    let mut response = packet(RcReadResponseOnly, FIRST, 1);
    response.bth.ack_req = false;
    node.handle(response);
    assert!(node.poll(64).is_none());
    assert_eq!(ids(&node), [1, 2]);
}

#[test]
fn a_failure_completes_in_its_turn_and_ends_the_qp() {
    let mut node = Node::rc();
    node.world.deny_local = true;
    node.post(1, SendOp::Send, 1);
    node.post(2, BIND, 0);
    node.post(3, SendOp::Send, 1);
    assert_eq!(node.ladder().len(), 1);
    assert_eq!(node.qp.state(), QpState::Rts);
    node.handle(ack(FIRST));
    assert_eq!(node.qp.state(), QpState::Err);
    let now = node.now;
    assert!(!node.qp.flush(now, &mut node.world, 64));
    assert_eq!(
        node.statuses(),
        [
            (1, WcStatus::Success),
            (2, WcStatus::MwBindErr),
            (3, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(node.world.local.len(), 1);
}

#[test]
fn an_unsignaled_one_is_silent_and_a_drained_queue_takes_none() {
    let mut node = Node::rc();
    let mut wqe = SendWqe::new(2, REGISTER, 0);
    wqe.signaled = false;
    node.qp.post(wqe).unwrap();
    assert!(node.poll(64).is_none());
    assert!(node.world.sends.is_empty());
    assert_eq!(node.qp.retired(), 1);
    node.go(&crate::testing::attributes(), QpState::Sqd);
    node.post(3, REGISTER, 0);
    assert!(node.poll(64).is_none());
    assert_eq!(node.world.local.len(), 1);
}

#[test]
fn what_meets_missing_pages_has_not_happened() {
    // A SEND, a WRITE and a READ response come again when the pages are there.
    let mut node = Node::rc();
    node.world.receive(9, 1000);
    node.world.deny_receive = Some(MemoryError::NotResident);
    node.handle(packet(RcSendOnly, FIRST, 10));
    assert!(node.world.recvs.is_empty() && node.poll(64).is_none());
    node.world.deny_receive = None;
    node.handle(packet(RcSendOnly, FIRST, 10));
    assert_eq!(node.world.recvs.len(), 1);
    assert_eq!(node.world.recvs[0].status, WcStatus::Success);
    assert_eq!(node.ladder().len(), 1);

    let write = reth(packet(RcWriteOnly, FIRST + 1, 10), BASE, 10);
    node.world.not_resident = true;
    node.handle(write);
    assert!(node.poll(64).is_none());
    node.world.not_resident = false;
    node.handle(write);
    assert_eq!(node.ladder(), [(RcAcknowledge, FIRST + 1, 0)]);

    node.post(1, SendOp::Send, 1);
    node.post(2, READ, 1);
    assert_eq!(node.sent().len(), 2);
    node.world.deny_send = Some(MemoryError::NotResident);
    let mut response = packet(RcReadResponseOnly, FIRST + 1, 1);
    response.bth.ack_req = false;
    node.handle(response);
    assert_eq!(ids(&node), [1]);
    node.world.deny_send = None;
    node.handle(response);
    assert_eq!(ids(&node), [1, 2]);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_run_that_was_put_back_comes_again() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1000);
    let run = node.poll(64).unwrap();
    assert_eq!(run.count, 4);
    assert!(node.qp.put_back(&run, 1));
    let again = node.poll(64).unwrap();
    assert_eq!((again.psn, again.count), (run.psn.add(1), 3));
}

#[test]
fn it_is_complete_with_the_read_before_it_after_going_back() {
    let mut node = Node::rc();
    node.post(1, READ, 4);
    node.post(2, BIND, 0);
    node.post(3, READ, 8);
    assert_eq!(node.sent().len(), 2);
    // The second response shows that the first is missing; then both come late.
    node.handle(packet(RcReadResponseOnly, FIRST + 1, 8));
    node.handle(packet(RcReadResponseOnly, FIRST, 4));
    node.handle(packet(RcReadResponseOnly, FIRST + 1, 8));
    assert_eq!(ids(&node), [1, 2, 3]);
    assert_eq!(node.qp.state(), QpState::Rts);
    assert!(node.sent().is_empty());
}
