// SPDX-License-Identifier: GPL-2.0

//! Address vectors, and address handles that hold them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/ah.rs`.

use super::{
    object::{
        Object,
        Part, //
    },
    Driver,
    Pd, //
};
use crate::{
    bindings,
    udata::Udata, //
};
use core::{
    marker::PhantomData,
    mem::offset_of, //
};
use kernel::{
    error::from_result,
    prelude::*,
    sync::rcu, //
};

/// Where to send packets, resolved; a plain value that refers to nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressVector {
    /// Source GID, as the GID table had it when the value was made.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Index of the source GID in the GID table.
    pub sgid_index: u8,
    /// The GIDs are IPv4 addresses, mapped.
    pub v4: bool,
    /// Ethernet address of the next hop.
    pub dmac: [u8; 6],
    /// Traffic class (DSCP and ECN).
    pub traffic_class: u8,
    /// Hop limit (time to live).
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
    /// Static rate, the code of `enum ib_rate`.
    pub static_rate: u8,
    /// Index of the network interface that has the source GID; 0 if it has gone.
    pub ifindex: u32,
    /// Port number.
    pub port: u32,
}

impl AddressVector {
    /// Reads an `rdma_ah_attr`.
    ///
    /// # Safety
    ///
    /// `attr.grh.sgid_attr` must be null, or an entry of the GID table to which somebody holds a
    /// reference during this call.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no global route, or an address of another kind than RoCE's.
    pub(super) unsafe fn from_raw(attr: &bindings::rdma_ah_attr) -> Result<Self> {
        if attr.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || u32::from(attr.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH == 0
        {
            return Err(EINVAL);
        }
        let grh = &attr.grh;
        // SAFETY: All bytes of a GID are initialised, whatever it is made of.
        let dgid = unsafe { grh.dgid.raw };
        // SAFETY: Of the kinds of addresses, it is RoCE's by the check of `type_`.
        let dmac = unsafe { attr.__bindgen_anon_1.roce.dmac };
        let mut this = Self {
            dgid,
            sgid_index: grh.sgid_index,
            dmac,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            flow_label: grh.flow_label,
            sl: attr.sl,
            static_rate: attr.static_rate,
            port: attr.port_num,
            ..Self::default()
        };
        if !grh.sgid_attr.is_null() {
            // SAFETY: The entry is referenced by the safety requirement, and its GID never changes.
            this.sgid = unsafe { (*grh.sgid_attr).gid.raw };
            // SAFETY: The entry is referenced by the safety requirement.
            let network = unsafe { bindings::rdma_gid_attr_network_type(grh.sgid_attr) };
            this.v4 = network == bindings::rdma_network_type_RDMA_NETWORK_IPV4;
            let guard = rcu::read_lock();
            // SAFETY: `cache.c:rdma_read_gid_attr_ndev_rcu` needs a referenced entry and RCU.
            let ndev = unsafe { bindings::rdma_read_gid_attr_ndev_rcu(grh.sgid_attr) };
            if let Ok(ndev) = kernel::error::from_err_ptr(ndev) {
                // SAFETY: The interface is not freed while `guard` lives.
                let ifindex = unsafe { bindings::rdma_netdev_ifindex(ndev) };
                this.ifindex = ifindex.try_into().unwrap_or(0);
            }
            drop(guard);
        }
        Ok(this)
    }

    /// The value as C has it, without a reference to the GID table. Of the default value, which has no
    /// port, only the type.
    pub(super) fn to_raw(self) -> bindings::rdma_ah_attr {
        if self.port == 0 {
            return bindings::rdma_ah_attr {
                type_: bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE,
                ..pin_init::zeroed()
            };
        }
        let mut attr = bindings::rdma_ah_attr {
            sl: self.sl,
            static_rate: self.static_rate,
            port_num: self.port,
            // CAST: The only flag is 1.
            ah_flags: bindings::ib_ah_flags_IB_AH_GRH as u8,
            type_: bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE,
            ..pin_init::zeroed()
        };
        attr.grh.dgid.raw = self.dgid;
        attr.grh.flow_label = self.flow_label;
        attr.grh.sgid_index = self.sgid_index;
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        attr.__bindgen_anon_1.roce.dmac = self.dmac;
        attr
    }
}

/// An address handle.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `drv` is initialised.
#[repr(C)]
pub struct Ah<D: Driver> {
    ib: Part<bindings::ib_ah>,
    drv: D::Ah,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Ah<D> {
    type Raw = bindings::ib_ah;
    type Drv = D::Ah;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Ah<D> {
    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Ah {
        &self.drv
    }

    /// The protection domain that it was created in.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: By the type invariant; the core set `pd` and counts address handles in it, so that
        // it is not freed before them.
        unsafe { Pd::from_raw((*self.ib.get()).pd) }
    }
}

/// The thunks for address handles.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.create_ah` and `create_user_ah`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:_rdma_create_ah`: `ah` is zeroed memory of `size_ib_ah` bytes with
    /// `device` and `pd` set; `attr` is valid and its GID entry referenced; `udata` as for
    /// [`Udata::from_raw`].
    pub(super) unsafe extern "C" fn create(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `attr` is valid by the safety requirement.
            let (raw, flags) = unsafe { (&*(*attr).ah_attr, (*attr).flags) };
            // SAFETY: The GID entry is referenced by the safety requirement.
            let av = unsafe { AddressVector::from_raw(raw) }?;
            let sleepable = flags & bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0;
            // SAFETY: The core has set `pd`, to one of a device of this driver.
            let pd = unsafe { Pd::<D>::from_raw((*ah).pd) };
            // SAFETY: By the safety requirement.
            let udata = unsafe { Udata::from_raw(udata) };
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Ah::<D>::init_drv(ah, D::create_ah(pd, &av, udata, sleepable)) }?;
            Ok(0)
        })
    }

    /// `ib_device_ops.query_ah`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:rdma_query_ah`: `ah` is live, `attr` valid.
    pub(super) unsafe extern "C" fn query(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: `ah` is live by the safety requirement.
        let av = D::query_ah(unsafe { Ah::<D>::from_raw(ah) });
        // SAFETY: `attr` is valid by the safety requirement.
        unsafe { attr.write(av.to_raw()) };
        0
    }

    /// `ib_device_ops.modify_ah`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:rdma_modify_ah`: `ah` is live; `attr` is valid and its GID entry
    /// referenced.
    pub(super) unsafe extern "C" fn modify(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the safety requirement.
            let av = unsafe { AddressVector::from_raw(&*attr) }?;
            // SAFETY: `ah` is live by the safety requirement.
            D::modify_ah(unsafe { Ah::<D>::from_raw(ah) }, &av)?;
            Ok(0)
        })
    }

    /// `ib_device_ops.destroy_ah`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:rdma_destroy_ah_user`: `ah` is live and freed afterwards.
    pub(super) unsafe extern "C" fn destroy(ah: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: `ah` is live by the safety requirement.
        D::destroy_ah(unsafe { Ah::<D>::from_raw(ah) });
        // SAFETY: This is the last call for this object.
        unsafe { Ah::<D>::drop_in_place(ah) };
        0
    }
}
