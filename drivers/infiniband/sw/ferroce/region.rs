// SPDX-License-Identifier: GPL-2.0
//! Memory regions: what a key names, and copies into and out of it.
//!
//! A key is `index << 8 | low byte`. The table holds regions by index; the whole key must match,
//! so that a key of an earlier owner of the index is not taken for this one's.
//!
//! Every access is checked on its own: key, protection domain, rights and bounds. Nothing is
//! remembered from one packet to the next.

use crate::uapi::access;
use kernel::prelude::*;
use rdma::umem::{
    KernelMemory,
    Umem, //
};
use roce::env::MemoryError;

/// What holds the bytes of a region.
pub(crate) enum Backing {
    /// Pinned pages of a process.
    User(Umem),
    /// All kernel memory (`get_dma_mr`); addresses are kernel virtual ones.
    Kernel(KernelMemory),
}

/// A registered memory region.
pub(crate) struct Region {
    key: u32,
    pd: usize,
    access: u32,
    /// First virtual address, as peers name it.
    iova: u64,
    /// Bytes.
    length: u64,
    backing: Backing,
}

impl Region {
    /// A region of `length` bytes that starts at virtual address `iova`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if its end does not fit 64 bits.
    pub(crate) fn new(
        key: u32,
        pd: usize,
        access: u32,
        iova: u64,
        length: u64,
        backing: Backing,
    ) -> Result<Self> {
        iova.checked_add(length).ok_or(EINVAL)?;
        Ok(Self {
            key,
            pd,
            access,
            iova,
            length,
            backing,
        })
    }

    /// Local and remote key; they are the same.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The index in a key.
    pub(crate) fn index(key: u32) -> u32 {
        key >> 8
    }

    /// Checks that `length` bytes at `va` may be used through `key` from `pd` with all rights in
    /// `rights`, and returns the offset of `va` in the backing.
    pub(crate) fn check(
        &self,
        key: u32,
        pd: usize,
        va: u64,
        length: u64,
        rights: u32,
    ) -> Result<u64, MemoryError> {
        if key != self.key || pd != self.pd || self.access & rights != rights {
            return Err(MemoryError::Access);
        }
        match self.backing {
            Backing::Kernel(_) => va
                .checked_add(length)
                .map(|_| va)
                .ok_or(MemoryError::Access),
            Backing::User(_) => {
                let offset = va.checked_sub(self.iova).ok_or(MemoryError::Access)?;
                let end = offset.checked_add(length).ok_or(MemoryError::Access)?;
                if end > self.length {
                    return Err(MemoryError::Access);
                }
                Ok(offset)
            }
        }
    }

    /// Copies out of the region; `offset` is what [`Self::check`] returned.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::User(umem) => umem.read(offset, buf),
            Backing::Kernel(memory) => memory.read(offset, buf),
        }
        .map_err(|_| MemoryError::Fault)
    }

    /// Copies into the region; `offset` is what [`Self::check`] returned.
    pub(crate) fn write(&self, offset: u64, buf: &[u8]) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::User(umem) => umem.write(offset, buf),
            Backing::Kernel(memory) => memory.write(offset, buf),
        }
        .map_err(|_| MemoryError::Fault)
    }
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
        | access::MW_BIND;
    if flags & !(known | access::OPTIONAL) != 0 {
        return Err(EOPNOTSUPP);
    }
    let remote_change = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if flags & remote_change != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok(flags & known)
}
