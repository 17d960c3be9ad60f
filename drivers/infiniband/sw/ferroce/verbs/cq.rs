// SPDX-License-Identifier: GPL-2.0
//! Completion queue verbs.

use crate::{
    completion::CompletionQueue,
    device::{
        limits,
        Ferroce, //
    },
    queue::{
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

/// Bytes of an element in a user's ring (`struct ib_uverbs_wc`).
const WC_BYTES: u32 = 48;

/// Makes a completion queue for a user program or a kernel user.
///
/// # Errors
///
/// `EOPNOTSUPP` for any flag, `EINVAL` for a size out of range.
pub(super) fn create(
    attr: &CqInit,
    ucontext: Option<&Ucontext<Ferroce>>,
    udata: Option<&Udata>,
    notifier: Arc<CqNotifier>,
) -> Result<NewCq<impl PinInit<Arc<CompletionQueue>, Error>>> {
    if attr.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    if attr.cqe == 0 || attr.cqe > limits::MAX_CQE {
        return Err(EINVAL);
    }
    let (queue, cqe) = match (ucontext, udata) {
        (Some(ucontext), Some(udata)) => {
            let ring = Ring::new(ucontext, attr.cqe, WC_BYTES)?;
            udata.write(&ring.mmap_info())?;
            let cqe = ring.capacity();
            (
                CompletionQueue::new_user(Producer::new(ring), notifier)?,
                cqe,
            )
        }
        _ => (CompletionQueue::new_kernel(attr.cqe, notifier)?, attr.cqe),
    };
    Ok(NewCq {
        cqe,
        init: Ok(queue),
    })
}
