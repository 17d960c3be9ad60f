// SPDX-License-Identifier: GPL-2.0
//! Advice about memory that is paged on demand.

use crate::{
    device::Ferroce,
    prefetch::Advice,
    region::{
        self,
        Accessor,
        Request, //
    },
    uapi::access, //
};
use kernel::{
    prelude::*,
    sync::rcu, //
};
use rdma::{
    umem::Fault,
    verbs::{
        Pd,
        Sge, //
    }, //
};

/// No QP asks for it.
const NO_QP: u64 = u64::MAX;

/// Brings memory in: before this returns if `wait`, else in the background.
///
/// # Errors
///
/// `ENOENT` if a key names no region of this protection domain, `EINVAL` if it names one whose pages do
/// not come and go, or a range that is not inside, `EPERM` for writing to what is for reading. If `wait`,
/// those of [`region::Backing::fault`] as well.
pub(super) fn advise(
    pd: &Pd<Ferroce>,
    fault: Fault,
    wait: bool,
    list: impl Iterator<Item = Sge>,
) -> Result {
    let mut pieces = KVVec::new();
    for sge in list {
        pieces.push(piece(pd, fault, &sge)?, GFP_KERNEL)?;
    }
    if !wait {
        return pd.drv().prefetcher.submit(pieces);
    }
    for piece in pieces {
        piece.follow()?;
    }
    Ok(())
}

/// What one element asks for.
fn piece(pd: &Pd<Ferroce>, fault: Fault, sge: &Sge) -> Result<Advice> {
    let port = pd.device().drv();
    let who = Accessor {
        pd: pd.id(),
        qp: NO_QP,
    };
    let request = Request {
        key: sge.lkey,
        va: sge.addr,
        length: u64::from(sge.length),
        rights: 0,
    };
    let rcu = rcu::read_lock();
    let table = &port.regions;
    region::check_key(table, &rcu, &who, sge.lkey, 0).map_err(|_| ENOENT)?;
    let (backing, offset) = region::locate(table, &rcu, &who, &request).map_err(|_| EINVAL)?;
    if !backing.is_on_demand() {
        return Err(EINVAL);
    }
    let write = Request {
        rights: access::LOCAL_WRITE,
        ..request
    };
    if fault == Fault::Write && region::locate(table, &rcu, &who, &write).is_err() {
        return Err(EPERM);
    }
    Ok(Advice {
        backing,
        offset,
        length: sge.length as usize,
        fault,
    })
}
