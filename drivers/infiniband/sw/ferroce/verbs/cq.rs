// SPDX-License-Identifier: GPL-2.0
//! Completion queue verbs.

use crate::{
    completion::CompletionQueue,
    device::{
        limits,
        Ferroce, //
    },
    port::Port,
    queue::{
        Filler,
        Producer,
        Ring, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    udata::Udata,
    verbs::{
        CqInit,
        CqNotifier,
        NewCq,
        Ucontext, //
    }, //
};

/// Numbers by which completion queues are counted; nobody sees them.
const NUMBERS: core::ops::Range<u32> = 0..limits::MAX_CQ;

/// Bytes of an element in a user's ring (`struct ib_uverbs_wc`).
const WC_BYTES: u32 = 48;

/// Moves the completion queue of a user program to another ring. Returns its size.
///
/// # Errors
///
/// `EINVAL` for a size out of range, or too small for what is in the queue, and if it has overflowed.
pub(super) fn resize(
    queue: &CompletionQueue,
    cqe: u32,
    ucontext: &Ucontext<Ferroce>,
    udata: &Udata,
) -> Result<u32> {
    check_cqe(cqe)?;
    let ring = Ring::new(ucontext, cqe, WC_BYTES, Filler::Kernel)?;
    udata.write(&ring.mmap_info())?;
    let cqe = ring.capacity();
    queue.resize(ring)?;
    Ok(cqe)
}

fn check_cqe(cqe: u32) -> Result {
    if cqe == 0 || cqe > limits::MAX_CQE {
        return Err(EINVAL);
    }
    Ok(())
}

/// Makes a completion queue for a user program or a kernel user.
///
/// # Errors
///
/// `EOPNOTSUPP` for any flag, `EINVAL` for a size out of range, `ENOMEM`.
pub(super) fn create(
    port: &Port,
    attr: &CqInit,
    ucontext: Option<&Ucontext<Ferroce>>,
    udata: Option<&Udata>,
    notifier: Arc<CqNotifier>,
) -> Result<NewCq<impl PinInit<Arc<CompletionQueue>, Error>>> {
    if attr.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    check_cqe(attr.cqe)?;
    let number = port.cq_numbers.take(NUMBERS)?;
    let (queue, cqe) = match (ucontext, udata) {
        (Some(ucontext), Some(udata)) => {
            let ring = Ring::new(ucontext, attr.cqe, WC_BYTES, Filler::Kernel)?;
            udata.write(&ring.mmap_info())?;
            let cqe = ring.capacity();
            (
                CompletionQueue::new_user(Producer::new(ring), number, notifier)?,
                cqe,
            )
        }
        _ => (
            CompletionQueue::new_kernel(attr.cqe, number, notifier)?,
            attr.cqe,
        ),
    };
    Ok(NewCq {
        cqe,
        init: Ok(queue),
    })
}
