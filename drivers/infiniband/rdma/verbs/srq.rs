// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/srq.rs`.

use super::{
    cq::Cq,
    notifier::SrqNotifier,
    object::{
        Object,
        Part, //
    },
    pd::Pd,
    ucontext::Ucontext,
    wr::RecvWr,
    xrcd::Xrcd,
    Driver, //
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
    sync::Arc, //
};

/// What the user wants; C: `struct ib_srq_init_attr`.
///
/// The limit is not here: it means nothing before there are receives in the queue.
pub struct SrqInit<'a, D: Driver> {
    /// Number of receives.
    pub max_wr: u32,
    /// Pieces of memory in each.
    pub max_sge: u32,
    /// It is for extended reliable connections.
    pub xrc: Option<XrcInit<'a, D>>,
}

/// What belongs to a shared receive queue for extended reliable connections.
pub struct XrcInit<'a, D: Driver> {
    /// Its domain.
    pub xrcd: &'a Xrcd<D>,
    /// Where its receives complete.
    pub cq: &'a Cq<D>,
}

/// Attributes of a shared receive queue; C: `struct ib_srq_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttr {
    /// Number of receives that the queue has room for.
    pub max_wr: u32,
    /// Pieces of memory in each.
    pub max_sge: u32,
    /// An event is due when there are less receives than this; 0 if none is.
    pub limit: u32,
}

/// What is to be changed; C: `enum ib_srq_attr_mask` and the attributes.
#[derive(Clone, Copy, Debug)]
pub struct SrqChange {
    /// Number of receives.
    pub max_wr: Option<u32>,
    /// Ask once for an event when there are less receives than this; 0: do not.
    pub limit: Option<u32>,
}

/// What the driver made of it.
pub struct NewSrq<I> {
    /// Number of the queue, as peers name one for extended reliable connections.
    pub number: u32,
    /// Number of receives that the queue really has room for.
    pub max_wr: u32,
    /// Pieces of memory that each may have.
    pub max_sge: u32,
    /// Initialises the driver's part.
    pub init: I,
}

/// A shared receive queue.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device and protection domain of driver `D`; `notifier` and
/// `drv` are initialised.
#[repr(C)]
pub struct Srq<D: Driver> {
    ib: Part<bindings::ib_srq>,
    notifier: Arc<SrqNotifier>,
    drv: D::Srq,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Srq<D> {
    type Raw = bindings::ib_srq;
    type Drv = D::Srq;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Srq<D> {
    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Srq {
        &self.drv
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: By the type invariant; the core counts shared receive queues in their domain.
        unsafe { Pd::from_raw((*self.ib.get()).pd) }
    }

    /// It belongs to a user program.
    pub fn is_user(&self) -> bool {
        // SAFETY: By the type invariant; set before creation.
        !unsafe { (*self.ib.get()).uobject }.is_null()
    }
}

/// The thunks for shared receive queues.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.create_srq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_create_srq_user`: `srq` is zeroed memory of `size_ib_srq` bytes with
    /// `device`, `pd`, `uobject` and the handler set, which stays until `destroy`; `attr` is valid;
    /// `udata` as for [`Ucontext::from_udata`].
    pub(super) unsafe extern "C" fn create(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `attr` is valid and exclusive by the safety requirement.
            let attr = unsafe { &mut *attr };
            let xrc = match attr.srq_type {
                bindings::ib_srq_type_IB_SRQT_BASIC => None,
                bindings::ib_srq_type_IB_SRQT_XRC => {
                    // SAFETY: The union has this field for this type.
                    let xrcd = unsafe { attr.ext.__bindgen_anon_1.xrc.xrcd };
                    Some(XrcInit {
                        // SAFETY: A live one of this device, or null (`verbs.c:ib_create_srq_user`).
                        xrcd: unsafe { Xrcd::from_nullable(xrcd) }.ok_or(EINVAL)?,
                        // SAFETY: Queues of this type have one (`ib_srq_has_cq`), live and of this device.
                        cq: unsafe { Cq::from_raw(attr.ext.cq) },
                    })
                }
                _ => return Err(EOPNOTSUPP),
            };
            let is_xrc = xrc.is_some();
            let init = SrqInit {
                xrc,
                max_wr: attr.attr.max_wr,
                max_sge: attr.attr.max_sge,
            };
            // SAFETY: The core has set `pd`, to a live one of this device.
            let pd = unsafe { Pd::<D>::from_raw((*srq).pd) };
            // SAFETY: By the safety requirement.
            let context = unsafe { Ucontext::from_udata(udata) };
            // SAFETY: As above.
            let udata = unsafe { Udata::from_raw(udata) };
            let notifier = SrqNotifier::new()?;
            let new = D::create_srq(pd, &init, context, udata, notifier.clone())?;
            let this = srq.cast::<Srq<D>>();
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Srq::<D>::init_drv(srq, new.init) }?;
            if is_xrc {
                // SAFETY: `srq` is valid and exclusive by the safety requirement; the union has this field
                // for this type.
                unsafe { (*srq).ext.__bindgen_anon_1.xrc.srq_num = new.number };
            }
            attr.attr.max_wr = new.max_wr;
            attr.attr.max_sge = new.max_sge;
            // SAFETY: `srq` stays until `destroy`, which revokes.
            unsafe { notifier.arm(srq) };
            // SAFETY: A field of the memory that C allocated, uninitialised.
            unsafe { (&raw mut (*this).notifier).write(notifier) };
            Ok(0)
        })
    }

    /// `ib_device_ops.modify_srq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_modify_srq` and `uverbs_cmd.c:ib_uverbs_modify_srq`: `srq` is live,
    /// `attr` valid; `udata` as for [`Ucontext::from_udata`].
    pub(super) unsafe extern "C" fn modify(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        const MAX_WR: u32 = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: u32 = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;
        from_result(|| {
            if mask & !(MAX_WR | LIMIT) != 0 {
                return Err(EINVAL);
            }
            // SAFETY: `attr` is valid by the safety requirement.
            let attr = unsafe { &*attr };
            let change = SrqChange {
                max_wr: (mask & MAX_WR != 0).then_some(attr.max_wr),
                limit: (mask & LIMIT != 0).then_some(attr.srq_limit),
            };
            // SAFETY: `srq` is live by the safety requirement.
            let this = unsafe { Srq::<D>::from_raw(srq) };
            // SAFETY: By the safety requirement.
            let context = unsafe { Ucontext::from_udata(udata) };
            // SAFETY: As above.
            let udata = unsafe { Udata::from_raw(udata) };
            D::modify_srq(this, &change, context, udata)?;
            Ok(0)
        })
    }

    /// `ib_device_ops.query_srq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_query_srq`: `srq` is live, `attr` valid for writes.
    pub(super) unsafe extern "C" fn query(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `srq` is live by the safety requirement.
            let this = unsafe { Srq::<D>::from_raw(srq) };
            let values = D::query_srq(this)?;
            let raw = bindings::ib_srq_attr {
                max_wr: values.max_wr,
                max_sge: values.max_sge,
                srq_limit: values.limit,
            };
            // SAFETY: `attr` is valid for writes by the safety requirement.
            unsafe { attr.write(raw) };
            Ok(0)
        })
    }

    /// `ib_device_ops.destroy_srq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_destroy_srq_user`: `srq` is live, no queue pair uses it any more, and
    /// it is freed afterwards.
    pub(super) unsafe extern "C" fn destroy(
        srq: *mut bindings::ib_srq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: `srq` is live by the safety requirement.
            let this = unsafe { Srq::<D>::from_raw(srq) };
            D::destroy_srq(this);
            this.notifier.revoke();
        }
        // SAFETY: This is the last call for this object, and the notifier does not refer to it any more.
        unsafe { Srq::<D>::drop_in_place(srq) };
        0
    }

    /// `ib_device_ops.post_srq_recv`.
    ///
    /// # Safety
    ///
    /// As called by `ib_verbs.h:ib_post_srq_recv` and `uverbs_cmd.c:ib_uverbs_post_srq_recv`: `srq` is
    /// live; `wr` is null or the head of a chain of valid requests that stay until they complete;
    /// `bad` is valid.
    pub(super) unsafe extern "C" fn post_recv(
        srq: *mut bindings::ib_srq,
        mut wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: `srq` is live by the safety requirement.
        let srq = unsafe { Srq::<D>::from_raw(srq) };
        while !wr.is_null() {
            // SAFETY: `wr` is valid by the safety requirement. It may be gone once it was posted.
            let next = unsafe { (*wr).next };
            // SAFETY: As above: a request for this queue, not yet posted.
            let request = unsafe { RecvWr::new(&*wr) };
            let ret = if srq.is_user() {
                // User programs post to the ring.
                Err(EINVAL)
            } else {
                D::post_srq_recv(srq, &request)
            };
            if let Err(error) = ret {
                // SAFETY: `bad` is valid by the safety requirement.
                unsafe { bad.write(wr) };
                return error.to_errno();
            }
            wr = next;
        }
        0
    }
}
