// SPDX-License-Identifier: GPL-2.0
//! Memory window verbs. Windows are bound by work requests: see [`crate::region`].

use super::mr;
use crate::{
    device::Ferroce,
    port::Port,
    region::{
        Memory,
        Window, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    }, //
};
use rdma::verbs::{
    MwKind,
    NewMw,
    Pd, //
};

/// What the consumer of the verbs has of a window.
pub(crate) struct Allocation {
    key: u32,
    memory: Arc<Memory>,
}

/// Makes a window that is bound to nothing.
///
/// # Errors
///
/// `ENOMEM`, `ENOSPC`.
pub(super) fn allocate(
    pd: &Pd<Ferroce>,
    kind: MwKind,
) -> Result<NewMw<impl PinInit<Allocation, Error>>> {
    let (key, memory) = mr::insert(pd.device().drv(), |key| {
        let window = Window::new(key, pd.id(), kind);
        Ok(Memory::Window(KBox::pin_init(window, GFP_KERNEL)?))
    })?;
    Ok(NewMw {
        rkey: key,
        init: Ok(Allocation { key, memory }),
    })
}

/// Ends a window: nobody reaches memory by it any more when this returns.
pub(super) fn deallocate(port: &Port, allocation: &Allocation) {
    mr::remove(port, allocation.key);
    if let Memory::Window(window) = &*allocation.memory {
        window.unbind(&port.regions, &rcu::read_lock());
    }
}
