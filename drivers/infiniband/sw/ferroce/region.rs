// SPDX-License-Identifier: GPL-2.0
//! Registered memory: what a key names, and copies into and out of it.
//!
//! A key is `index << 8 | low byte`. One table holds whatever has keys by their index; the whole key
//! must match, so that a key of an earlier owner of the index is not taken for this one's.
//!
//! ```text
//!   key --> Memory: Region, of a program or of a kernel user's DMA --> Backing: the bytes
//!                   FastRegion, of a kernel user ------------------> Backing
//!                   Window --> Region --------------------------------^
//! ```
//!
//! Every access is checked on its own: key, protection domain, rights and bounds. It is one of a packet,
//! or of packets that are built or taken in together; nothing is remembered from one to the next.

mod fast;
mod local;
mod window;
mod window_count;

use crate::uapi::access;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Release, //
        },
        rcu,
        Arc, //
    }, //
};
use rdma::{
    sync::RcuMap,
    umem::{
        DmaBuf,
        Fault,
        KernelMemory,
        OdpUmem,
        SharedBytes,
        Umem, //
    }, //
};
use roce::{
    env::MemoryError,
    wqe::AtomicOp, //
};
use window_count::WindowCount;

pub(crate) use {
    fast::{
        FastRegion,
        Register, //
    },
    local::{
        invalidate,
        operate,
        Operands, //
    },
    window::{
        Bind,
        Window, //
    },
};

/// What holds the bytes.
pub(crate) enum Backing {
    /// Pinned pages of a process.
    User(Umem),
    /// Pages of a process that come and go.
    OnDemand(Pin<KBox<OdpUmem>>),
    /// Memory that another driver shares.
    DmaBuf(DmaBuf),
    /// All kernel memory (`get_dma_mr`); addresses are kernel virtual ones.
    Kernel(KernelMemory),
    /// Pages that a kernel user has registered.
    Pages(fast::PageList),
}

impl Backing {
    /// Copies out, from `offset` on; it is what [`access`] found.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        match self {
            Self::User(umem) => umem.read(offset, buf),
            Self::OnDemand(umem) => umem.read(offset, buf),
            Self::DmaBuf(buffer) => buffer.read(offset, buf),
            Self::Kernel(memory) => memory.read(offset, buf),
            Self::Pages(pages) => pages.read(offset, buf),
        }
        .map_err(memory_error)
    }

    /// Copies in, from `offset` on; it is what [`access`] found.
    pub(crate) fn write(&self, offset: u64, bytes: SharedBytes<'_>) -> Result<(), MemoryError> {
        match self {
            Self::User(umem) => umem.write(offset, bytes),
            Self::OnDemand(umem) => umem.write(offset, bytes),
            Self::DmaBuf(buffer) => buffer.write(offset, bytes),
            Self::Kernel(memory) => memory.write(offset, bytes),
            Self::Pages(pages) => pages.write(offset, bytes),
        }
        .map_err(memory_error)
    }

    /// Carries out an atomic operation and returns what was there before; `offset` is what
    /// [`access`] found.
    pub(crate) fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.with_word(offset, |word| match op {
            AtomicOp::FetchAdd(add) => word.fetch_add(add, Full),
            AtomicOp::CompareSwap { compare, swap } => match word.cmpxchg(compare, swap, Full) {
                Ok(original) | Err(original) => original,
            },
        })
    }

    /// Writes 8 bytes at once, after everything that was written before; `offset` is what
    /// [`access`] found.
    pub(crate) fn atomic_write(&self, offset: u64, bytes: [u8; 8]) -> Result<(), MemoryError> {
        self.with_word(offset, |word| {
            word.store(u64::from_ne_bytes(bytes), Release)
        })
    }

    fn with_word<T>(
        &self,
        offset: u64,
        f: impl FnOnce(&Atomic<u64>) -> T,
    ) -> Result<T, MemoryError> {
        match self {
            Self::User(umem) => umem.with_word(offset, f),
            Self::OnDemand(umem) => umem.with_word(offset, f),
            Self::DmaBuf(buffer) => buffer.with_word(offset, f),
            Self::Kernel(memory) => memory.with_word(offset, f),
            Self::Pages(pages) => pages.with_word(offset, f),
        }
        .map_err(memory_error)
    }

    /// Brings in `length` bytes at `offset`, if pages of this memory come and go.
    ///
    /// # Context
    ///
    /// Process context, sleeps for as long as that takes.
    ///
    /// # Errors
    ///
    /// Those of [`OdpUmem::fault`].
    pub(crate) fn fault(&self, offset: u64, length: usize, fault: Fault) -> Result {
        match self {
            Self::OnDemand(umem) => umem.fault(offset, length, fault),
            Self::User(_) | Self::DmaBuf(_) | Self::Kernel(_) | Self::Pages(_) => Ok(()),
        }
    }

    /// Whether pages of this memory come and go.
    pub(crate) fn is_on_demand(&self) -> bool {
        matches!(self, Self::OnDemand(_))
    }

    /// Whether what is written to it is there without power as soon as it is written.
    fn is_persistent(&self) -> bool {
        match self {
            Self::User(umem) => umem.is_persistent(),
            Self::OnDemand(_) | Self::DmaBuf(_) | Self::Kernel(_) | Self::Pages(_) => false,
        }
    }

    /// Whether it was made for writing as well.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Self::User(umem) => umem.is_writable(),
            Self::OnDemand(umem) => umem.is_writable(),
            Self::DmaBuf(buffer) => buffer.is_writable(),
            Self::Kernel(_) | Self::Pages(_) => true,
        }
    }
}

/// What an error of a copy means.
pub(crate) fn memory_error(error: Error) -> MemoryError {
    match error {
        EAGAIN => MemoryError::NotResident,
        _ => MemoryError::Fault,
    }
}

/// What has keys.
pub(crate) enum Memory {
    /// A region of a program or a kernel user, valid until it is deregistered.
    Region(Region),
    /// A region of a kernel user that work requests make valid and invalid.
    Fast(Pin<KBox<FastRegion>>),
    /// A memory window.
    Window(Pin<KBox<Window>>),
}

impl Memory {
    /// The plain region that it is.
    pub(crate) fn region(&self) -> Option<&Region> {
        match self {
            Self::Region(region) => Some(region),
            Self::Fast(_) | Self::Window(_) => None,
        }
    }

    /// The region for fast registration that it is.
    pub(crate) fn fast(&self) -> Option<&FastRegion> {
        match self {
            Self::Fast(region) => Some(region),
            Self::Region(_) | Self::Window(_) => None,
        }
    }
}

/// On whose behalf memory is used.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Accessor {
    /// Protection domain of the QP.
    pub(crate) pd: usize,
    /// The QP, by a number that no other ever has.
    pub(crate) qp: u64,
}

/// What somebody wants to do with memory.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Request {
    /// The key that names it.
    pub(crate) key: u32,
    /// First virtual address.
    pub(crate) va: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// All of these rights are needed, of [`access`].
    pub(crate) rights: u32,
}

/// Checks `request` of `who` and calls `f` with the bytes and the offset in them.
///
/// # Context
///
/// Any; `f` may be called with a lock held.
///
/// # Errors
///
/// [`MemoryError::Access`] if it is not allowed; those of `f`.
pub(crate) fn access<T>(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    who: &Accessor,
    request: &Request,
    f: impl FnOnce(&Backing, u64) -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    let memory = table
        .get(rcu, index(request.key))
        .ok_or(MemoryError::Access)?;
    match &*memory {
        Memory::Region(region) => f(&region.backing, region.check(who.pd, request)?),
        Memory::Fast(region) => region.access(who, request, f),
        Memory::Window(window) => window.access(who, request, |request| {
            let memory = table.get(rcu, index(request.key));
            let region = memory.as_ref().and_then(|memory| memory.region());
            let region = region.ok_or(MemoryError::Access)?;
            f(&region.backing, region.check(who.pd, request)?)
        }),
    }
}

/// Calls `f` with the memory that `request` names, from domain `pd`, and the offset in it, if those are
/// pinned pages of a program that are used through the key of their region: then no lock is needed to
/// copy from them. `None` if they are not, or if it is not allowed.
///
/// # Context
///
/// Any; `f` may take locks.
pub(crate) fn with_pinned<T>(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    pd: usize,
    request: &Request,
    f: impl FnOnce(&Umem, u64) -> T,
) -> Option<T> {
    let memory = table.get(rcu, index(request.key))?;
    let region = memory.region()?;
    let offset = region.check(pd, request).ok()?;
    match &*region.backing {
        Backing::User(umem) => Some(f(umem, offset)),
        Backing::OnDemand(_) | Backing::DmaBuf(_) | Backing::Kernel(_) | Backing::Pages(_) => None,
    }
}

/// Checks `request` of `who`, and returns the bytes of a region of a program and the offset in them.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// [`MemoryError::Access`] if it is not allowed, or names memory of another kind.
pub(crate) fn locate(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    who: &Accessor,
    request: &Request,
) -> Result<(Arc<Backing>, u64), MemoryError> {
    let find = |request: &Request| {
        let memory = table.get(rcu, index(request.key));
        let region = memory.as_ref().and_then(|memory| memory.region());
        let region = region.ok_or(MemoryError::Access)?;
        let offset = region.check(who.pd, request)?;
        Ok((region.backing.clone(), offset))
    };
    let memory = table
        .get(rcu, index(request.key))
        .ok_or(MemoryError::Access)?;
    match &*memory {
        Memory::Window(window) => window.access(who, request, find),
        Memory::Region(_) | Memory::Fast(_) => find(request),
    }
}

/// Checks that all of the memory that `key` names may be used by `who`, with `rights`.
///
/// # Errors
///
/// [`MemoryError::Access`] if it may not.
pub(crate) fn check_key(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    who: &Accessor,
    key: u32,
    rights: u32,
) -> Result<(), MemoryError> {
    let memory = table.get(rcu, index(key)).ok_or(MemoryError::Access)?;
    match &*memory {
        Memory::Region(region) => region.check_key(who.pd, key, rights),
        Memory::Fast(region) => region.check_key(who, key, rights),
        Memory::Window(window) => window.check_key(who, key, rights),
    }
}

/// The index in a key.
pub(crate) fn index(key: u32) -> u32 {
    key >> 8
}

/// A registered memory region. What it is never changes: a region that is registered anew is replaced.
pub(crate) struct Region {
    key: u32,
    pd: usize,
    access: u32,
    /// First virtual address, as peers name it.
    iova: u64,
    /// Bytes.
    length: u64,
    backing: Arc<Backing>,
    windows: WindowCount,
}

impl Region {
    /// A region of `length` bytes that starts at virtual address `iova`, or at 0 if it is zero-based.
    ///
    /// # Errors
    ///
    /// `EINVAL` if its end does not fit 64 bits, or if peers are to make persistent what is not.
    pub(crate) fn new(
        key: u32,
        pd: usize,
        access: u32,
        iova: u64,
        length: u64,
        backing: Arc<Backing>,
    ) -> Result<Self> {
        let iova = if access & access::ZERO_BASED != 0 {
            0
        } else {
            iova
        };
        iova.checked_add(length).ok_or(EINVAL)?;
        if access & access::FLUSH_PERSISTENT != 0 && !backing.is_persistent() {
            return Err(EINVAL);
        }
        Ok(Self {
            key,
            pd,
            access,
            iova,
            length,
            backing,
            windows: WindowCount::new(),
        })
    }

    /// Lets no window be bound to this region any more.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there are some.
    pub(crate) fn close(&self) -> Result {
        self.windows.close()
    }

    /// Undoes [`Self::close`].
    pub(crate) fn reopen(&self) {
        self.windows.reopen();
    }

    /// Local and remote key; they are the same.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The same region with other rights, or in another protection domain.
    ///
    /// # Errors
    ///
    /// `EACCES` if the memory was made for reading only and that does not do any more
    /// (`umem.c:ib_umem_check_rereg`), `EINVAL` if it should become paged on demand, or pinned.
    pub(crate) fn altered(&self, pd: usize, access: u32) -> Result<Self> {
        if access & access::WRITABLE != 0 && !self.backing.is_writable() {
            return Err(EACCES);
        }
        if (access & access::ON_DEMAND != 0) != self.backing.is_on_demand() {
            return Err(EINVAL);
        }
        Self::new(
            self.key,
            pd,
            access,
            self.iova,
            self.length,
            self.backing.clone(),
        )
    }

    /// What it allows, of [`access`].
    pub(crate) fn rights(&self) -> u32 {
        self.access
    }

    /// Checks that the region may be used through `key` from domain `pd`, with `rights`.
    fn check_key(&self, pd: usize, key: u32, rights: u32) -> Result<(), MemoryError> {
        if key != self.key || pd != self.pd || self.access & rights != rights {
            return Err(MemoryError::Access);
        }
        Ok(())
    }

    /// Checks that `request` may be made from domain `pd`, and returns the offset in the backing.
    fn check(&self, pd: usize, request: &Request) -> Result<u64, MemoryError> {
        let Request {
            key,
            va,
            length,
            rights,
        } = *request;
        self.check_key(pd, key, rights)?;
        match *self.backing {
            Backing::Kernel(_) => va
                .checked_add(length)
                .map(|_| va)
                .ok_or(MemoryError::Access),
            Backing::User(_) | Backing::OnDemand(_) | Backing::DmaBuf(_) | Backing::Pages(_) => {
                offset_in(self.iova, self.length, va, length)
            }
        }
    }
}

/// The offset of `[va, va + length)` in `[start, start + size)`.
///
/// # Errors
///
/// [`MemoryError::Access`] if it is not inside.
fn offset_in(start: u64, size: u64, va: u64, length: u64) -> Result<u64, MemoryError> {
    let offset = va.checked_sub(start).ok_or(MemoryError::Access)?;
    let end = offset.checked_add(length).ok_or(MemoryError::Access)?;
    if end > size {
        return Err(MemoryError::Access);
    }
    Ok(offset)
}

/// Checks the rights that a region is to be registered with.
///
/// # Errors
///
/// `EINVAL` for remote write or atomic without local write (IBTA 10.6.3.1), `EOPNOTSUPP` for
/// rights that this driver does not implement.
pub(crate) fn check_access(flags: u32) -> Result<u32> {
    let known = access::LOCAL_WRITE
        | access::REMOTE_WRITE
        | access::REMOTE_READ
        | access::REMOTE_ATOMIC
        | access::MW_BIND
        | access::ON_DEMAND
        | access::HUGETLB
        | access::FLUSH_GLOBAL
        | access::FLUSH_PERSISTENT
        | access::ZERO_BASED;
    if flags & !(known | access::OPTIONAL) != 0 {
        return Err(EOPNOTSUPP);
    }
    let remote_change = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if flags & remote_change != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    // The promise that pages are huge is for pages that come and go.
    if flags & access::HUGETLB != 0 && flags & access::ON_DEMAND == 0 {
        return Err(EINVAL);
    }
    Ok(flags & known)
}
