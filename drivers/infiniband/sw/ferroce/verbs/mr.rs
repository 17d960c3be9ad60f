// SPDX-License-Identifier: GPL-2.0
//! Memory region verbs.

use crate::{
    device::Ferroce,
    port::Port,
    region::{
        self,
        check_access,
        Backing,
        Memory,
        Region, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    umem::{
        KernelMemory,
        Umem, //
    },
    verbs::{
        MrChange,
        MrInit,
        MrTranslation,
        NewMr,
        Pd, //
    }, //
};

/// Indices of keys; 0 is nobody's, so that a zero key names nothing.
const INDICES: core::ops::Range<u32> = 1..1 << 24;

/// A registration: what the consumer of the verbs has of a region.
#[pin_data]
pub(crate) struct Registration {
    key: u32,
    /// The entry of the table; another one after the region was registered anew.
    #[pin]
    memory: Mutex<Arc<Memory>>,
}

/// Registers memory of a user program.
///
/// # Errors
///
/// `EINVAL` for a range that wraps or rights that do not go together, `EOPNOTSUPP` for rights that
/// this driver does not have, `EFAULT` or `ENOMEM` if the memory cannot be pinned.
pub(super) fn register(
    pd: &Pd<Ferroce>,
    attr: &MrInit,
) -> Result<NewMr<impl PinInit<Registration, Error>>> {
    let access = check_access(attr.access)?;
    let at = MrTranslation {
        start: attr.start,
        length: attr.length,
        virt_addr: attr.virt_addr,
    };
    let backing = pin(pd, &at, access)?;
    let memory = insert(pd.device().drv(), |key| {
        let region = Region::new(key, pd.id(), access, at.virt_addr, at.length, backing)?;
        Ok(Memory::Region(region))
    })?;
    Ok(registration(memory))
}

/// Pins what a region is to be made of.
fn pin(pd: &Pd<Ferroce>, at: &MrTranslation, access: u32) -> Result<Arc<Backing>> {
    at.start.checked_add(at.length).ok_or(EINVAL)?;
    at.virt_addr.checked_add(at.length).ok_or(EINVAL)?;
    let umem = Umem::pin(pd.device(), at.start, usize::try_from(at.length)?, access)?;
    Ok(Arc::new(Backing::User(umem), GFP_KERNEL)?)
}

/// Makes the region by which a kernel user reaches all of its memory.
pub(super) fn all_memory(
    pd: &Pd<Ferroce>,
    access: u32,
    memory: KernelMemory,
) -> Result<NewMr<impl PinInit<Registration, Error>>> {
    let access = check_access(access)?;
    let backing = Arc::new(Backing::Kernel(memory), GFP_KERNEL)?;
    let memory = insert(pd.device().drv(), |key| {
        let region = Region::new(key, pd.id(), access, 0, u64::MAX, backing)?;
        Ok(Memory::Region(region))
    })?;
    Ok(registration(memory))
}

/// Finds a key for what `make` makes with it, and puts that in the table.
fn insert(port: &Port, make: impl FnOnce(u32) -> Result<Memory>) -> Result<(u32, Arc<Memory>)> {
    let index = port.region_numbers.alloc(INDICES)?;
    let key = index << 8 | rdma::time::random_u32() & 0xff;
    let memory = make(key)
        .and_then(|memory| Ok(Arc::new(memory, GFP_KERNEL)?))
        .and_then(|memory| port.regions.insert(index, memory.clone()).map(|()| memory))
        .inspect_err(|_| port.region_numbers.free(index))?;
    Ok((key, memory))
}

/// What the core gets of a new entry of the table.
fn registration((key, memory): (u32, Arc<Memory>)) -> NewMr<impl PinInit<Registration, Error>> {
    NewMr {
        lkey: key,
        rkey: key,
        init: try_pin_init!(Registration {
            key,
            memory <- new_mutex!(memory, "ferroce_registration"),
        }? Error),
    }
}

/// Changes a region of a user program. The keys stay; whoever uses them finds the old region or the
/// new one, never a mixture, and not the old one any more when this returns.
///
/// # Errors
///
/// Those of [`register`]; `EACCES` for rights that need to write to memory that was pinned for reading.
pub(super) fn change(
    port: &Port,
    registration: &Registration,
    current: &Pd<Ferroce>,
    change: &MrChange<'_, Ferroce>,
) -> Result {
    let mut memory = registration.memory.lock();
    let Memory::Region(region) = &**memory;
    let (_, access) = region.scope();
    let access = match change.access {
        Some(access) => check_access(access)?,
        None => access,
    };
    let pd = change.pd.unwrap_or(current);
    let new = match &change.translation {
        Some(at) => {
            let backing = pin(pd, at, access)?;
            Region::new(
                region.key(),
                pd.id(),
                access,
                at.virt_addr,
                at.length,
                backing,
            )?
        }
        None => region.altered(pd.id(), access)?,
    };
    let new = Arc::new(Memory::Region(new), GFP_KERNEL)?;
    let old = port
        .regions
        .replace(region::index(registration.key), new.clone())?;
    *memory = new;
    drop(memory);
    // Unpins, if the memory is another one.
    drop(old);
    Ok(())
}

/// Ends a region: nobody uses its memory any more when this returns.
pub(super) fn deregister(port: &Port, registration: &Registration) {
    let index = region::index(registration.key);
    let _ = port.regions.remove(index);
    port.region_numbers.free(index);
}
