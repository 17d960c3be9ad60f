// SPDX-License-Identifier: GPL-2.0
//! Memory windows: a part of a region with a key, bounds and rights of its own.
//!
//! ```text
//!            bind                      bind, also to nothing (length 0)
//!   type 1   unbound ----------> bound <------.
//!                                  '----------'
//!            bind                invalidate, local or remote
//!   type 2   unbound ----------> bound ----------> unbound
//! ```
//!
//! A bound window keeps its region from being deregistered or registered anew: it holds a count of it,
//! not a reference, and finds it in the table again at each access.
//!
//! The lock of a window is held while its memory is copied, so that nothing is copied through a binding
//! once it has ended.

use super::{
    index,
    offset_in,
    Accessor,
    Memory,
    Region,
    Request, //
};
use crate::uapi::access;
use kernel::{
    prelude::*,
    sync::rcu, //
};
use rdma::{
    sync::{
        RcuMap,
        SpinLockBh, //
    },
    verbs::MwKind, //
};
use roce::env::MemoryError;

/// What a window is bound to.
#[derive(Clone, Copy)]
struct Binding {
    /// Key of the region.
    parent: u32,
    /// Where the window starts, in terms of the region.
    start: u64,
    /// Where it starts, in terms of its own key.
    iova: u64,
    length: u64,
    access: u32,
    /// The QP that bound it (type 2).
    qp: u64,
}

struct State {
    key: u32,
    binding: Option<Binding>,
}

/// A memory window.
#[pin_data]
pub(crate) struct Window {
    pd: usize,
    kind: MwKind,
    #[pin]
    state: SpinLockBh<State>,
}

/// What a bind asks for.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// Key of the window so far.
    pub(crate) window: u32,
    /// Its key from now on; only the low byte may be another one.
    pub(crate) key: u32,
    /// Key of the region.
    pub(crate) parent: u32,
    /// First virtual address in the region.
    pub(crate) va: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Of [`access`].
    pub(crate) access: u32,
}

/// What a window may allow.
const ACCESS: u32 =
    access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::FLUSH_GLOBAL;

impl Window {
    pub(crate) fn new(key: u32, pd: usize, kind: MwKind) -> impl PinInit<Self> {
        let state = State { key, binding: None };
        pin_init!(Self {
            pd,
            kind,
            state <- rdma::new_spinlock_bh!(state, "ferroce_window"),
        })
    }

    /// Checks a request from a peer and passes it on to `f`, in terms of the region.
    pub(super) fn access<T>(
        &self,
        who: &Accessor,
        request: &Request,
        f: impl FnOnce(&Request) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let state = self.state.lock();
        let binding = self.binding(&state, who, request.key, request.rights)?;
        let offset = offset_in(binding.iova, binding.length, request.va, request.length)?;
        f(&Request {
            key: binding.parent,
            va: binding.start.wrapping_add(offset),
            length: request.length,
            // The region was asked when the window was bound.
            rights: 0,
        })
    }

    /// Checks that all of the window may be used with `rights`.
    pub(super) fn check_key(
        &self,
        who: &Accessor,
        key: u32,
        rights: u32,
    ) -> Result<(), MemoryError> {
        let state = self.state.lock();
        self.binding(&state, who, key, rights).map(|_| ())
    }

    /// The binding, if `who` has all of `rights` through `key`.
    fn binding<'a>(
        &self,
        state: &'a State,
        who: &Accessor,
        key: u32,
        rights: u32,
    ) -> Result<&'a Binding, MemoryError> {
        let binding = state.binding.as_ref().ok_or(MemoryError::Access)?;
        let allowed = key == state.key
            && who.pd == self.pd
            && (self.kind == MwKind::Type1 || binding.qp == who.qp)
            // Local work requests name regions, not windows.
            && rights & ACCESS != 0
            && rights & !binding.access == 0;
        if !allowed {
            return Err(MemoryError::Access);
        }
        Ok(binding)
    }

    //= IBA 10.6.7.2.2
    /// Binds the window.
    ///
    /// # Context
    ///
    /// Any with interrupts on.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if keys, domains, rights, bounds or the state of the window do not allow
    /// it; then it is as it was.
    pub(super) fn bind(
        &self,
        table: &RcuMap<Memory>,
        rcu: &rcu::Guard,
        who: &Accessor,
        bind: &Bind,
    ) -> Result<(), MemoryError> {
        let zero_based = bind.access & access::ZERO_BASED != 0;
        let known = ACCESS | access::ZERO_BASED | access::LOCAL_WRITE;
        if who.pd != self.pd || index(bind.key) != index(bind.window) || bind.access & !known != 0 {
            return Err(MemoryError::Access);
        }
        let mut state = self.state.lock();
        let free = match self.kind {
            MwKind::Type1 => !zero_based,
            MwKind::Type2 => state.binding.is_none() && bind.length != 0,
        };
        if bind.window != state.key || !free {
            return Err(MemoryError::Access);
        }
        let binding = if bind.length == 0 {
            None
        } else {
            let memory = table.get(rcu, index(bind.parent));
            let region = memory.as_ref().and_then(|memory| memory.region());
            let region = region.ok_or(MemoryError::Access)?;
            region.lend(who.pd, bind)?;
            Some(Binding {
                parent: bind.parent,
                start: bind.va,
                iova: if zero_based { 0 } else { bind.va },
                length: bind.length,
                access: bind.access & ACCESS,
                qp: who.qp,
            })
        };
        state.key = bind.key;
        let old = core::mem::replace(&mut state.binding, binding);
        release(table, rcu, old);
        Ok(())
    }

    //= IBA 10.6.7.2.5
    /// Ends the binding of a type 2 window, for the QP that made it.
    ///
    /// # Context
    ///
    /// As [`Self::bind`].
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if it is another's, of type 1 or not bound.
    pub(super) fn invalidate(
        &self,
        table: &RcuMap<Memory>,
        rcu: &rcu::Guard,
        who: &Accessor,
        key: u32,
    ) -> Result<(), MemoryError> {
        let mut state = self.state.lock();
        let qp = state.binding.as_ref().map(|binding| binding.qp);
        let allowed = self.kind == MwKind::Type2
            && key == state.key
            && who.pd == self.pd
            && qp == Some(who.qp);
        if !allowed {
            return Err(MemoryError::Access);
        }
        release(table, rcu, state.binding.take());
        Ok(())
    }

    /// Ends whatever binding there is; the window has been taken out of the table.
    ///
    /// # Context
    ///
    /// As [`Self::bind`].
    pub(crate) fn unbind(&self, table: &RcuMap<Memory>, rcu: &rcu::Guard) {
        let binding = self.state.lock().binding.take();
        release(table, rcu, binding);
    }
}

/// Gives the count of a region back, which is in the table until then.
fn release(table: &RcuMap<Memory>, rcu: &rcu::Guard, binding: Option<Binding>) {
    let Some(binding) = binding else {
        return;
    };
    if let Some(memory) = table.get(rcu, index(binding.parent)) {
        if let Some(region) = memory.region() {
            region.windows.detach();
        }
    }
}

impl Region {
    //= IBA 10.6.7.2.2
    /// Counts a window that is being bound to this region, if it may be.
    fn lend(&self, pd: usize, bind: &Bind) -> Result<(), MemoryError> {
        let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let allowed = bind.parent == self.key
            && pd == self.pd
            && self.access & access::MW_BIND != 0
            && self.access & access::ZERO_BASED == 0
            && bind.access & access::FLUSH_GLOBAL & !self.access == 0
            && (bind.access & writes == 0 || self.access & access::LOCAL_WRITE != 0);
        if !allowed {
            return Err(MemoryError::Access);
        }
        offset_in(self.iova, self.length, bind.va, bind.length)?;
        self.windows.attach().map_err(|_| MemoryError::Access)
    }
}
