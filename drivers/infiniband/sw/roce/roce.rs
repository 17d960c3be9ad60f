// SPDX-License-Identifier: GPL-2.0
//! The RoCEv2 protocol, sans-IO.
//!
//! This crate decides; it never touches memory, time or the network itself. It parses and writes
//! headers ([`wire`]), keeps the state of a queue pair ([`qp`]) and tells the driver what to send
//! next as [`run::Run`]s of consecutive packets. Everything it needs from outside, it asks of an
//! [`env::Env`] that the caller passes in.
//!
//! It has no clock (the time is an argument), no lock (the caller holds the QP's lock), no
//! allocation (storage is handed in) and no log (it counts, see [`env::Counter`]).
#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
// Total: whatever comes in, nothing here panics. The object code is checked for it, this tells where.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used,
        clippy::wildcard_enum_match_arm
    )
)]

#[cfg(test)]
extern crate std;

mod completer;
pub mod cqe;
pub mod datagram;
pub mod env;
pub mod qp;
pub mod requester;
pub mod responder;
pub mod run;
#[cfg(test)]
mod testing;
pub mod types;
pub mod wire;
pub mod wqe;
