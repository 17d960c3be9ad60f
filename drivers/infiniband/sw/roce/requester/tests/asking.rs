// SPDX-License-Identifier: GPL-2.0
//! Which packets ask for an ACK, and what happens when none did.

use super::*;

/// Posts a message whose completion nobody waits for.
fn post_quiet(node: &mut Node, wr_id: u64, length: u32) {
    let mut wqe = SendWqe::new(wr_id, SendOp::Send, length);
    wqe.signaled = false;
    node.qp.post(wqe).unwrap();
}

fn asking(sent: &[crate::wire::Packet]) -> Vec<u32> {
    sent.iter()
        .filter(|packet| packet.bth.ack_req)
        .map(|packet| packet.bth.psn.get())
        .collect()
}

#[test]
fn only_signaled_messages_ask() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    post_quiet(&mut node, 2, 300);
    node.post(3, SendOp::Send, 10);
    let sent = node.sent();
    assert_eq!(asking(&sent), [FIRST + 3]);
    node.handle(ack(FIRST + 3));
    assert_eq!(node.qp.retired(), 3);
    assert_eq!(node.statuses(), [(3, WcStatus::Success)]);
    assert!(node.qp.poll_timeout().is_none());
}

#[test]
fn when_slots_become_scarce_all_ask() {
    let mut node = Node::rc();
    let mut posted = 0;
    while node.qp.next_slot().is_some() {
        post_quiet(&mut node, 1, 1);
        posted += 1;
    }
    let asked = asking(&node.sent());
    assert!(asked.len() >= posted / 2, "{asked:?} of {posted}");
    assert!(asked.last() == Some(&(FIRST + posted as u32 - 1)));
}

#[test]
fn the_last_packet_asks_late_and_that_is_no_retry() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    post_quiet(&mut node, 2, 700);
    assert_eq!(asking(&node.sent()), [0u32; 0]);
    assert_eq!(node.timeout(), 500_000);
    let again = node.sent();
    assert_eq!(asking(&again), [FIRST + 3]);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bth.opcode, RcSendLast);
    assert_eq!(node.world.counted(Counter::Retry), 0);
    assert_eq!(node.world.counted(Counter::AckTimeout), 0);
    node.handle(ack(FIRST + 3));
    assert_eq!(node.qp.retired(), 2);
    assert!(node.qp.poll_timeout().is_none());
}

#[test]
fn a_peer_that_missed_something_says_so_when_it_is_asked() {
    let mut node = Node::rc();
    for id in 0..3 {
        post_quiet(&mut node, id, 10);
    }
    node.sent();
    node.timeout();
    node.sent();
    node.handle(nak(FIRST + 1, NakCode::PsnSequence));
    let again = node.ladder();
    assert_eq!(again.first(), Some(&(RcSendOnly, FIRST + 1, 10)));
    assert_eq!(again.len(), 2);
}

#[test]
fn whoever_asks_in_vain_retries() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    node.sent();
    node.timeout();
    node.sent();
    node.timeout();
    assert_eq!(node.world.counted(Counter::AckTimeout), 1);
    assert_eq!(asking(&node.sent()), [FIRST]);
}

#[test]
fn a_later_message_that_asks_stands_for_all() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    node.sent();
    node.post(2, SendOp::Send, 10);
    node.sent();
    let deadline = node.qp.poll_timeout().unwrap().0 - node.now.0;
    assert!(deadline > 500_000, "{deadline}");
}

#[test]
fn the_response_of_a_read_stands_for_those_before_it() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    node.post(2, READ, 10);
    node.sent();
    node.timeout();
    assert!(node.poll(64).is_none());
    let mut response = packet(RcReadResponseOnly, FIRST + 1, 10);
    response.bth.ack_req = false;
    node.handle(response);
    assert_eq!(node.qp.retired(), 2);
}

#[test]
fn nobody_asks_while_waiting_for_the_receiver() {
    let mut node = Node::rc();
    post_quiet(&mut node, 1, 10);
    node.sent();
    node.handle(rnr(FIRST, 14));
    assert_eq!(node.timeout(), 1_280_000);
    assert_eq!(node.ladder(), [(RcSendOnly, FIRST, 10)]);
}

#[test]
fn an_overdue_answer_is_asked_for_once_and_that_is_no_retry() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 10);
    node.sent();
    node.later(100_000);
    node.handle(ack(FIRST));
    node.post(2, SendOp::Send, 300);
    node.sent();
    assert_eq!(node.timeout(), 700_000);
    assert_eq!(node.ladder(), [(RcSendLast, FIRST + 2, 44)]);
    assert_eq!(node.world.counted(Counter::Retry), 0);
    assert_eq!(node.world.counted(Counter::AckTimeout), 0);
    // Then it is left to the timer.
    node.timeout();
    assert_eq!(node.world.counted(Counter::AckTimeout), 1);
    assert_eq!(node.sent().len(), 2);
    node.handle(ack(FIRST + 2));
    assert!(node.qp.poll_timeout().is_none());
}

#[test]
fn a_short_message_that_asks_at_its_end_does_not_before() {
    let mut node = Node::rc();
    for id in 0..4 {
        node.post(id, SendOp::Send, 16 * 256);
    }
    let ends = [15, 31, 47, 63].map(|end| FIRST + end);
    assert_eq!(asking(&node.sent()), ends);
}
