// SPDX-License-Identifier: GPL-2.0
//! The ways that the packets of a QP take: to its peer, or to the addresses of its datagrams.
//!
//! A way is a route with what all packets on it have in common. Its making costs more than all the
//! rest of a short packet, so it is kept.

use crate::{
    crc::{
        FlowCrc,
        TrainCrc, //
    },
    port::Port, //
};
use kernel::prelude::*;
use rdma::{
    net::Flow,
    verbs::AddressVector, //
};
use roce::{
    types::Qpn,
    wire::ICRC_LEN, //
};

/// So many addresses of datagrams have their ways kept; a power of two.
const ADDRESSES: usize = 16;
const _: () = assert!(ADDRESSES.is_power_of_two());

/// A way.
pub(super) struct Lane {
    pub(super) flow: Flow,
    crc: FlowCrc,
    /// It leads to many.
    pub(super) multicast: bool,
    /// No two ways of one QP have the same number.
    pub(super) number: u64,
}

impl Lane {
    /// The way from QP `local` to QP `remote` at the address `av`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the port is closed, `ENOMEM`.
    pub(super) fn new(port: &Port, av: &AddressVector, local: Qpn, remote: Qpn) -> Result<Self> {
        let mut flow = port.flow(av, local, remote)?;
        // Else the first packet would not know whether it has to be built.
        flow.look_ahead();
        let (ip, udp) = flow.headers_without_lengths();
        Ok(Self {
            crc: FlowCrc::new(ip, udp),
            multicast: ip.is_multicast(),
            number: 0,
            flow,
        })
    }
}

impl Lane {
    /// What writes the last four bytes of the UDP payload of packets, of `length` bytes each: their ICRC,
    /// or nothing where nobody looks at one: without `icrc`, and if they do not leave this host.
    #[inline]
    pub(super) fn seal(&self, length: usize, icrc: bool) -> Seal {
        let has_icrc = icrc && !self.flow.on_loopback();
        Seal(has_icrc.then(|| self.crc.of_length(length)))
    }
}

/// What a packet ends with.
pub(super) struct Seal(Option<TrainCrc>);

impl Seal {
    /// Writes it. `id` is the IPv4 identification that the packet goes out with.
    #[inline]
    pub(super) fn put(&self, payload: &mut [u8], id: u16) {
        if let Some(crc) = &self.0 {
            crc.seal(payload, id);
        } else if let Some(tail) = payload.last_chunk_mut::<ICRC_LEN>() {
            *tail = [0; ICRC_LEN];
        }
    }
}

/// Names a way, until the next one is asked for.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Peer,
    Address(usize),
}

/// The ways of a QP.
pub(super) struct Lanes {
    peer: Option<Lane>,
    addresses: KVec<(AddressVector, Lane)>,
    /// How many addresses were added: the next one gets this number, and the place of the oldest.
    added: u64,
}

impl Lanes {
    /// None so far; with room for those of datagrams if it is to have such.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(super) fn new(datagrams: bool) -> Result<Self> {
        let addresses = if datagrams { ADDRESSES } else { 0 };
        Ok(Self {
            peer: None,
            addresses: KVec::with_capacity(addresses, GFP_KERNEL)?,
            added: 0,
        })
    }

    /// Sets the way to the connected peer.
    pub(super) fn set_peer(&mut self, lane: Option<Lane>) {
        self.peer = lane;
    }

    /// The way to the address `av`, made by `make` if it is not known.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub(super) fn find(
        &mut self,
        av: &AddressVector,
        make: impl FnOnce() -> Result<Lane>,
    ) -> Result<Way> {
        let known = self.addresses.iter().position(|(known, _)| known == av);
        if let Some(at) = known {
            return Ok(Way::Address(at));
        }
        let mut lane = make()?;
        lane.number = self.added;
        let at = self.added as usize & ADDRESSES.wrapping_sub(1);
        match self.addresses.get_mut(at) {
            Some(entry) => *entry = (*av, lane),
            None => self
                .addresses
                .push_within_capacity((*av, lane))
                .map_err(|_| ENOMEM)?,
        }
        self.added = self.added.wrapping_add(1);
        Ok(Way::Address(at))
    }

    /// The way that is called so.
    #[inline]
    pub(super) fn get(&mut self, way: Way) -> Option<&mut Lane> {
        match way {
            Way::Peer => self.peer.as_mut(),
            Way::Address(at) => self.addresses.get_mut(at).map(|(_, lane)| lane),
        }
    }
}
