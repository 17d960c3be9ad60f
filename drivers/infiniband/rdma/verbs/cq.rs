// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/cq.rs`.

use super::{
    notifier::CqNotifier,
    object::{
        Object,
        Part, //
    },
    ucontext::Ucontext,
    wc::WcSink,
    Device,
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

/// What the user wants; C: `struct ib_cq_init_attr`.
#[derive(Clone, Copy, Debug)]
pub struct CqInit {
    /// Number of elements, not 0.
    pub cqe: u32,
    /// Completion vector.
    pub comp_vector: u32,
    /// Flags of `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
}

/// What the driver made of it.
pub struct NewCq<I> {
    /// Number of elements that the queue really has.
    pub cqe: u32,
    /// Initialises the driver's part.
    pub init: I,
}

/// A completion queue.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`; `notifier` and `drv` are initialised.
#[repr(C)]
pub struct Cq<D: Driver> {
    ib: Part<bindings::ib_cq>,
    notifier: Arc<CqNotifier>,
    drv: D::Cq,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Cq<D> {
    type Raw = bindings::ib_cq;
    type Drv = D::Cq;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Cq<D> {
    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Cq {
        &self.drv
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: By the type invariant; the device outlives its completion queues.
        unsafe { Device::from_raw((*self.ib.get()).device) }
    }

    /// It belongs to a user program.
    pub fn is_user(&self) -> bool {
        // SAFETY: By the type invariant; set before creation.
        !unsafe { (*self.ib.get()).uobject }.is_null()
    }

    /// What notifies its user.
    pub fn notifier(&self) -> &Arc<CqNotifier> {
        &self.notifier
    }
}

/// The thunks for completion queues.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.create_cq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:__ib_create_cq`, `cq.c:__ib_alloc_cq` (with null `attrs`) and
    /// `uverbs_cmd.c:create_cq`: `cq` is zeroed memory of `size_ib_cq` bytes with `device` and, for
    /// users, `uobject` and the handlers set; it stays until `destroy`.
    pub(super) unsafe extern "C" fn create(
        cq: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `attr` is valid by the safety requirement.
            let attr = unsafe { &*attr };
            let attr = CqInit {
                cqe: attr.cqe,
                comp_vector: attr.comp_vector,
                flags: attr.flags,
            };
            // SAFETY: The core has set `device`, to one of this driver.
            let device = unsafe { Device::<D>::from_raw((*cq).device) };
            let udata = if attrs.is_null() {
                core::ptr::null_mut()
            } else {
                // SAFETY: `attrs` are those of the running call by the safety requirement.
                unsafe { bindings::uverbs_driver_udata(attrs) }
            };
            // SAFETY: `udata` is null or from `attrs`.
            let context = unsafe { Ucontext::from_udata(udata) };
            // SAFETY: As above.
            let udata = unsafe { Udata::from_raw(udata) };
            let notifier = CqNotifier::new()?;
            let new = D::create_cq(device, &attr, context, udata, notifier.clone())?;
            let cqe = c_int::try_from(new.cqe)?;
            let this = cq.cast::<Cq<D>>();
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Cq::<D>::init_drv(cq, new.init) }?;
            // SAFETY: `cq` is valid by the safety requirement, and not published yet.
            unsafe { (*cq).cqe = cqe };
            // SAFETY: `cq` stays until `destroy`, which revokes.
            unsafe { notifier.arm(cq) };
            // SAFETY: `notifier` is a field of the memory that C allocated, uninitialised.
            unsafe { (&raw mut (*this).notifier).write(notifier) };
            Ok(0)
        })
    }

    /// `ib_device_ops.resize_user_cq`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_cmd.c:ib_uverbs_resize_cq`: `cq` is live, `udata` as for
    /// [`Ucontext::from_udata`].
    pub(super) unsafe extern "C" fn resize_user(
        cq: *mut bindings::ib_cq,
        cqe: u32,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the safety requirement.
            let context = unsafe { Ucontext::from_udata(udata) }.ok_or(EINVAL)?;
            // SAFETY: As above.
            let udata = unsafe { Udata::from_raw(udata) }.ok_or(EINVAL)?;
            // SAFETY: `cq` is live by the safety requirement.
            let this = unsafe { Cq::<D>::from_raw(cq) };
            let cqe = c_int::try_from(D::resize_cq(this, cqe, context, udata)?)?;
            // SAFETY: A field of a live object. C reads it without a lock as well.
            unsafe { (&raw mut (*cq).cqe).write_volatile(cqe) };
            Ok(0)
        })
    }

    /// `ib_device_ops.destroy_cq`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_destroy_cq_user` and `cq.c:ib_free_cq`: `cq` is live, no queue pair
    /// uses it any more, and it is freed afterwards.
    pub(super) unsafe extern "C" fn destroy(
        cq: *mut bindings::ib_cq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: `cq` is live by the safety requirement.
            let this = unsafe { Cq::<D>::from_raw(cq) };
            D::destroy_cq(this);
            this.notifier.revoke();
        }
        // SAFETY: This is the last call for this object, and the notifier does not refer to it any more.
        unsafe { Cq::<D>::drop_in_place(cq) };
        0
    }

    /// `ib_device_ops.poll_cq`.
    ///
    /// # Safety
    ///
    /// As called by `ib_verbs.h:ib_poll_cq`: `cq` is live, and `wc` has room for `count` elements.
    pub(super) unsafe extern "C" fn poll(
        cq: *mut bindings::ib_cq,
        count: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        // SAFETY: `cq` is live by the safety requirement.
        let cq = unsafe { Cq::<D>::from_raw(cq) };
        if cq.is_user() {
            return EINVAL.to_errno();
        }
        let len = usize::try_from(count).unwrap_or(0);
        // SAFETY: `wc` has room for `len` elements by the safety requirement.
        let mut sink = unsafe { WcSink::new(wc, len) };
        D::poll_cq(cq, &mut sink);
        // CAST: Not more than `count`.
        sink.used() as c_int
    }

    /// `ib_device_ops.req_notify_cq`.
    ///
    /// # Safety
    ///
    /// As called by `ib_verbs.h:ib_req_notify_cq`: `cq` is live.
    pub(super) unsafe extern "C" fn req_notify(
        cq: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        // SAFETY: `cq` is live by the safety requirement.
        let cq = unsafe { Cq::<D>::from_raw(cq) };
        let solicited_only = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
            == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
        let report_missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
        let missed = D::req_notify_cq(cq, solicited_only, report_missed);
        c_int::from(missed && report_missed)
    }
}
