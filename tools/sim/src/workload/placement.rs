// SPDX-License-Identifier: GPL-2.0
//! Atomic operations, ATOMIC WRITEs and FLUSHes of a stream: since nobody else touches the memory
//! that they work on, what each of them finds is known before it is posted.

use crate::{
    workload::{
        WRITABLE,
        WRITABLE_VA, //
    },
    world::{
        Region,
        World, //
    }, //
};
use fastrand::Rng;
use roce::{
    types::RKey,
    wire::{
        Feth,
        Selectivity, //
    },
    wqe::{
        AtomicOp,
        SendOp, //
    }, //
};

/// Key of the words for atomic operations.
const WORDS: RKey = RKey(0x0000_0303);
const WORDS_VA: u64 = 0x7000_0008;
const COUNT: usize = 4;
/// Key of the memory for ATOMIC WRITEs.
const STORES: RKey = RKey(0x0000_0404);
const STORES_VA: u64 = 0x1_0000_0000;

/// What the operations of a stream leave at the peer.
#[derive(Default)]
pub(super) struct Placement {
    words: [u64; COUNT],
    stores: Vec<u8>,
    /// At each FLUSH: the bytes that WRITEs before it have written.
    flushes: Vec<usize>,
}

impl Placement {
    /// The next operation, with what it sends or is to find; `written` bytes were written by WRITEs
    /// before it.
    pub(super) fn next(&mut self, written: usize, rng: &mut Rng) -> (SendOp, Vec<u8>) {
        match rng.u32(0..6) {
            0 => {
                let va = STORES_VA + self.stores.len() as u64;
                let bytes = rng.u64(..).to_ne_bytes();
                self.stores.extend_from_slice(&bytes);
                (SendOp::AtomicWrite { va, rkey: STORES }, bytes.to_vec())
            }
            1 => {
                self.flushes.push(written);
                let op = SendOp::Flush {
                    va: WRITABLE_VA,
                    rkey: WRITABLE,
                    length: written as u32,
                    feth: Feth {
                        global: true,
                        persistent: false,
                        reserved: false,
                        selectivity: Selectivity::Range,
                    },
                };
                (op, Vec::new())
            }
            kind => {
                let index = rng.usize(0..COUNT);
                let word = &mut self.words[index];
                let original = *word;
                let op = match kind {
                    2 | 3 => {
                        let add = rng.u64(..);
                        *word = original.wrapping_add(add);
                        AtomicOp::FetchAdd(add)
                    }
                    4 => {
                        let swap = rng.u64(..);
                        *word = swap;
                        AtomicOp::CompareSwap {
                            compare: original,
                            swap,
                        }
                    }
                    _ => AtomicOp::CompareSwap {
                        compare: original.wrapping_add(rng.u64(1..)),
                        swap: rng.u64(..),
                    },
                };
                let va = WORDS_VA + 8 * index as u64;
                let rkey = WORDS;
                (
                    SendOp::Atomic { va, rkey, op },
                    original.to_ne_bytes().to_vec(),
                )
            }
        }
    }

    /// Makes the memory at the peer.
    pub(super) fn prepare(&self, world: &mut World) {
        let regions = &mut world.regions;
        regions.insert(WORDS.0, Region::words(WORDS_VA, COUNT));
        regions.insert(STORES.0, Region::writable(STORES_VA, self.stores.len()));
    }

    /// Each operation was carried out once, in its turn.
    pub(super) fn check(&self, world: &World) {
        let bytes = |rkey: RKey| &world.regions[&rkey.0].memory.bytes;
        let words: Vec<u8> = self.words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert!(*bytes(WORDS) == words, "atomic operations: wrong values");
        assert!(*bytes(STORES) == self.stores, "ATOMIC WRITE: wrong bytes");
        assert_eq!(world.flushed, self.flushes, "FLUSH");
    }
}
