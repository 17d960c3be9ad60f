// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/qp.rs`.

use super::{
    attr::{
        mask,
        QpAttr,
        QpCaps,
        QpKind, //
    },
    cq::Cq,
    notifier::QpNotifier,
    object::{
        Object,
        Part, //
    },
    pd::Pd,
    srq::Srq,
    ucontext::Ucontext,
    wr::{
        RecvWr,
        SendWr, //
    },
    xrcd::Xrcd,
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

/// What the user wants; C: `struct ib_qp_init_attr`.
pub struct QpInit<'a, D: Driver> {
    /// Type.
    pub kind: QpKind,
    /// Sizes asked for.
    pub caps: QpCaps,
    /// Every send request completes, not only those with the flag.
    pub sq_sig_all: bool,
    /// Protection domain; the target of an extended reliable connection may have none.
    pub pd: Option<&'a Pd<D>>,
    /// Completion queue for sends, if it sends.
    pub send_cq: Option<&'a Cq<D>>,
    /// Completion queue for receives, if it has a receive queue of its own or shares an ordinary one.
    pub recv_cq: Option<&'a Cq<D>>,
    /// Domain of the target of an extended reliable connection.
    pub xrcd: Option<&'a Xrcd<D>>,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<&'a Srq<D>>,
    /// Flags of `enum ib_qp_create_flags`.
    pub create_flags: u32,
    /// Port, for types that are bound to one.
    pub port: u32,
}

/// What the driver made of it.
pub struct NewQp<I> {
    /// Number of the queue pair, as peers name it.
    pub qpn: u32,
    /// Sizes that it really has.
    pub caps: QpCaps,
    /// Initialises the driver's part.
    pub init: I,
}

/// A queue pair.
///
/// # Invariants
///
/// `ib` was filled in by the core, with a device of driver `D`, and so are its protection domain, its
/// completion queues and its shared receive queue as far as it has them; the other fields are
/// initialised.
#[repr(C)]
pub struct Qp<D: Driver> {
    ib: Part<bindings::ib_qp>,
    notifier: Arc<QpNotifier>,
    kind: QpKind,
    user: bool,
    sq_sig_all: bool,
    drv: D::Qp,
}

// SAFETY: `ib` is at the start, and the core allocates `kmalloc_size::<Self>()` bytes (`ops.rs`).
unsafe impl<D: Driver> Object for Qp<D> {
    type Raw = bindings::ib_qp;
    type Drv = D::Qp;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Qp<D> {
    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Qp {
        &self.drv
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: By the type invariant; the device outlives its queue pairs.
        unsafe { Device::from_raw((*self.ib.get()).device) }
    }

    /// The shared receive queue, if there is one.
    pub fn srq(&self) -> Option<&Srq<D>> {
        // SAFETY: By the type invariant; the core counts queue pairs in their shared receive queue.
        unsafe { Srq::from_nullable((*self.ib.get()).srq) }
    }

    /// The number, as peers name it.
    pub fn qpn(&self) -> u32 {
        // SAFETY: By the type invariant; it does not change after creation.
        unsafe { (*self.ib.get()).qp_num }
    }

    /// The type.
    pub fn kind(&self) -> QpKind {
        self.kind
    }

    /// It has a receive queue of its own.
    fn has_receive_queue(&self) -> bool {
        let extended = matches!(self.kind, QpKind::XrcIni | QpKind::XrcTgt);
        !extended && self.srq().is_none()
    }

    /// It belongs to a user program.
    pub fn is_user(&self) -> bool {
        self.user
    }

    /// What notifies its user.
    pub fn notifier(&self) -> &Arc<QpNotifier> {
        &self.notifier
    }
}

/// The thunks for queue pairs.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.create_qp`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:create_qp`: `qp` is zeroed memory of `size_ib_qp` bytes with `device`,
    /// `uobject`, the handlers and, unless it is null, `pd` set, which stays until `destroy`; `attr` is
    /// valid; `udata` as for [`Ucontext::from_udata`].
    pub(super) unsafe extern "C" fn create(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `attr` is valid and exclusive by the safety requirement.
            let attr = unsafe { &mut *attr };
            // SAFETY: `qp` is valid by the safety requirement.
            let (pd, user) = unsafe { ((*qp).pd, !(*qp).uobject.is_null()) };
            if !attr.rwq_ind_tbl.is_null() {
                return Err(EOPNOTSUPP);
            }
            let kind = QpKind::from_raw(attr.qp_type);
            let sq_sig_all = attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
            // SAFETY: The core has set `device`, to one of this driver.
            let device = unsafe { Device::<D>::from_raw((*qp).device) };
            let init = QpInit {
                kind,
                caps: QpCaps::from_raw(&attr.cap),
                sq_sig_all,
                // SAFETY: The core has checked that it is a live one of this device.
                pd: unsafe { Pd::from_nullable(pd) },
                // SAFETY: As above.
                send_cq: unsafe { Cq::from_nullable(attr.send_cq) },
                // SAFETY: As above.
                recv_cq: unsafe { Cq::from_nullable(attr.recv_cq) },
                // SAFETY: As above.
                xrcd: unsafe { Xrcd::from_nullable(attr.xrcd) },
                // SAFETY: As above.
                srq: unsafe { Srq::from_nullable(attr.srq) },
                create_flags: attr.create_flags,
                port: attr.port_num,
            };
            // SAFETY: By the safety requirement.
            let context = unsafe { Ucontext::from_udata(udata) };
            // SAFETY: As above.
            let udata = unsafe { Udata::from_raw(udata) };
            let notifier = QpNotifier::new()?;
            let new = D::create_qp(device, &init, context, udata, notifier.clone())?;
            let this = qp.cast::<Qp<D>>();
            // SAFETY: C allocated it, does not move it and, on failure, frees it.
            unsafe { Qp::<D>::init_drv(qp, new.init) }?;
            new.caps.write_to(&mut attr.cap);
            // SAFETY: `qp` is valid by the safety requirement, and not published yet.
            unsafe { (*qp).qp_num = new.qpn };
            // SAFETY: As above; a field of the memory that C allocated.
            unsafe { (&raw mut (*this).kind).write(kind) };
            // SAFETY: As above.
            unsafe { (&raw mut (*this).user).write(user) };
            // SAFETY: As above.
            unsafe { (&raw mut (*this).sq_sig_all).write(sq_sig_all) };
            // SAFETY: `qp` stays until `destroy`, which revokes before it drops `notifier`.
            unsafe { notifier.arm(qp) };
            // SAFETY: A field of the memory that C allocated, uninitialised.
            unsafe { (&raw mut (*this).notifier).write(notifier) };
            Ok(0)
        })
    }

    /// `ib_device_ops.modify_qp`.
    ///
    /// # Safety
    ///
    /// As called by `security.c:ib_security_modify_qp`: `qp` is live, `attr` valid; if `mask` has
    /// `IB_QP_AV`, the GID entry in it is referenced.
    pub(super) unsafe extern "C" fn modify(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // CAST: C keeps flags in an `int`.
            let mask = mask as u32;
            if mask & !mask::STANDARD != 0 {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: By the safety requirement.
            let attr = unsafe { QpAttr::from_raw(&*attr, mask) }?;
            // SAFETY: By the safety requirement.
            let udata = unsafe { Udata::from_raw(udata) };
            // SAFETY: `qp` is live by the safety requirement.
            D::modify_qp(unsafe { Qp::<D>::from_raw(qp) }, &attr, mask, udata)?;
            Ok(0)
        })
    }

    /// `ib_device_ops.query_qp`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_query_qp`: `qp` is live, `attr` and `init` are valid.
    pub(super) unsafe extern "C" fn query(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `qp` is live by the safety requirement.
            let this = unsafe { Qp::<D>::from_raw(qp) };
            let mut values = QpAttr::default();
            // CAST: C keeps flags in an `int`.
            D::query_qp(this, &mut values, mask as u32)?;
            // SAFETY: `attr` is valid and exclusive by the safety requirement.
            values.write_to(unsafe { &mut *attr });
            // SAFETY: `init` is valid and exclusive by the safety requirement.
            let init = unsafe { &mut *init };
            // SAFETY: `qp` is live; these were set before its creation.
            let ib = unsafe { &*qp };
            init.event_handler = ib.registered_event_handler;
            init.qp_context = ib.qp_context;
            init.send_cq = ib.send_cq;
            init.recv_cq = ib.recv_cq;
            init.srq = ib.srq;
            values.caps.write_to(&mut init.cap);
            init.sq_sig_type = if this.sq_sig_all {
                bindings::ib_sig_type_IB_SIGNAL_ALL_WR
            } else {
                bindings::ib_sig_type_IB_SIGNAL_REQ_WR
            };
            init.qp_type = ib.qp_type;
            Ok(0)
        })
    }

    /// `ib_device_ops.destroy_qp`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_destroy_qp_user` and `create_qp`: `qp` is live, nobody else calls
    /// verbs on it any more, and it is freed afterwards.
    pub(super) unsafe extern "C" fn destroy(
        qp: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: `qp` is live by the safety requirement.
            let this = unsafe { Qp::<D>::from_raw(qp) };
            D::destroy_qp(this);
            this.notifier.revoke();
        }
        // SAFETY: This is the last call for this object, and the notifier does not refer to it any more.
        unsafe { Qp::<D>::drop_in_place(qp) };
        0
    }

    /// `ib_device_ops.post_send`: takes the requests of a kernel user one by one, or rings the
    /// doorbell of a user program's queue pair.
    ///
    /// # Safety
    ///
    /// As called by `ib_verbs.h:ib_post_send` and `uverbs_cmd.c:ib_uverbs_post_send`: `qp` is live;
    /// `wr` is null or the head of a chain of valid requests that stay until they complete; `bad` is
    /// valid.
    pub(super) unsafe extern "C" fn post_send(
        qp: *mut bindings::ib_qp,
        mut wr: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: `qp` is live by the safety requirement.
        let qp = unsafe { Qp::<D>::from_raw(qp) };
        if qp.kind == QpKind::XrcTgt {
            // Also that of a user program is a kernel's, and what is asked for here comes from there.
            // SAFETY: `bad` is valid by the safety requirement.
            unsafe { bad.write(wr) };
            return EINVAL.to_errno();
        }
        if qp.user {
            // What is posted is in the ring; requests in the command are for other drivers.
            let ret = if wr.is_null() {
                D::doorbell(qp)
            } else {
                Err(EINVAL)
            };
            if ret.is_err() {
                // SAFETY: `bad` is valid by the safety requirement.
                unsafe { bad.write(wr) };
            }
            return from_result(|| ret.map(|()| 0));
        }
        while !wr.is_null() {
            // SAFETY: `wr` is valid by the safety requirement. It may be gone once it was posted.
            let next = unsafe { (*wr).next };
            // SAFETY: As above: a kernel user's request for this queue pair, not yet posted.
            let request = unsafe { SendWr::new(&*wr, qp.kind) };
            if let Err(error) = D::post_send(qp, &request) {
                // SAFETY: `bad` is valid by the safety requirement.
                unsafe { bad.write(wr) };
                return error.to_errno();
            }
            wr = next;
        }
        0
    }

    /// `ib_device_ops.post_recv`.
    ///
    /// # Safety
    ///
    /// As called by `ib_verbs.h:ib_post_recv` and `uverbs_cmd.c:ib_uverbs_post_recv`: as for
    /// `post_send`.
    pub(super) unsafe extern "C" fn post_recv(
        qp: *mut bindings::ib_qp,
        mut wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: `qp` is live by the safety requirement.
        let qp = unsafe { Qp::<D>::from_raw(qp) };
        while !wr.is_null() {
            // SAFETY: `wr` is valid by the safety requirement. It may be gone once it was posted.
            let next = unsafe { (*wr).next };
            // SAFETY: As above: a request for this queue pair, not yet posted.
            let request = unsafe { RecvWr::new(&*wr) };
            let ret = if qp.user || !qp.has_receive_queue() {
                Err(EINVAL)
            } else {
                D::post_recv(qp, &request)
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
