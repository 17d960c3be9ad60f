// SPDX-License-Identifier: GPL-2.0
//! Memory region verbs.

use crate::{
    device::Ferroce,
    region::{
        check_access,
        Backing,
        Region, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    umem::{
        KernelMemory,
        Umem, //
    },
    verbs::{
        MrInit,
        NewMr,
        Pd, //
    }, //
};

/// Indices of keys; 0 is nobody's, so that a zero key names nothing.
const INDICES: core::ops::Range<u32> = 1..1 << 24;

/// Registers memory of a user program.
///
/// # Errors
///
/// `EINVAL` for a range that wraps or rights that do not go together, `EOPNOTSUPP` for rights that
/// this driver does not have, `EFAULT` or `ENOMEM` if the memory cannot be pinned.
pub(super) fn register(
    pd: &Pd<Ferroce>,
    attr: &MrInit,
) -> Result<NewMr<impl PinInit<Arc<Region>, Error>>> {
    let access = check_access(attr.access)?;
    attr.start.checked_add(attr.length).ok_or(EINVAL)?;
    attr.virt_addr.checked_add(attr.length).ok_or(EINVAL)?;
    let umem = Umem::pin(
        pd.device(),
        attr.start,
        usize::try_from(attr.length)?,
        access,
    )?;
    insert(pd, access, attr.virt_addr, attr.length, Backing::User(umem))
}

/// Makes the region by which a kernel user reaches all of its memory.
pub(super) fn all_memory(
    pd: &Pd<Ferroce>,
    access: u32,
    memory: KernelMemory,
) -> Result<NewMr<impl PinInit<Arc<Region>, Error>>> {
    let access = check_access(access)?;
    insert(pd, access, 0, u64::MAX, Backing::Kernel(memory))
}

/// Gives a region a key and puts it in the table.
fn insert(
    pd: &Pd<Ferroce>,
    access: u32,
    iova: u64,
    length: u64,
    backing: Backing,
) -> Result<NewMr<impl PinInit<Arc<Region>, Error>>> {
    let port = pd.device().drv();
    let index = port.region_numbers.alloc(INDICES)?;
    let key = index << 8 | rdma::time::random_u32() & 0xff;
    let region = Region::new(key, pd.id(), access, iova, length, backing)
        .and_then(|region| Ok(Arc::new(region, GFP_KERNEL)?))
        .and_then(|region| port.regions.insert(index, region.clone()).map(|()| region))
        .inspect_err(|_| port.region_numbers.free(index))?;
    Ok(NewMr {
        lkey: key,
        rkey: key,
        init: Ok(region),
    })
}

/// Ends a region: nobody uses its memory any more when this returns.
pub(super) fn deregister(port: &crate::port::Port, region: &Region) {
    let index = Region::index(region.key());
    let _ = port.regions.remove(index);
    port.region_numbers.free(index);
}
