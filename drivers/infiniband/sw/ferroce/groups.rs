// SPDX-License-Identifier: GPL-2.0
//! Multicast groups: which QPs of a port get what is sent to which address.
//!
//! The first QP that is attached to a group makes the interface listen to it, as a socket's
//! membership would: only so the IP stack lets the packets through, and brings back what this host
//! sends. The last one that is detached ends that.
//!
//! # Lifetime
//!
//! A group holds its members, and a QP holds its port. The RDMA core sees to it that a QP is detached
//! before it is destroyed, so this circle does not stay. When the interface goes, its memberships go
//! with it; those of QPs stay, without effect, until they are detached.

use crate::{
    device::limits,
    port::Port,
    qp::QueuePair, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc,
        ArcBorrow,
        Mutex, //
    }, //
};
use rdma::{
    net::{
        MulticastAddr,
        Rtnl, //
    },
    sync::RcuMap, //
};

/// A QP in a group.
pub(crate) struct Member {
    pub(crate) qp: Arc<QueuePair>,
    /// How often it was attached, less how often it was detached.
    times: Atomic<u32>,
}

/// The QPs of one group, by number.
#[pin_data]
pub(crate) struct Group {
    #[pin]
    members: RcuMap<Member>,
}

impl Group {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                members <- RcuMap::new(3),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// The QPs that are attached now.
    pub(crate) fn members<'g>(
        &'g self,
        rcu: &'g rcu::Guard,
    ) -> impl Iterator<Item = ArcBorrow<'g, Member>> {
        self.members.values(rcu)
    }
}

/// The groups of a port.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    table: RcuMap<Group, MulticastAddr>,
    /// The number of members of all groups together. Held while any of this changes.
    #[pin]
    attached: Mutex<u32>,
}

impl Groups {
    /// None so far.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            table <- RcuMap::new(6),
            attached <- new_mutex!(0, "ferroce_groups"),
        }? Error)
    }

    /// The group of an address, if anybody is attached to it.
    pub(crate) fn get<'g>(
        &'g self,
        rcu: &'g rcu::Guard,
        address: MulticastAddr,
    ) -> Option<ArcBorrow<'g, Group>> {
        self.table.get(rcu, address)
    }

    /// As [`Self::get`], to keep.
    fn find(&self, address: MulticastAddr) -> Option<Arc<Group>> {
        let rcu = rcu::read_lock();
        self.table.get(&rcu, address).map(Arc::from)
    }

    /// Attaches a QP of `port` to a group.
    ///
    /// # Context
    ///
    /// Process context, may sleep; takes the RTNL.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are too many groups or members, those of [`Port::listen`].
    pub(crate) fn attach(
        &self,
        port: &Port,
        qp: &Arc<QueuePair>,
        address: MulticastAddr,
    ) -> Result {
        let mut attached = self.attached.lock();
        let known = self.find(address);
        if let Some(group) = &known {
            let rcu = rcu::read_lock();
            if let Some(member) = group.members.get(&rcu, qp.qpn().get()) {
                let _ = member.times.fetch_add(1, Relaxed);
                return Ok(());
            }
        }
        let members = known.as_ref().map_or(0, |group| group.members.len());
        if *attached >= limits::MAX_ATTACHED
            || members >= limits::MAX_GROUP_MEMBERS as usize
            || known.is_none() && self.table.len() >= limits::MAX_GROUPS as usize
        {
            return Err(ENOMEM);
        }
        let group = match &known {
            Some(group) => group.clone(),
            None => Group::new()?,
        };
        let member = Member {
            qp: qp.clone(),
            times: Atomic::new(1),
        };
        let member = Arc::new(member, GFP_KERNEL)?;
        group.members.insert(qp.qpn().get(), member)?;
        if known.is_none() {
            // From now on packets may come in, for nobody yet.
            port.listen(address)?;
            if let Err(error) = self.table.insert(address, group) {
                port.ignore(address);
                return Err(error);
            }
        }
        *attached = attached.wrapping_add(1);
        Ok(())
    }

    /// Detaches a QP from a group. When this returns, nothing that arrives is given to it.
    ///
    /// # Context
    ///
    /// As [`Self::attach`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached.
    pub(crate) fn detach(&self, port: &Port, qp: &QueuePair, address: MulticastAddr) -> Result {
        let mut attached = self.attached.lock();
        let group = self.find(address).ok_or(EINVAL)?;
        let number = qp.qpn().get();
        {
            let rcu = rcu::read_lock();
            let member = group.members.get(&rcu, number).ok_or(EINVAL)?;
            if member.times.fetch_sub(1, Relaxed) > 1 {
                return Ok(());
            }
        }
        let _ = group.members.remove(number);
        *attached = attached.wrapping_sub(1);
        if group.members.is_empty() {
            let _ = self.table.remove(address);
            port.ignore(address);
        }
        Ok(())
    }
}

impl Port {
    /// Makes the interface listen to a group.
    ///
    /// # Context
    ///
    /// Process context, may sleep; takes the RTNL.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the port is closed; `EAFNOSUPPORT` if the interface does not do that protocol,
    /// `ENOMEM`.
    fn listen(&self, address: MulticastAddr) -> Result {
        let rtnl = Rtnl::lock();
        // The RTNL is held while an interface goes: what is here now has not begun to.
        self.netdev().ok_or(ENODEV)?.join(&rtnl, address)
    }

    /// Ends that, unless it has ended with the interface.
    ///
    /// # Context
    ///
    /// Process context, may sleep; takes the RTNL.
    fn ignore(&self, address: MulticastAddr) {
        let rtnl = Rtnl::lock();
        if let Some(netdev) = self.netdev() {
            netdev.leave(&rtnl, address);
        }
    }
}
