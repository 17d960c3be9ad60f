// SPDX-License-Identifier: GPL-2.0
//! What belongs to a send WQE in flight besides the WQE itself: where its payload comes from, or
//! where a READ's goes to, and for a datagram its address.
//!
//! All of it was copied out of the user's ring once and is never read from there again; only
//! inline payload stays in the ring, and is copied from a slot whose bounds are known.

use crate::{
    address::AddressHandle,
    region::Operands,
    uapi::Sge, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Where the payload of a send WQE is.
#[derive(Clone, Copy, Default)]
pub(crate) enum Payload {
    /// In the scatter-gather list: so many entries.
    #[default]
    List,
    /// In the user's ring, in the slot with this index.
    Inline(u32),
    /// Its bytes are where the scatter-gather list would be, in as many entries as they fill.
    Stored,
    /// None: these are the operands of a local operation.
    Local(Operands),
}

#[derive(Clone, Default)]
struct Slot {
    payload: Payload,
    num_sge: u32,
    address: Option<Arc<AddressHandle>>,
}

/// Side storage of all slots of a QP.
pub(crate) struct Slots {
    slots: KVVec<Slot>,
    sges: KVVec<Sge>,
    max_sge: usize,
}

impl Slots {
    pub(crate) fn new(count: u32, max_sge: u32) -> Result<Self> {
        let max_sge = max_sge.max(1) as usize;
        let total = max_sge.checked_mul(count as usize).ok_or(EINVAL)?;
        Ok(Self {
            slots: KVVec::from_elem(Slot::default(), count as usize, GFP_KERNEL)?,
            sges: KVVec::from_elem(Sge::default(), total, GFP_KERNEL)?,
            max_sge,
        })
    }

    /// Room for twice as many, with what these hold in both halves: a slot is the same one by its number modulo
    /// either.
    ///
    /// # Context
    ///
    /// Any; does not sleep.
    pub(crate) fn doubled(&self) -> Result<Self> {
        Ok(Self {
            slots: doubled(&self.slots)?,
            sges: doubled(&self.sges)?,
            max_sge: self.max_sge,
        })
    }

    /// Room for the list of `slot`.
    pub(crate) fn list_mut(&mut self, slot: u32) -> Option<&mut [Sge]> {
        let start = (slot as usize).checked_mul(self.max_sge)?;
        self.sges.get_mut(start..start.checked_add(self.max_sge)?)
    }

    /// Says what `slot` holds from now on.
    pub(crate) fn set(
        &mut self,
        slot: u32,
        payload: Payload,
        num_sge: u32,
        address: Option<Arc<AddressHandle>>,
    ) {
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            *entry = Slot {
                payload,
                num_sge,
                address,
            };
        }
    }

    /// Where the payload of `slot` is.
    pub(crate) fn payload(&self, slot: u32) -> Payload {
        self.slots
            .get(slot as usize)
            .map(|s| s.payload)
            .unwrap_or_default()
    }

    /// The list of `slot`.
    pub(crate) fn list(&self, slot: u32) -> &[Sge] {
        let Some(entry) = self.slots.get(slot as usize) else {
            return &[];
        };
        let start = (slot as usize).wrapping_mul(self.max_sge);
        self.sges
            .get(start..start.wrapping_add(entry.num_sge as usize))
            .unwrap_or_default()
    }

    /// The address of a datagram in `slot`.
    pub(crate) fn address(&self, slot: u32) -> Option<&AddressHandle> {
        self.slots.get(slot as usize)?.address.as_deref()
    }

    /// Drops what the slots hold.
    pub(crate) fn clear(&mut self) {
        for slot in &mut *self.slots {
            *slot = Slot::default();
        }
    }
}

/// What `entries` has, twice; without sleeping.
fn doubled<T: Clone>(entries: &[T]) -> Result<KVVec<T>> {
    let flags = GFP_NOWAIT | __GFP_NOWARN;
    let mut new = KVVec::with_capacity(entries.len().saturating_mul(2), flags)?;
    new.extend_from_slice(entries, flags)?;
    new.extend_from_slice(entries, flags)?;
    Ok(new)
}
