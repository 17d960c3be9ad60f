// SPDX-License-Identifier: GPL-2.0
//! Queue pair verbs.

use crate::{
    device::{
        limits,
        Ferroce, //
    },
    port::Port,
    posted::{
        Posted,
        Requests, //
    },
    qp::{
        kernel_list_entries,
        QpParts,
        QueuePair,
        SendSource,
        UserSends, //
    },
    queue::{
        Consumer,
        Filler,
        Ring, //
    },
    receives::{
        ReceiveQueue,
        Source, //
    },
    uapi::{
        self,
        CreateQpResponse,
        Sge, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    udata::Udata,
    verbs::{
        access,
        mask,
        Device,
        NewQp,
        Pd,
        QpAttr,
        QpCaps,
        QpInit,
        QpKind,
        QpNotifier,
        QpState,
        Ucontext,
        Xrcd,
        PATH_MIGRATED, //
    }, //
};
use roce::{
    qp::{
        attr::{
            QpAccess,
            QpAttr as CoreAttr, //
        },
        state::{
            AttrMask,
            QpKind as CoreKind,
            QpState as CoreState, //
        }, //
    },
    types::{
        Mtu,
        QKey,
        Qpn, //
    }, //
};

/// Numbers of ordinary QPs; those below are reserved for management.
const NUMBERS: core::ops::Range<u32> = 16..0x00ff_ffff;

/// Makes a queue pair in RESET.
///
/// # Errors
///
/// `EOPNOTSUPP` for a type or a flag that this driver does not have,
/// `EINVAL` for sizes out of range, and for too few or too many objects to go with the type; `EBUSY` for
/// a second management QP.
pub(super) fn create(
    device: &Device<Ferroce>,
    attr: &QpInit<'_, Ferroce>,
    ucontext: Option<&Ucontext<Ferroce>>,
    udata: Option<&Udata>,
    notifier: Arc<QpNotifier>,
) -> Result<NewQp<impl PinInit<Arc<QueuePair>, Error>>> {
    let kind = match attr.kind {
        QpKind::Rc => CoreKind::Rc,
        QpKind::Uc => CoreKind::Uc,
        QpKind::Ud => CoreKind::Ud,
        QpKind::Gsi if udata.is_none() => CoreKind::Gsi,
        // Requests of kernel users cannot name the queue at the peer.
        QpKind::XrcIni if udata.is_some() => CoreKind::XrcIni,
        QpKind::XrcTgt => CoreKind::XrcTgt,
        QpKind::Gsi | QpKind::Smi | QpKind::XrcIni | QpKind::Other(_) => return Err(EOPNOTSUPP),
    };
    if attr.create_flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let objects = objects(kind, attr)?;
    let mut caps = attr.caps;
    if objects.receives.is_some() {
        (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
    }
    if kind == CoreKind::XrcTgt {
        caps = QpCaps::default();
    }
    check_caps(&caps)?;
    let port = device.drv();
    let (shared, pd) = (objects.receives, objects.pd);
    let queues = match (ucontext, udata) {
        (Some(ucontext), Some(udata)) => user_queues(ucontext, udata, &caps, shared, pd)?,
        _ => kernel_queues(&caps, shared, pd)?,
    };
    let qpn = if kind == CoreKind::Gsi {
        Qpn::GSI
    } else {
        Qpn::new(port.qp_numbers.alloc(NUMBERS)?)
    };
    let caps = queues.caps;
    let qp = QueuePair::new(QpParts {
        port: port.clone(),
        kind,
        qpn,
        pd,
        xrcd: attr.xrcd.map(Xrcd::id),
        notifier,
        send_cq: attr.send_cq.map(|cq| cq.drv().clone()),
        recv_cq: attr.recv_cq.map(|cq| cq.drv().clone()),
        sends: queues.sends,
        receives: queues.receives,
        caps,
        signal_all: attr.sq_sig_all,
    })
    .inspect_err(|_| free_number(port, qpn))?;
    if let Err(error) = port.qps.insert(qpn.get(), qp.clone()) {
        qp.shut_down();
        free_number(port, qpn);
        // The only number that may be taken is that of the management QP.
        return Err(if error == EEXIST { EBUSY } else { error });
    }
    Ok(NewQp {
        qpn: qpn.get(),
        caps,
        init: Ok(qp),
    })
}

/// What goes with a queue pair, as far as its type has it.
struct Objects {
    /// Protection domain, 0 if there is none.
    pd: usize,
    /// The receive queue, unless it has one of its own.
    receives: Option<Arc<ReceiveQueue>>,
}

/// Checks that there is all that a type needs, and nothing that it has no use for.
fn objects(kind: CoreKind, attr: &QpInit<'_, Ferroce>) -> Result<Objects> {
    let (sends, receives) = (attr.send_cq.is_some(), attr.recv_cq.is_some());
    let pd = attr.pd.map(Pd::id);
    let complete = match kind {
        CoreKind::Rc | CoreKind::Uc | CoreKind::Ud | CoreKind::Gsi => {
            pd.is_some() && sends && receives && attr.xrcd.is_none()
        }
        CoreKind::XrcIni => pd.is_some() && sends && attr.xrcd.is_none() && attr.srq.is_none(),
        CoreKind::XrcTgt => attr.xrcd.is_some() && attr.srq.is_none(),
    };
    if !complete || attr.srq.is_some_and(|srq| srq.drv().is_xrc()) {
        return Err(EINVAL);
    }
    let receives = match kind {
        CoreKind::Rc | CoreKind::Uc | CoreKind::Ud | CoreKind::Gsi => {
            attr.srq.map(|srq| srq.drv().queue().clone())
        }
        // Always empty. A target keeps the list of a WQE of any queue that it takes from.
        CoreKind::XrcIni | CoreKind::XrcTgt => {
            let source = Source::Kernel(Requests::new(0, 0)?);
            Some(ReceiveQueue::new(source, limits::MAX_SGE, 0, None)?)
        }
    };
    let pd = pd.unwrap_or(0);
    Ok(Objects { pd, receives })
}

/// Ends a queue pair: nothing of it runs when this returns.
pub(super) fn destroy(port: &Port, qp: &QueuePair) {
    let _ = port.qps.remove(qp.qpn().get());
    qp.shut_down();
    free_number(port, qp.qpn());
}

fn free_number(port: &Port, qpn: Qpn) {
    if qpn != Qpn::GSI {
        port.qp_numbers.free(qpn.get());
    }
}

fn check_caps(caps: &QpCaps) -> Result {
    if caps.max_send_wr > limits::MAX_QP_WR
        || caps.max_recv_wr > limits::MAX_QP_WR
        || caps.max_send_sge > limits::MAX_SGE
        || caps.max_recv_sge > limits::MAX_SGE
        || caps.max_inline_data > limits::MAX_INLINE
    {
        return Err(EINVAL);
    }
    Ok(())
}

struct Queues {
    sends: SendSource,
    receives: Arc<ReceiveQueue>,
    caps: QpCaps,
}

/// Rings that the user program maps; receives may come from a queue that there is already.
fn user_queues(
    ucontext: &Ucontext<Ferroce>,
    udata: &Udata,
    caps: &QpCaps,
    shared: Option<Arc<ReceiveQueue>>,
    pd: usize,
) -> Result<Queues> {
    let head = size_of::<uapi::SendWqe>() as u32;
    let list = caps
        .max_send_sge
        .max(1)
        .wrapping_mul(size_of::<Sge>() as u32);
    let data = list.max(caps.max_inline_data);
    let send_ring = Ring::new(
        ucontext,
        caps.max_send_wr.max(1),
        head.wrapping_add(data),
        Filler::User,
    )?;
    // Whatever the rounding up of the slots gives, the user may have.
    let mut caps = QpCaps {
        max_send_wr: send_ring.capacity(),
        max_inline_data: send_ring
            .elem_bytes()
            .saturating_sub(head)
            .min(limits::MAX_INLINE),
        ..*caps
    };
    let mut response = CreateQpResponse {
        sq: send_ring.mmap_info(),
        ..CreateQpResponse::default()
    };
    let receives = match shared {
        Some(queue) => queue,
        None => {
            let ring = receive_ring(ucontext, caps.max_recv_wr, caps.max_recv_sge, Filler::User)?;
            caps.max_recv_wr = ring.capacity();
            response.rq = ring.mmap_info();
            let source = Source::User(Consumer::new(ring));
            ReceiveQueue::new(source, caps.max_recv_sge, pd, None)?
        }
    };
    udata.write(&response)?;
    let sends = UserSends::new(Consumer::new(send_ring), caps.max_inline_data);
    Ok(Queues {
        sends: SendSource::User(sends),
        receives,
        caps,
    })
}

/// A ring for receives with lists of `max_sge` entries.
pub(super) fn receive_ring(
    ucontext: &Ucontext<Ferroce>,
    max_wr: u32,
    max_sge: u32,
    filler: Filler,
) -> Result<Ring> {
    let list = max_sge.max(1).wrapping_mul(size_of::<Sge>() as u32);
    let bytes = (size_of::<uapi::RecvWqe>() as u32).wrapping_add(list);
    Ring::new(ucontext, max_wr.max(1), bytes, filler)
}

/// Queues that a kernel user posts to; receives may come from one that there is already.
fn kernel_queues(caps: &QpCaps, shared: Option<Arc<ReceiveQueue>>, pd: usize) -> Result<Queues> {
    let sends = Posted::new(caps.max_send_wr, kernel_list_entries(caps))?;
    let receives = match shared {
        Some(queue) => queue,
        None => {
            let requests = Requests::new(caps.max_recv_wr, caps.max_recv_sge)?;
            ReceiveQueue::new(Source::Kernel(requests), caps.max_recv_sge, pd, None)?
        }
    };
    Ok(Queues {
        sends: SendSource::Kernel(sends),
        receives,
        caps: *caps,
    })
}

/// Changes attributes.
///
/// # Errors
///
/// `EOPNOTSUPP` for attributes beyond the standard ones, `EINVAL` for what the state or the range
/// of an attribute forbids.
pub(super) fn modify(port: &Port, qp: &QueuePair, attr: &QpAttr, mask: u32) -> Result {
    if mask & !mask::STANDARD != 0 {
        return Err(EOPNOTSUPP);
    }
    if mask & mask::ALT_PATH != 0 {
        // There is one port and no path migration.
        return Err(EOPNOTSUPP);
    }
    if mask & mask::PATH_MIG_STATE != 0 && attr.path_mig_state != PATH_MIGRATED {
        return Err(EOPNOTSUPP);
    }
    let path_mtu = if mask & mask::PATH_MTU != 0 {
        // Larger packets would never get out.
        Mtu::from_code(attr.path_mtu)
            .filter(|mtu| mtu.bytes() <= port.mtu().bytes())
            .ok_or(EINVAL)?
    } else {
        Mtu::M256
    };
    let core = CoreAttr {
        state: core_state(attr.state),
        cur_state: core_state(attr.cur_state),
        path_mtu,
        qkey: QKey(attr.qkey),
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qpn: attr.dest_qpn,
        access: QpAccess {
            remote_read: attr.access_flags & access::REMOTE_READ != 0,
            remote_write: attr.access_flags & access::REMOTE_WRITE != 0,
            remote_atomic: attr.access_flags & access::REMOTE_ATOMIC != 0,
            flush_global: attr.access_flags & access::FLUSH_GLOBAL != 0,
            flush_persistent: attr.access_flags & access::FLUSH_PERSISTENT != 0,
        },
        pkey_index: attr.pkey_index,
        port: attr.port,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        en_sqd_async_notify: attr.en_sqd_async_notify,
    };
    let av = (mask & mask::AV != 0).then_some(attr.av);
    qp.modify(&core, AttrMask::from_bits(mask), av, attr.access_flags)
}

/// Tells the attributes as they were set.
pub(super) fn query(qp: &QueuePair) -> QpAttr {
    let queried = qp.query();
    let core = queried.core;
    QpAttr {
        state: verbs_state(core.state),
        cur_state: verbs_state(core.state),
        path_mtu: core.path_mtu.code(),
        qkey: core.qkey.0,
        rq_psn: core.rq_psn,
        sq_psn: core.sq_psn,
        dest_qpn: core.dest_qpn,
        access_flags: queried.access_flags,
        caps: queried.caps,
        av: queried.av.unwrap_or_default(),
        pkey_index: core.pkey_index,
        en_sqd_async_notify: core.en_sqd_async_notify,
        sq_draining: queried.draining,
        max_rd_atomic: core.max_rd_atomic,
        max_dest_rd_atomic: core.max_dest_rd_atomic,
        min_rnr_timer: core.min_rnr_timer,
        port: core.port,
        timeout: core.timeout,
        retry_cnt: core.retry_cnt,
        rnr_retry: core.rnr_retry,
        path_mig_state: PATH_MIGRATED,
        ..QpAttr::default()
    }
}

fn core_state(state: QpState) -> CoreState {
    match state {
        QpState::Reset => CoreState::Reset,
        QpState::Init => CoreState::Init,
        QpState::Rtr => CoreState::Rtr,
        QpState::Rts => CoreState::Rts,
        QpState::Sqd => CoreState::Sqd,
        QpState::Sqe => CoreState::Sqe,
        QpState::Err => CoreState::Err,
    }
}

fn verbs_state(state: CoreState) -> QpState {
    match state {
        CoreState::Reset => QpState::Reset,
        CoreState::Init => QpState::Init,
        CoreState::Rtr => QpState::Rtr,
        CoreState::Rts => QpState::Rts,
        CoreState::Sqd => QpState::Sqd,
        CoreState::Sqe => QpState::Sqe,
        CoreState::Err => QpState::Err,
    }
}
