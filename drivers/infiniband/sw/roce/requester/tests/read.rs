// SPDX-License-Identifier: GPL-2.0
//! READs of ours.

use super::*;

#[test]
fn big_reads_go_in_pieces_bounded_by_max_rd_atomic() {
    let mut node = Node::rc();
    let length = 256 * (READ_PIECE * 3 + 1);
    node.post(1, READ, length);
    let sent = node.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].bth.psn.get(), FIRST + READ_PIECE);
    assert_eq!(sent[1].reth.unwrap().va, BASE + 256 * u64::from(READ_PIECE));
    assert_eq!(sent[1].reth.unwrap().length, 256 * READ_PIECE);
    for n in 0..READ_PIECE {
        let opcode = match n {
            0 => RcReadResponseFirst,
            63 => RcReadResponseLast,
            _ => RcReadResponseMiddle,
        };
        assert!(node.sent().is_empty());
        node.handle(read_response(FIRST + n, opcode, 256));
    }
    assert_eq!(node.ladder(), [(RcReadRequest, FIRST + 2 * READ_PIECE, 0)]);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_read_of_one_piece() {
    let mut node = Node::rc();
    node.post(1, READ, 600);
    node.sent();
    node.handle(read_response(100, RcReadResponseFirst, 256));
    node.handle(read_response(101, RcReadResponseMiddle, 256));
    node.handle(read_response(102, RcReadResponseLast, 88));
    assert_eq!(node.world.read, [(0, 0, 256), (0, 256, 256), (0, 512, 88)]);
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(node.world.sends[0].byte_len, 600);
    node.post(2, READ, 0);
    assert_eq!(node.ladder(), [(RcReadRequest, 103, 0)]);
    node.handle(read_response(103, RcReadResponseOnly, 0));
    assert_eq!(node.qp.retired(), 2);
}

#[test]
fn responses_that_are_overdue_are_asked_for_again() {
    let mut node = Node::rc();
    node.post(1, READ, 256);
    node.sent();
    node.later(1000);
    node.handle(read_response(FIRST, RcReadResponseOnly, 256));
    node.post(2, READ, 4 * 256);
    node.sent();
    node.handle(read_response(FIRST + 1, RcReadResponseFirst, 256));
    node.handle(read_response(FIRST + 2, RcReadResponseMiddle, 256));
    assert_eq!(node.timeout(), 502_000);
    let again = node.sent();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bth.psn.get(), FIRST + 3);
    assert_eq!(again[0].reth.unwrap().length, 2 * 256);
    assert_eq!(node.world.counted(Counter::Retry), 0);
}

#[test]
fn responses_from_the_middle_at_once() {
    let mut node = Node::rc();
    let middle = |psn| read_response(psn, RcReadResponseMiddle, 256);
    node.post(1, READ, 256 * 10);
    node.sent();
    // Not the first, nor before it.
    assert!(!node.handle_middles(middle(100), 2));
    assert!(!node.handle_middles(middle(101), 2));
    node.handle(read_response(100, RcReadResponseFirst, 256));
    // Nor the last, nor what is short or comes too early.
    assert!(!node.handle_middles(middle(101), 9));
    assert!(!node.handle_middles(middle(102), 2));
    assert!(!node.handle_middles(read_response(101, RcReadResponseMiddle, 252), 2));
    assert!(node.handle_middles(middle(101), 8));
    assert!(node.statuses().is_empty());
    node.handle(read_response(109, RcReadResponseLast, 256));
    assert_eq!(
        node.world.read,
        [(0, 0, 256), (0, 256, 8 * 256), (0, 9 * 256, 256)]
    );
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}

/// A response that goes on where a piece ends is taken packet by packet.
#[test]
fn responses_from_the_middle_of_two_pieces() {
    let mut node = Node::rc();
    let middle = |psn| read_response(psn, RcReadResponseMiddle, 256);
    node.post(1, READ, 256 * READ_PIECE * 2);
    node.sent();
    node.handle(read_response(FIRST, RcReadResponseFirst, 256));
    assert!(!node.handle_middles(middle(FIRST + 1), READ_PIECE));
    assert!(!node.handle_middles(middle(FIRST + 1), READ_PIECE - 1));
    assert!(node.handle_middles(middle(FIRST + 1), READ_PIECE - 2));
}

#[test]
fn a_gap_in_a_read_is_asked_for_at_once_and_once() {
    let mut node = Node::rc();
    node.post(1, READ, 256 * 10);
    node.sent();
    node.handle(read_response(100, RcReadResponseFirst, 256));
    for psn in 102..109 {
        node.handle(read_response(psn, RcReadResponseMiddle, 256));
    }
    let sent = node.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].bth.psn.get(), 101);
    assert_eq!(sent[0].reth.unwrap().va, BASE + 256);
    assert_eq!(sent[0].reth.unwrap().length, 256 * 9);
    node.handle(read_response(109, RcReadResponseLast, 256));
    assert!(node.sent().is_empty());
    assert_eq!(node.world.counted(Counter::ImpliedNak), 1);
    // The first packet of the second stream is lost again.
    node.later(10);
    node.handle(read_response(102, RcReadResponseMiddle, 256));
    assert_eq!(node.ladder(), [(RcReadRequest, 101, 0)]);
    node.handle(read_response(101, RcReadResponseFirst, 256));
    for psn in 102..109 {
        node.handle(read_response(psn, RcReadResponseMiddle, 256));
    }
    node.handle(read_response(109, RcReadResponseLast, 256));
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn an_ack_beyond_a_read_asks_for_the_read_again() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, READ, 512);
    node.post(3, SendOp::Send, 5);
    node.sent();
    node.handle(ack(103));
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(
        node.ladder(),
        [(RcReadRequest, 101, 0), (RcSendOnly, 103, 5)]
    );
}

#[test]
fn a_read_response_acknowledges_what_is_before_it() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, READ, 5);
    node.sent();
    node.handle(read_response(101, RcReadResponseOnly, 5));
    assert_eq!(
        node.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
}

#[test]
fn bad_read_responses() {
    for response in [
        read_response(100, RcReadResponseFirst, 255),
        read_response(100, RcReadResponseMiddle, 256),
        read_response(100, RcReadResponseOnly, 256),
        read_response(100, RcReadResponseLast, 256),
        packet(RcAtomicAcknowledge, 100, 0),
    ] {
        let mut node = Node::rc();
        node.post(1, READ, 512);
        node.sent();
        node.handle(response);
        assert_eq!(node.statuses(), [(1, WcStatus::BadRespErr)]);
        assert_eq!(node.qp.state(), QpState::Err);
    }
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.sent();
    node.handle(read_response(100, RcReadResponseOnly, 5));
    assert_eq!(node.statuses(), [(1, WcStatus::BadRespErr)]);
}

#[test]
fn a_read_into_bad_memory() {
    let mut node = Node::rc();
    node.post(1, READ, 5);
    node.sent();
    node.world.deny_send = Some(MemoryError::Access);
    node.handle(read_response(100, RcReadResponseOnly, 5));
    assert_eq!(node.statuses(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn fence_waits_for_reads_only() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 5);
    node.post(2, READ, 5);
    let mut fenced = SendWqe::new(3, SendOp::Send, 5);
    fenced.fence = true;
    node.qp.post(fenced).unwrap();
    assert_eq!(node.sent().len(), 2);
    node.handle(ack(100));
    assert!(node.sent().is_empty());
    node.handle(read_response(101, RcReadResponseOnly, 5));
    assert_eq!(node.ladder(), [(RcSendOnly, 102, 5)]);
}

#[test]
fn congestion_of_a_read_request_gives_its_place_back() {
    let mut attr = attributes();
    attr.max_rd_atomic = 1;
    let mut node = Node::with(crate::qp::state::QpKind::Rc, &attr);
    node.post(1, READ, 5);
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    node.timeout();
    assert_eq!(node.ladder(), [(RcReadRequest, 100, 0)]);
}
