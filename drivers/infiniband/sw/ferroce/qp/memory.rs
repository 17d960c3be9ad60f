// SPDX-License-Identifier: GPL-2.0
//! Copies between packets and memory: what keys and scatter-gather lists name.

use super::{
    fault::PageFault,
    inbound::Payload,
    sends,
    world::World, //
};
use crate::{
    region::{
        self,
        Accessor,
        Backing,
        Request, //
    },
    uapi::{
        access,
        Sge, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;
use roce::{
    env::MemoryError,
    run::{
        PayloadSource,
        Run, //
    },
    types::Srqn, //
};

impl World<'_> {
    /// The protection domain of what the packet at hand names by key: that of the QP, or of the shared
    /// receive queue that it names as well.
    pub(super) fn remote_domain(&self) -> usize {
        self.xrc
            .map_or(self.qp.accessor.pd, |xrc| xrc.receives.pd())
    }

    /// Who makes the access that the packet at hand asks for.
    pub(super) fn remote_accessor(&self) -> Accessor {
        Accessor {
            pd: self.remote_domain(),
            ..self.qp.accessor
        }
    }

    /// The protection domain of the list of the current receive WQE.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if the queue that it was taken from is not the one that the packet at hand
    /// names, but has had its number.
    pub(super) fn receive_domain(&self) -> Result<usize, MemoryError> {
        match (self.io.receives.source(), self.xrc) {
            (None, _) => Ok(self.io.receives.pd()),
            (Some(name), Some(xrc)) if xrc.name == name => Ok(xrc.receives.pd()),
            (Some(_), _) => Err(MemoryError::Access),
        }
    }

    /// Runs `f` on the memory that `key` names, after checking key, domain, rights and bounds.
    pub(super) fn with_region<T>(
        &self,
        pd: usize,
        key: u32,
        va: u64,
        length: u64,
        rights: u32,
        f: impl FnOnce(&Backing, u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let request = Request {
            key,
            va,
            length,
            rights,
        };
        self.with_request(pd, request, f)
    }

    /// As [`Self::with_region`], for what `request` names.
    pub(super) fn with_request<T>(
        &self,
        pd: usize,
        request: Request,
        f: impl FnOnce(&Backing, u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let who = Accessor {
            pd,
            ..self.qp.accessor
        };
        match region::access(&self.qp.port.regions, self.rcu, &who, &request, f) {
            Err(MemoryError::NotResident) => self.not_resident(PageFault { who, request }),
            result => result,
        }
    }

    /// Writes the part `range` of `data` to the buffers in `list`, which are in the domain `pd`, `offset`
    /// bytes into them.
    pub(super) fn scatter(
        &self,
        pd: usize,
        list: &[Sge],
        offset: u64,
        data: &Payload<'_>,
        range: Range<usize>,
    ) -> Result<(), MemoryError> {
        for_chunks(list, offset, length(&range), |sge, va, chunk| {
            let length = length(&chunk) as u64;
            let rights = access::LOCAL_WRITE;
            let start = range.start.wrapping_add(chunk.start);
            let end = range.start.wrapping_add(chunk.end);
            self.with_region(pd, sge.lkey, va, length, rights, |region, at| {
                data.for_each(start..end, |ahead, piece| {
                    region.write(at.wrapping_add(ahead), piece)
                })
            })
        })
    }

    /// Fills `buf` from the buffers in `list`, from `offset` bytes into them on.
    pub(super) fn gather(
        &self,
        list: &[Sge],
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), MemoryError> {
        for_chunks(list, offset, buf.len(), |sge, va, range| {
            let buf = buf.get_mut(range).ok_or(MemoryError::Access)?;
            let length = buf.len() as u64;
            self.with_region(
                self.qp.accessor.pd,
                sge.lkey,
                va,
                length,
                0,
                |region, at| region.read(at, buf),
            )
        })
    }

    /// What names `length` bytes of payload of `run`, `offset` bytes into it, and the domain that it is
    /// named in.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if they are not in one buffer, [`MemoryError::Fault`] if not in memory that
    /// is registered.
    #[inline]
    pub(super) fn named(
        &self,
        run: &Run,
        offset: u32,
        length: u32,
    ) -> Result<(usize, Request), MemoryError> {
        match run.source {
            PayloadSource::Remote { rkey, va, srq } => {
                let va = va
                    .checked_add(u64::from(offset))
                    .ok_or(MemoryError::Access)?;
                let request = Request {
                    key: rkey.0,
                    va,
                    length: u64::from(length),
                    rights: access::REMOTE_READ,
                };
                Ok((self.domain_of(srq)?, request))
            }
            PayloadSource::Wqe { slot, offset: base } => match self.io.slots.payload(slot) {
                sends::Payload::List => {
                    let at = base.checked_add(offset).ok_or(MemoryError::Access)?;
                    let request = one_of(self.io.slots.list(slot), at, length);
                    Ok((self.qp.accessor.pd, request.ok_or(MemoryError::Access)?))
                }
                sends::Payload::Inline(_) | sends::Payload::Stored | sends::Payload::Local(_) => {
                    Err(MemoryError::Fault)
                }
            },
            PayloadSource::None => Err(MemoryError::Fault),
        }
    }

    /// The protection domain of memory that the peer reads, which asked for it with the number `srq`.
    fn domain_of(&self, srq: Srqn) -> Result<usize, MemoryError> {
        if srq.get() == 0 {
            return Ok(self.qp.accessor.pd);
        }
        let xrc = self.xrc_queue(srq).ok_or(MemoryError::Access)?;
        Ok(xrc.receives.pd())
    }
}

/// The one buffer in `list` that has all of `length` bytes, `offset` bytes into them.
#[inline]
fn one_of(list: &[Sge], offset: u32, length: u32) -> Option<Request> {
    let mut skip = offset;
    for sge in list {
        match sge.length.checked_sub(skip) {
            None | Some(0) => skip = skip.wrapping_sub(sge.length),
            Some(room) if room >= length => {
                return Some(Request {
                    key: sge.lkey,
                    va: sge.addr.checked_add(u64::from(skip))?,
                    length: u64::from(length),
                    rights: 0,
                });
            }
            Some(_) => return None,
        }
    }
    None
}

/// The bytes in `range`. Not `len()`, which brings an assertion along.
#[inline]
pub(super) fn length(range: &Range<usize>) -> usize {
    range.end.saturating_sub(range.start)
}

/// Calls `f` for each piece of `length` bytes that start `offset` bytes into the buffers of
/// `list`: with the entry, the virtual address in it, and the range of the whole that it is.
fn for_chunks(
    list: &[Sge],
    offset: u64,
    length: usize,
    mut f: impl FnMut(&Sge, u64, Range<usize>) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let mut skip = offset;
    let mut done = 0usize;
    for sge in list {
        if done >= length {
            break;
        }
        let here = u64::from(sge.length);
        if skip >= here {
            skip = skip.wrapping_sub(here);
            continue;
        }
        let room = here.wrapping_sub(skip);
        let take = room.min(length.wrapping_sub(done) as u64) as usize;
        let va = sge.addr.checked_add(skip).ok_or(MemoryError::Access)?;
        let end = done.wrapping_add(take);
        f(sge, va, done..end)?;
        done = end;
        skip = 0;
    }
    if done < length {
        return Err(MemoryError::Access);
    }
    Ok(())
}
