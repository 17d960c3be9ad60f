// SPDX-License-Identifier: GPL-2.0
//! Memory region verbs.

use crate::{
    device::{
        limits,
        Ferroce, //
    },
    port::Port,
    region::{
        self,
        check_access,
        Backing,
        FastRegion,
        Memory,
        Region, //
    },
    uapi::access, //
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
        DmaBuf,
        KernelMemory,
        OdpUmem,
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
    /// The same, of a region that is never registered anew.
    fast: Option<Arc<Memory>>,
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

/// Pins what a region is to be made of, or gets ready to page it.
fn pin(pd: &Pd<Ferroce>, at: &MrTranslation, access: u32) -> Result<Arc<Backing>> {
    at.start.checked_add(at.length).ok_or(EINVAL)?;
    at.virt_addr.checked_add(at.length).ok_or(EINVAL)?;
    if access & access::ON_DEMAND != 0 {
        let writable = access & access::WRITABLE != 0;
        let umem = OdpUmem::new(at.start, at.length, writable)?;
        let umem = KBox::pin_init(umem, GFP_KERNEL)?;
        return Ok(Arc::new(Backing::OnDemand(umem), GFP_KERNEL)?);
    }
    let umem = Umem::pin(pd.device(), at.start, usize::try_from(at.length)?, access)?;
    Ok(Arc::new(Backing::User(umem), GFP_KERNEL)?)
}

/// Registers a part of a DMA-BUF of a user program.
///
/// # Errors
///
/// As [`register`], and those of [`DmaBuf::map`].
pub(super) fn register_dma_buf(
    pd: &Pd<Ferroce>,
    fd: i32,
    attr: &MrInit,
) -> Result<NewMr<impl PinInit<Registration, Error>>> {
    let access = check_access(attr.access)?;
    attr.virt_addr.checked_add(attr.length).ok_or(EINVAL)?;
    let writable = access & access::WRITABLE != 0;
    let buffer = DmaBuf::map(fd, attr.start, attr.length, writable)?;
    let backing = Arc::new(Backing::DmaBuf(buffer), GFP_KERNEL)?;
    let memory = insert(pd.device().drv(), |key| {
        let region = Region::new(key, pd.id(), access, attr.virt_addr, attr.length, backing)?;
        Ok(Memory::Region(region))
    })?;
    Ok(registration(memory))
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
pub(super) fn insert(
    port: &Port,
    make: impl FnOnce(u32) -> Result<Memory>,
) -> Result<(u32, Arc<Memory>)> {
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
            fast: memory.fast().is_some().then(|| memory.clone()),
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
    let region = memory.region().ok_or(EINVAL)?;
    // Windows would go on with what they were bound to.
    region.close()?;
    let changed = replacement(region, current, change).and_then(|new| {
        let old = port
            .regions
            .replace(region::index(registration.key), new.clone())?;
        Ok((new, old))
    });
    match changed {
        Ok((new, old)) => {
            *memory = new;
            drop(memory);
            // Unpins, if the memory is another one.
            drop(old);
            Ok(())
        }
        Err(error) => {
            region.reopen();
            Err(error)
        }
    }
}

/// What a changed region is to be.
fn replacement(
    region: &Region,
    current: &Pd<Ferroce>,
    change: &MrChange<'_, Ferroce>,
) -> Result<Arc<Memory>> {
    let access = match change.access {
        Some(access) => check_access(access)?,
        None => region.rights(),
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
    Ok(Arc::new(Memory::Region(new), GFP_KERNEL)?)
}

/// Makes a region for fast registration.
///
/// # Errors
///
/// `EINVAL` for no pages, or more than the device says that it has.
pub(super) fn allocate(
    pd: &Pd<Ferroce>,
    max_pages: u32,
    memory: KernelMemory,
) -> Result<NewMr<impl PinInit<Registration, Error>>> {
    if max_pages == 0 || max_pages > limits::MAX_FAST_PAGES {
        return Err(EINVAL);
    }
    let memory = insert(pd.device().drv(), |key| {
        let region = FastRegion::new(key, pd.id(), max_pages as usize, memory)?;
        Ok(Memory::Fast(KBox::pin_init(region, GFP_KERNEL)?))
    })?;
    Ok(registration(memory))
}

impl Registration {
    /// The first key.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The region for fast registration that this is.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is another one.
    pub(super) fn fast(&self) -> Result<&FastRegion> {
        self.fast
            .as_ref()
            .and_then(|memory| memory.fast())
            .ok_or(EINVAL)
    }
}

/// Ends a region: nobody uses its memory any more when this returns.
///
/// # Errors
///
/// `EBUSY` if windows are bound to it.
pub(super) fn deregister(port: &Port, registration: &Registration) -> Result {
    if let Some(region) = registration.memory.lock().region() {
        region.close()?;
    }
    remove(port, registration.key);
    Ok(())
}

/// Takes the entry with this key out of the table; nobody uses it any more when this returns.
pub(super) fn remove(port: &Port, key: u32) {
    let index = region::index(key);
    let _ = port.regions.remove(index);
    port.region_numbers.free(index);
}
