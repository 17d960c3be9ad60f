// SPDX-License-Identifier: GPL-2.0
//! ferroce: an RDMA device in software.
//!
//! Registers an RDMA device on any network interface and speaks RoCEv2. See
//! `Documentation/architecture` for the whole picture; in short: verbs ([`verbs`]) and packets
//! ([`listener`]) come to a queue pair ([`qp`]), which asks the protocol crate `roce` what to do
//! and does it with memory ([`region`]), rings ([`queue`]) and completions ([`completion`]).

#![crate_name = "ferroce"]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod address;
mod completion;
mod counters;
mod crc;
mod device;
mod error;
mod fifo;
mod groups;
mod link;
mod listener;
mod port;
mod posted;
mod prefetch;
mod qp;
mod queue;
mod receives;
mod region;
mod uapi;
mod verbs;
mod xrc;

use kernel::prelude::*;
use rdma::{
    link::LinkOps,
    net::Notifier, //
};

module! {
    type: Module,
    name: "ferroce",
    authors: ["The ferroce developers"],
    description: "RDMA device in software, over any network interface (RoCEv2)",
    license: "GPL",
    alias: ["rdma-link-ferroce"],
    params: {
        max_objects: u32 {
            default: 1_048_576,
            description: "Most QPs, CQs, SRQs, PDs, memory regions and windows together, and AHs of a device (1048576; AHs 65536)",
        },
    },
}

/// What the loaded module holds, in the order in which it is given up.
#[pin_data]
struct Module {
    /// No device is made any more, and those that are left are unregistered.
    #[pin]
    links: LinkOps<device::Ferroce>,
    /// Until then, devices are told when their network interface goes.
    netdevs: Notifier<device::Ferroce>,
    /// Nothing of ours is left to be called afterwards.
    quiesced: Quiesced,
}

/// Waits at its end until no deferred call refers to this module.
struct Quiesced;

impl Drop for Quiesced {
    fn drop(&mut self) {
        rdma::sync::quiesce();
    }
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            quiesced: Quiesced,
            netdevs: Notifier::register()?,
            links <- LinkOps::new(c"ferroce", link::Shared::new()?),
        }? Error)
    }
}
