// SPDX-License-Identifier: GPL-2.0
//! Operations on keys that work requests, and peers, ask for.

use super::{
    fast::Register,
    index,
    window::Bind,
    Accessor,
    Memory, //
};
use kernel::{
    prelude::*,
    sync::rcu, //
};
use rdma::sync::RcuMap;
use roce::env::MemoryError;

/// Operands of a local operation. Plain values: what they name is looked up when it is carried out.
#[derive(Clone, Copy)]
pub(crate) enum Operands {
    /// Invalidate this key.
    Invalidate(u32),
    /// Register a region.
    Register(Register),
    /// Bind a window.
    Bind(Bind),
}

/// Carries out a local operation of `who`.
///
/// # Context
///
/// Any with interrupts on.
///
/// # Errors
///
/// [`MemoryError::Access`] if it is not allowed; then nothing has changed.
pub(crate) fn operate(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    who: &Accessor,
    operands: &Operands,
) -> Result<(), MemoryError> {
    let key = match operands {
        Operands::Invalidate(key) => return invalidate(table, rcu, who, *key, false),
        Operands::Register(register) => register.region,
        Operands::Bind(bind) => bind.window,
    };
    let memory = table.get(rcu, index(key)).ok_or(MemoryError::Access)?;
    match (operands, &*memory) {
        (Operands::Register(register), Memory::Fast(region)) => region.register(who, register),
        (Operands::Bind(bind), Memory::Window(window)) => window.bind(table, rcu, who, bind),
        _ => Err(MemoryError::Access),
    }
}

/// Invalidates a key for `who`, at the wish of its peer if `remote`.
///
/// # Context
///
/// Any with interrupts on.
///
/// # Errors
///
/// [`MemoryError::Access`] if that is not allowed: regions that a verb registered are none of those
/// that may be invalidated (IBTA 10.6.7.2.4).
pub(crate) fn invalidate(
    table: &RcuMap<Memory>,
    rcu: &rcu::Guard,
    who: &Accessor,
    key: u32,
    remote: bool,
) -> Result<(), MemoryError> {
    let memory = table.get(rcu, index(key)).ok_or(MemoryError::Access)?;
    match &*memory {
        Memory::Region(_) => Err(MemoryError::Access),
        Memory::Fast(region) => region.invalidate(who, key, remote),
        Memory::Window(window) => window.invalidate(table, rcu, who, key),
    }
}
