// SPDX-License-Identifier: GPL-2.0
//! Shared receive queue verbs.

use crate::{
    device::{
        limits,
        Ferroce, //
    },
    port::Port,
    posted::Requests,
    queue::{
        Consumer,
        Filler, //
    },
    receives::{
        ReceiveQueue,
        Source, //
    },
    uapi::{
        CreateSrqResponse,
        ModifySrqCommand, //
    },
    verbs::qp::receive_ring,
    xrc::{
        XrcName,
        XrcQueue, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};
use rdma::{
    sync::Number,
    udata::Udata,
    verbs::{
        NewSrq,
        Pd,
        Srq,
        SrqAttr,
        SrqChange,
        SrqInit,
        SrqNotifier,
        Ucontext, //
    }, //
};
use zerocopy::IntoBytes;

/// A shared receive queue: what QPs take from, and its number.
pub(crate) struct SharedReceives {
    queue: Arc<ReceiveQueue>,
    number: Number,
    is_xrc: bool,
}

impl SharedReceives {
    /// The queue itself.
    pub(crate) fn queue(&self) -> &Arc<ReceiveQueue> {
        &self.queue
    }

    /// Whether it is for extended reliable connections.
    pub(crate) fn is_xrc(&self) -> bool {
        self.is_xrc
    }
}

/// Makes a shared receive queue for a user program or a kernel user.
///
/// # Errors
///
/// `EINVAL` for sizes out of range, `ENOMEM`.
pub(super) fn create(
    pd: &Pd<Ferroce>,
    attr: &SrqInit<'_, Ferroce>,
    ucontext: Option<&Ucontext<Ferroce>>,
    udata: Option<&Udata>,
    notifier: Arc<SrqNotifier>,
) -> Result<NewSrq<impl PinInit<SharedReceives, Error>>> {
    check_max_wr(attr.max_wr)?;
    if attr.max_sge > limits::MAX_SGE {
        return Err(EINVAL);
    }
    let max_sge = attr.max_sge.max(1);
    let port = pd.device().drv();
    let number = port.srq_numbers.take(1..1 << 24)?;
    let source = match (ucontext, udata) {
        (Some(ucontext), Some(udata)) => {
            let ring = receive_ring(ucontext, attr.max_wr, max_sge, Filler::User)?;
            udata.write(&CreateSrqResponse {
                ring: ring.mmap_info(),
                srq_num: number.get(),
                reserved: 0,
            })?;
            Source::User(Consumer::new(ring))
        }
        _ => Source::Kernel(Requests::new(attr.max_wr, max_sge)?),
    };
    let queue = ReceiveQueue::new(source, max_sge, pd.id(), Some(notifier))?;
    if let Some(xrc) = &attr.xrc {
        let name = XrcName {
            number: number.get(),
            serial: port.next_serial(),
        };
        let entry = XrcQueue {
            name,
            xrcd: xrc.xrcd.id(),
            receives: queue.clone(),
            cq: xrc.cq.drv().clone(),
        };
        port.xrc_queues
            .insert(name.number, Arc::new(entry, GFP_KERNEL)?)?;
    }
    Ok(NewSrq {
        number: number.get(),
        max_wr: queue.capacity(),
        max_sge,
        init: Ok(SharedReceives {
            queue,
            number,
            is_xrc: attr.xrc.is_some(),
        }),
    })
}

/// Ends a shared receive queue: nobody takes from it, or writes to what was taken, when this returns.
pub(super) fn destroy(port: &Port, srq: &SharedReceives) {
    if srq.is_xrc {
        let _ = port.xrc_queues.remove(srq.number.get());
    }
}

/// Changes size or limit.
///
/// The provider learns of the new ring in an odd way: not by the answer to the verb, but at an address
/// that it gives in the command.
///
/// # Errors
///
/// `EINVAL` for a size out of range, or too small for what is posted or for the limit, and for a limit
/// beyond the size; `EOPNOTSUPP` for a change of the size by a kernel user; `EFAULT`, `ENOMEM`.
pub(super) fn modify(
    queue: &ReceiveQueue,
    change: &SrqChange,
    ucontext: Option<&Ucontext<Ferroce>>,
    udata: Option<&Udata>,
) -> Result {
    let Some(max_wr) = change.max_wr else {
        return change.limit.map_or(Ok(()), |limit| queue.set_limit(limit));
    };
    check_max_wr(max_wr)?;
    let (Some(ucontext), Some(udata)) = (ucontext, udata) else {
        return Err(EOPNOTSUPP);
    };
    let command: ModifySrqCommand = udata.read()?;
    // What is in the old one is moved to it.
    let ring = receive_ring(ucontext, max_wr, queue.max_sge(), Filler::Kernel)?;
    let info = ring.mmap_info();
    let address = usize::try_from(command.mmap_info_addr).map_err(|_| EFAULT)?;
    UserSlice::new(UserPtr::from_addr(address), size_of_val(&info))
        .writer()
        .write_slice(info.as_bytes())?;
    queue.resize(ring, change.limit)
}

/// Tells the attributes.
///
/// # Errors
///
/// `EINVAL` if the queue is in error.
pub(super) fn query(srq: &Srq<Ferroce>) -> Result<SrqAttr> {
    let queue = srq.drv().queue();
    if queue.is_broken() {
        return Err(EINVAL);
    }
    Ok(SrqAttr {
        max_wr: queue.capacity(),
        max_sge: queue.max_sge(),
        limit: queue.limit(),
    })
}

fn check_max_wr(max_wr: u32) -> Result {
    if max_wr == 0 || max_wr > limits::MAX_SRQ_WR {
        return Err(EINVAL);
    }
    Ok(())
}
