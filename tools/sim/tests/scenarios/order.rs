// SPDX-License-Identifier: GPL-2.0
//! What waits for what, and how many packets it takes.

use crate::{
    pair,
    pair_to_read,
    patient,
    pattern,
    sent,
    KEY,
    ROUND_TRIP,
    VA, //
};
use roce::{
    cqe::WcStatus::Success,
    types::{
        Mtu,
        Psn, //
    },
    wire::{
        Opcode,
        Operation, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    }, //
};
use sim::{
    pair::{
        Config,
        End,
        Pair, //
    },
    world::Region, //
};

#[test]
//= IBA 10.8.3.3
//= type=test
fn a_fence_waits_for_reads() {
    let mut pair = pair(&patient());
    let (va, rkey) = (VA, KEY);
    pair.send(End::A, 1, SendOp::Write { va, rkey }, &[1; 2000]);
    let va = VA + 10_000;
    pair.send(End::A, 2, SendOp::Read { va, rkey }, &[0; 4000]);
    let mut fenced = SendWqe::new(3, SendOp::Write { va, rkey }, 100);
    fenced.fence = true;
    assert!(pair.post_send(End::A, fenced, vec![3; 100]));
    pair.run_for(ROUND_TRIP / 2);
    assert_eq!(sent(&pair, End::A, Operation::Write).len(), 2);
    pair.run(3 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [1, 2, 3].map(|n| (n, Success)));
    // It found what was there before the fenced WRITE.
    assert_eq!(pair.a.world.read_results, [[0xee; 4000]]);
}

#[test]
fn no_more_reads_at_once_than_agreed() {
    for reads in [1, 3] {
        let mut pair = pair_to_read(&Config { reads, ..patient() });
        for wr_id in 0..9 {
            let va = VA + wr_id * 100;
            pair.send(End::A, wr_id, SendOp::Read { va, rkey: KEY }, &[0; 100]);
        }
        assert_eq!(
            sent(&pair, End::A, Operation::ReadRequest).len(),
            usize::from(reads)
        );
        pair.run(10 * ROUND_TRIP);
        assert_eq!(pair.sent(End::A).len(), 9);
        let all = pattern(900);
        for (i, result) in pair.a.world.read_results.iter().enumerate() {
            assert_eq!(result[..], all[i * 100..][..100]);
        }
    }
}

#[test]
fn completions_come_in_the_order_of_posting() {
    // The READ is answered last but completes second.
    let mut pair = pair(&patient());
    let (va, rkey) = (VA, KEY);
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 1, SendOp::Write { va, rkey }, &[1; 10]);
    pair.send(End::A, 2, SendOp::Read { va, rkey }, &[0; 10]);
    pair.send(End::A, 3, SendOp::Send, b"x");
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [1, 2, 3].map(|n| (n, Success)));
    assert_eq!(pair.a.world.read_results, [[1; 10]]);
}

#[test]
fn acks_are_coalesced() {
    let config = Config {
        slots: 64,
        max_run: 64,
        ..patient()
    };
    let mut pair = pair(&config);
    pair.batch = 16;
    for wr_id in 0..64 {
        pair.receive(End::B, wr_id, 10);
        pair.send(End::A, wr_id, SendOp::Send, b"x");
    }
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A).len(), 64);
    let acks = sent(&pair, End::B, Operation::Acknowledge).len();
    assert!(acks <= 4 + 1, "{acks} ACKs for 4 batches");
}

/// The opcodes that A sends for a message of `length` bytes.
fn opcodes(op: SendOp, length: usize) -> Vec<Opcode> {
    let config = Config {
        mtu: Mtu::M256,
        ..patient()
    };
    let mut pair = pair(&config);
    pair.b.world.regions.insert(1, Region::window());
    pair.receive(End::B, 1, 10_000);
    pair.send(End::A, 1, op, &pattern(length));
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(1, Success)]);
    let sent: Vec<_> = pair.ladder.sent(End::A).map(|(_, p, _)| p).collect();
    // The last packet asks for an ACK.
    assert!(sent.last().unwrap().bth.ack_req);
    sent.iter().map(|p| p.bth.opcode).collect()
}

#[test]
//= IBA 9.2.1
//= type=test
fn every_operation_in_packets() {
    use roce::types::RKey;
    use Opcode::*;
    let imm = [0; 4];
    let (va, rkey) = (VA, KEY);
    for (op, only, many) in [
        (
            SendOp::Send,
            RcSendOnly,
            [RcSendFirst, RcSendMiddle, RcSendLast],
        ),
        (
            SendOp::SendImm(imm),
            RcSendOnlyImm,
            [RcSendFirst, RcSendMiddle, RcSendLastImm],
        ),
        (
            SendOp::SendInv(RKey(1)),
            RcSendOnlyInv,
            [RcSendFirst, RcSendMiddle, RcSendLastInv],
        ),
        (
            SendOp::Write { va, rkey },
            RcWriteOnly,
            [RcWriteFirst, RcWriteMiddle, RcWriteLast],
        ),
        (
            SendOp::WriteImm { va, rkey, imm },
            RcWriteOnlyImm,
            [RcWriteFirst, RcWriteMiddle, RcWriteLastImm],
        ),
    ] {
        assert_eq!(opcodes(op, 0), [only]);
        assert_eq!(opcodes(op, 256), [only]);
        assert_eq!(opcodes(op, 257), [many[0], many[2]]);
        assert_eq!(opcodes(op, 512), [many[0], many[2]]);
        assert_eq!(opcodes(op, 513), many);
    }
}

#[test]
fn psns_wrap_inside_a_message() {
    let mut pair = pair(&Config {
        psn_a: Psn::new(0xff_fffe),
        psn_b: Psn::new(0xff_ffff),
        ..patient()
    });
    let bytes = pattern(5 * 1024);
    let (va, rkey) = (VA, KEY);
    pair.send(End::A, 1, SendOp::Write { va, rkey }, &bytes);
    pair.send(End::A, 2, SendOp::Read { va, rkey }, &[0; 5 * 1024]);
    pair.run(3 * ROUND_TRIP);
    assert_eq!(pair.a.world.read_results, [bytes]);
    let psns: Vec<_> = sent(&pair, End::A, Operation::Write)
        .iter()
        .map(|p| p.bth.psn.get())
        .collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
}

#[test]
fn only_the_last_packet_is_solicited() {
    let mut pair: Pair = pair(&patient());
    pair.receive(End::B, 1, 10_000);
    let mut wqe = SendWqe::new(1, SendOp::Send, 5000);
    wqe.solicited = true;
    assert!(pair.post_send(End::A, wqe, pattern(5000)));
    pair.run(2 * ROUND_TRIP);
    let solicited: Vec<_> = sent(&pair, End::A, Operation::Send)
        .iter()
        .map(|p| p.bth.solicited)
        .collect();
    assert_eq!(solicited, [false, false, false, false, true]);
    assert!(pair.b.world.received[0].cqe.solicited);
}
