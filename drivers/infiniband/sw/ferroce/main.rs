// SPDX-License-Identifier: GPL-2.0

//! An RDMA device in software: RoCEv2 on top of any network interface.

use kernel::prelude::*;

module! {
    type: Ferroce,
    name: "ferroce",
    authors: ["the ferroce developers"],
    description: "RDMA over Converged Ethernet (RoCEv2) in software",
    license: "GPL",
    alias: ["rdma-link-ferroce"],
}

struct Ferroce;

impl kernel::Module for Ferroce {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
