// SPDX-License-Identifier: GPL-2.0

//! Queue pairs in multicast groups.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/mcast.rs`.

use super::{
    object::Object,
    Driver,
    Qp, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// The thunks for multicast groups.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.attach_mcast`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_attach_mcast`: `qp` is live, `gid` valid.
    pub(super) unsafe extern "C" fn attach(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the safety requirement.
        unsafe { Self::call(qp, gid, D::attach_mcast) }
    }

    /// `ib_device_ops.detach_mcast`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_detach_mcast`: `qp` is live, `gid` valid.
    pub(super) unsafe extern "C" fn detach(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the safety requirement.
        unsafe { Self::call(qp, gid, D::detach_mcast) }
    }

    /// # Safety
    ///
    /// `qp` must be live, and `gid` valid.
    unsafe fn call(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        method: fn(&Qp<D>, [u8; 16]) -> Result,
    ) -> c_int {
        // SAFETY: `gid` is valid by the safety requirement; all bytes of a GID are initialised.
        let gid = unsafe { (*gid).raw };
        // SAFETY: `qp` is live by the safety requirement.
        let qp = unsafe { Qp::<D>::from_raw(qp) };
        from_result(|| method(qp, gid).map(|()| 0))
    }
}
