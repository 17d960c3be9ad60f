// SPDX-License-Identifier: GPL-2.0
//! A deterministic network of two RoCE queue pairs.
//!
//! ```text
//!        Host A                                                Host B
//!   Qp + World (Env) --- emit, ICRC --> Link --> ICRC, parse --- Qp + World
//!                    <--------------- Link <----------------
//! ```
//!
//! Nothing here has a clock, a thread or a socket: time is a number that jumps to the next thing
//! that happens, and all chance comes from one seed, so that a run can be had again exactly. Packets
//! go through the real wire code: a [`host::Host`] writes headers, payload and ICRC into bytes, a
//! [`link::Link`] loses, repeats, delays or damages them, and the other host checks the ICRC and
//! parses them.
//!
//! [`pair::Pair`] is two hosts and what lies between them; [`workload`] makes worlds from seeds.
//! When a test fails, the pair prints the [`ladder`] of packets on its way out.

pub mod host;
pub mod ladder;
pub mod link;
pub mod pair;
pub mod workload;
pub mod world;
