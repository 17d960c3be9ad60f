// SPDX-License-Identifier: GPL-2.0
//! One thing at a time: what the two ends do in a situation that is made for it.

mod errors;
mod not_ready;
mod order;
mod recovery;
mod slow_reader;
mod states;

use roce::{
    types::RKey,
    wire::{
        Operation,
        Packet, //
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

/// Key of memory at B that A may read and write.
const KEY: RKey = RKey(0x77);
/// Its address.
const VA: u64 = 0x10_0000;
/// Its length.
const LEN: usize = 64 << 10;

/// One way, in nanoseconds.
const DELAY: u64 = 5_000;
/// There and back.
const ROUND_TRIP: u64 = 2 * DELAY;

/// A pair on a clean link whose ACK timeout (67 ms) is far longer than anything else.
fn patient() -> Config {
    Config {
        timeout: 14,
        delay_ns: DELAY,
        ..Config::default()
    }
}

/// A pair with memory at B.
fn pair(config: &Config) -> Pair {
    let mut pair = Pair::new(config, 1);
    pair.b
        .world
        .regions
        .insert(KEY.0, Region::writable(VA, LEN));
    pair
}

/// A pair with readable memory at B, filled with [`pattern`].
fn pair_to_read(config: &Config) -> Pair {
    let mut pair = Pair::new(config, 1);
    pair.b
        .world
        .regions
        .insert(KEY.0, Region::readable(VA, pattern(LEN)));
    pair
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + (i >> 8)) as u8).collect()
}

/// The packets that one end sent with this operation.
fn sent(pair: &Pair, end: End, operation: Operation) -> Vec<Packet> {
    pair.ladder
        .sent(end)
        .map(|(_, packet, _)| packet)
        .filter(|packet| packet.bth.opcode.operation() == operation)
        .collect()
}

/// Whether a packet is an ACK or NAK.
fn is_ack(packet: &Packet) -> bool {
    packet.bth.opcode.operation() == Operation::Acknowledge
}
