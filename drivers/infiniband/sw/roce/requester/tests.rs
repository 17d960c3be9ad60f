// SPDX-License-Identifier: GPL-2.0
//! The requester and the completer against a peer that is played by hand.

mod asking;
mod atomic;
mod read;
mod unreliable;
mod xrc;

use crate::{
    cqe::WcStatus,
    env::{
        Counter,
        MemoryError,
        QpEvent, //
    },
    qp::state::QpState,
    requester::window::{
        READ_PIECE,
        WINDOW, //
    },
    testing::{
        ack,
        answer,
        attributes,
        packet,
        Node,
        BASE,
        FIRST,
        RKEY, //
    },
    wire::{
        NakCode,
        Opcode,
        Syndrome, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use std::{
    vec,
    vec::Vec, //
};
use Opcode::*;

const WRITE: SendOp = SendOp::Write {
    va: BASE,
    rkey: RKEY,
};
const READ: SendOp = SendOp::Read {
    va: BASE,
    rkey: RKEY,
};

fn nak(psn: u32, code: NakCode) -> crate::wire::Packet {
    answer(psn, Syndrome::Nak(code))
}

fn rnr(psn: u32, timer: u8) -> crate::wire::Packet {
    answer(psn, Syndrome::RnrNak { timer })
}

#[test]
fn opcodes_by_place() {
    let imm = [9, 8, 7, 6];
    let cases = [
        (SendOp::Send, 0, vec![(RcSendOnly, 100, 0)]),
        (SendOp::Send, 256, vec![(RcSendOnly, 100, 256)]),
        (
            SendOp::Send,
            257,
            vec![(RcSendFirst, 100, 256), (RcSendLast, 101, 1)],
        ),
        (
            SendOp::SendImm(imm),
            600,
            vec![
                (RcSendFirst, 100, 256),
                (RcSendMiddle, 101, 256),
                (RcSendLastImm, 102, 88),
            ],
        ),
        (
            SendOp::SendInv(RKEY),
            512,
            vec![(RcSendFirst, 100, 256), (RcSendLastInv, 101, 256)],
        ),
        (SendOp::SendInv(RKEY), 3, vec![(RcSendOnlyInv, 100, 3)]),
        (SendOp::SendImm(imm), 3, vec![(RcSendOnlyImm, 100, 3)]),
        (
            WRITE,
            513,
            vec![
                (RcWriteFirst, 100, 256),
                (RcWriteMiddle, 101, 256),
                (RcWriteLast, 102, 1),
            ],
        ),
        (WRITE, 0, vec![(RcWriteOnly, 100, 0)]),
        (
            SendOp::WriteImm {
                va: BASE,
                rkey: RKEY,
                imm,
            },
            300,
            vec![(RcWriteFirst, 100, 256), (RcWriteLastImm, 101, 44)],
        ),
        (READ, 5000, vec![(RcReadRequest, 100, 0)]),
    ];
    for (op, length, expected) in cases {
        let mut node = Node::rc();
        node.post(1, op, length);
        assert_eq!(node.ladder(), expected, "{op:?} {length}");
    }
}

#[test]
fn headers_of_first_and_last() {
    let mut node = Node::rc();
    let mut wqe = SendWqe::new(1, WRITE, 300);
    wqe.solicited = true;
    node.qp.post(wqe).unwrap();
    let sent = node.sent();
    assert_eq!(sent[0].reth.unwrap().length, 300);
    assert_eq!(sent[0].reth.unwrap().va, BASE);
    assert!(sent[1].reth.is_none());
    assert!(!sent[0].bth.ack_req && sent[1].bth.ack_req);
    assert!(!sent[0].bth.solicited && sent[1].bth.solicited);
}

#[test]
fn long_messages_ask_for_acks_on_their_way_and_fill_the_window() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 1000);
    let sent = node.sent();
    assert_eq!(sent.len() as u32, WINDOW);
    let asking = sent.iter().filter(|packet| packet.bth.ack_req).count();
    assert_eq!(asking as u32, WINDOW / 32);
    node.handle(ack(FIRST + 9));
    assert_eq!(node.sent().len(), 10);
    assert!(node.poll(64).is_none());
}

#[test]
fn runs_are_cut_by_the_callers_limit() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 10);
    let run = node.poll(4).unwrap();
    assert_eq!((run.count, run.payload_len()), (4, 1024));
    let run = node.poll(100).unwrap();
    assert_eq!((run.count, run.payload_len()), (6, 1536));
    assert_eq!(run.packet(2).unwrap().payload_offset, 512);
}

#[test]
fn more_slots_while_sends_are_in_flight() {
    let room = |count| vec![SendWqe::new(0, SendOp::Send, 0); count];
    let mut node = Node::rc();
    let before = node.qp.send_slots();
    // The numbers in flight are on both sides of a multiple of what there is room for.
    for id in 0..40 {
        node.post(id, SendOp::Send, 10);
    }
    assert_eq!(node.sent().len(), 40);
    node.handle(ack(FIRST + 39));
    for id in 40..40 + u64::from(before) {
        node.post(id, SendOp::Send, 10);
    }
    let more = SendWqe::new(40 + u64::from(before), SendOp::Send, 10);
    assert!(node.qp.post(more).is_err());
    assert_eq!(node.sent().len(), before as usize);
    // As much or less does not do.
    assert_eq!(
        node.qp.set_send_slots(room(before as usize)).len(),
        before as usize
    );
    assert_eq!(node.qp.send_slots(), before);
    let old = node.qp.set_send_slots(room(2 * before as usize));
    assert_eq!(
        (old.len() as u32, node.qp.send_slots()),
        (before, 2 * before)
    );
    assert_eq!(node.qp.post(more), Ok((40 + before) % (2 * before)));
    assert_eq!(node.sent().len(), 1);
    // What was sent is sent again from where it lies now: the last when its ACK is overdue, then all.
    node.timeout();
    assert_eq!(node.ladder(), [(RcSendOnly, FIRST + 40 + before, 10)]);
    node.timeout();
    assert_eq!(node.ladder().first(), Some(&(RcSendOnly, FIRST + 40, 10)));
    node.handle(ack(FIRST + 40 + before));
    let ids: Vec<_> = node.statuses().iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (0..=40 + u64::from(before)).collect::<Vec<_>>());
}

#[test]
fn one_ack_completes_all_before_it() {
    let mut node = Node::rc();
    for id in 0..3 {
        node.post(id, SendOp::Send, 10);
    }
    let mut silent = SendWqe::new(3, SendOp::Send, 10);
    silent.signaled = false;
    node.qp.post(silent).unwrap();
    assert_eq!(node.sent().len(), 4);
    node.handle(ack(FIRST + 3));
    assert_eq!(node.qp.retired(), 4);
    assert_eq!(node.statuses().len(), 3);
    assert_eq!(node.world.counted(Counter::Sends), 4);
    assert_eq!(node.qp.poll_timeout(), None);
    node.handle(ack(FIRST + 3));
    assert_eq!(node.world.counted(Counter::DropStrayResponse), 1);
}

#[test]
fn acks_of_what_was_never_sent_are_strays() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 10);
    node.handle(ack(FIRST));
    assert_eq!(node.qp.retired(), 0);
    node.sent();
    node.handle(ack(FIRST + 1));
    node.handle(ack(FIRST - 1));
    assert_eq!(node.qp.retired(), 0);
    assert_eq!(node.world.counted(Counter::DropStrayResponse), 3);
}

#[test]
fn sequence_nak_restarts_in_the_middle_of_a_message() {
    let mut node = Node::rc();
    node.post(1, WRITE, 256 * 4);
    node.post(2, SendOp::Send, 5);
    node.sent();
    node.handle(nak(FIRST + 2, NakCode::PsnSequence));
    assert_eq!(
        node.ladder(),
        [
            (RcWriteMiddle, 102, 256),
            (RcWriteLast, 103, 256),
            (RcSendOnly, 104, 5)
        ]
    );
    assert_eq!(node.world.counted(Counter::SeqNakReceived), 1);
    assert_eq!(node.world.counted(Counter::Retry), 1);
}

#[test]
fn an_ack_after_going_back_saves_the_repetition() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 4);
    node.sent();
    node.timeout();
    node.handle(ack(FIRST + 2));
    assert_eq!(node.ladder(), [(RcSendLast, 103, 256)]);
}

#[test]
fn retries_are_counted_and_end() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, SendOp::Send, 5);
    node.sent();
    for _ in 0..3 {
        assert_eq!(node.timeout(), 4096 << 14);
        assert_eq!(node.sent().len(), 2);
    }
    node.timeout();
    assert_eq!(node.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(node.qp.state(), QpState::Err);
    assert!(node.poll(64).is_none());
    assert_eq!(node.qp.poll_timeout(), None);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(node.statuses()[1], (2, WcStatus::WrFlushErr));
    assert_eq!(node.qp.retired(), 2);
}

#[test]
fn progress_refills_the_retries() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 20);
    for psn in 0..20 {
        node.sent();
        for _ in 0..3 {
            node.timeout();
            node.sent();
        }
        node.handle(ack(FIRST + psn));
    }
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn repeated_naks_do_not_use_up_the_retries_but_the_timer_does() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.sent();
    for _ in 0..20 {
        node.handle(nak(FIRST, NakCode::PsnSequence));
        assert_eq!(node.sent().len(), 1);
    }
    for _ in 0..3 {
        node.timeout();
        node.handle(nak(FIRST, NakCode::PsnSequence));
        node.sent();
        node.handle(nak(FIRST, NakCode::PsnSequence));
        node.sent();
        if node.qp.state() == QpState::Err {
            break;
        }
    }
    assert_eq!(node.statuses(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn no_timeout_without_a_timer() {
    let mut attr = attributes();
    attr.timeout = 0;
    let mut node = Node::with(crate::qp::state::QpKind::Rc, &attr);
    node.post(1, SendOp::Send, 5);
    node.sent();
    assert_eq!(node.qp.poll_timeout(), None);
}

#[test]
fn rnr_waits_then_gives_up() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, SendOp::Send, 5);
    node.sent();
    node.handle(rnr(FIRST + 1, 14));
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
    assert!(node.poll(64).is_none());
    // A second copy of the NAK changes nothing.
    node.handle(rnr(FIRST + 1, 14));
    node.later(1_000);
    node.qp.handle_timeout(node.now, &mut node.world);
    assert!(node.poll(64).is_none());
    assert_eq!(node.timeout(), 1_280_000 - 1_000);
    assert_eq!(node.ladder(), [(RcSendOnly, 101, 5)]);
    node.handle(rnr(FIRST + 1, 1));
    assert_eq!(node.timeout(), 10_000);
    assert_eq!(node.sent().len(), 1);
    node.handle(rnr(FIRST + 1, 1));
    assert_eq!(node.statuses()[1], (2, WcStatus::RnrRetryExcErr));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.counted(Counter::RnrReceived), 3);
}

#[test]
fn rnr_retry_seven_never_ends() {
    let mut attr = attributes();
    attr.rnr_retry = 7;
    let mut node = Node::with(crate::qp::state::QpKind::Rc, &attr);
    node.post(1, SendOp::Send, 5);
    for _ in 0..100 {
        assert_eq!(node.sent().len(), 1);
        node.handle(rnr(FIRST, 0));
        assert_eq!(node.timeout(), 655_360_000);
    }
    node.sent();
    node.handle(ack(FIRST));
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn fatal_naks_fail_the_right_wqe() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
    ] {
        let mut node = Node::rc();
        node.post(1, SendOp::Send, 5);
        node.post(2, WRITE, 1000);
        node.post(3, SendOp::Send, 5);
        node.sent();
        node.handle(nak(FIRST + 2, code));
        assert_eq!(node.statuses(), [(1, WcStatus::Success), (2, status)]);
        assert_eq!(node.qp.state(), QpState::Err);
        assert!(node.world.events.is_empty());
    }
}

fn read_response(psn: u32, opcode: Opcode, payload: u32) -> crate::wire::Packet {
    packet(opcode, psn, payload)
}

#[test]
fn invalid_wqe_completes_in_its_turn() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, SendOp::Invalid(WcStatus::LocQpOpErr), 0);
    node.post(3, SendOp::Send, 5);
    assert_eq!(node.sent().len(), 1);
    assert!(node.statuses().is_empty());
    node.handle(ack(100));
    assert_eq!(
        node.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr)]
    );
    node.qp.flush(node.now, &mut node.world, 16);
    assert_eq!(node.statuses()[2], (3, WcStatus::WrFlushErr));
}

#[test]
fn unreadable_payload_fails_the_wqe_in_its_turn() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, SendOp::Send, 1000);
    node.poll(64).unwrap();
    let run = node.poll(64).unwrap();
    node.qp
        .payload_failed(&run, 1, MemoryError::Access, &mut node.world);
    assert!(node.statuses().is_empty());
    assert!(node.poll(64).is_none());
    // Lost: the first WQE is repeated all the same, and what was readable of the second.
    node.timeout();
    assert_eq!(node.ladder(), [(RcSendOnly, 100, 5)]);
    node.handle(ack(100));
    assert_eq!(
        node.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]
    );
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn unreadable_payload_of_the_only_wqe_fails_at_once() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    let run = node.poll(64).unwrap();
    node.qp
        .payload_failed(&run, 0, MemoryError::Access, &mut node.world);
    assert_eq!(node.statuses(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn congestion_pauses_and_resumes_without_a_retry() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 4);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let run = node.poll(64).unwrap();
        assert_eq!((run.psn.get(), run.count), (100, 4));
        node.qp.congested(node.now, &run, 0);
        assert!(node.poll(64).is_none());
        pauses.push(node.timeout() / 1000);
    }
    assert_eq!(pauses, [200, 400, 800, 800, 800, 800, 800, 800]);
    // None of it was sent: an ACK of it is a stray.
    node.handle(ack(100));
    assert_eq!(node.world.counted(Counter::DropStrayResponse), 1);
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 2);
    node.handle(ack(102));
    assert_eq!(node.world.counted(Counter::DropStrayResponse), 2);
    node.handle(ack(101));
    assert_eq!(node.timeout(), 200_000);
    assert_eq!(
        node.ladder(),
        [(RcSendMiddle, 102, 256), (RcSendLast, 103, 256)]
    );
    node.handle(ack(103));
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(node.world.counted(Counter::Retry), 0);
}

#[test]
fn a_full_cq_is_fatal() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.sent();
    node.world.cq_full = true;
    node.handle(ack(100));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.events, [QpEvent::Fatal]);
}

#[test]
fn psns_wrap() {
    let mut attr = attributes();
    attr.sq_psn = 0xff_fffe;
    let mut node = Node::with(crate::qp::state::QpKind::Rc, &attr);
    node.post(1, SendOp::Send, 256 * 4);
    let psns: Vec<_> = node.sent().iter().map(|p| p.bth.psn.get()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1]);
    node.handle(ack(0));
    node.handle(ack(1));
    assert_eq!(node.qp.retired(), 1);
}

#[test]
fn the_longest_message() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1 << 31);
    node.post(2, READ, 1 << 31);
    let mut psn = 0;
    while node.statuses().is_empty() {
        let sent = node.sent().len() as u32;
        assert_ne!(sent, 0);
        psn += sent;
        node.handle(ack(FIRST + psn - 1));
    }
    assert_eq!(psn, 1 << 23);
    let first = node.sent()[0];
    assert_eq!(first.bth.psn.get(), FIRST + (1 << 23));
}

#[test]
fn a_message_that_is_too_long() {
    let mut node = Node::rc();
    node.post(3, SendOp::Send, (1 << 31) + 1);
    assert!(node.sent().is_empty());
    assert_eq!(node.statuses(), [(3, WcStatus::LocLenErr)]);
}

#[test]
fn slots_come_back() {
    let mut node = Node::rc();
    for id in 0..64 {
        assert_eq!(node.qp.next_slot(), Some(id));
        node.post(id.into(), SendOp::Send, 0);
    }
    assert_eq!(node.qp.next_slot(), None);
    assert!(node.qp.post(SendWqe::new(0, SendOp::Send, 0)).is_err());
    node.sent();
    node.handle(ack(FIRST + 9));
    assert_eq!(node.qp.next_slot(), Some(0));
}

#[test]
fn a_place_is_free_before_its_completion_is_seen() {
    let mut node = Node::rc();
    for id in 0..3 {
        let mut wqe = SendWqe::new(id, SendOp::Send, 10);
        wqe.signaled = id != 1;
        node.qp.post(wqe).unwrap();
    }
    node.sent();
    node.handle(ack(FIRST + 2));
    assert_eq!(node.world.retired_at, [1, 3]);
}
