// SPDX-License-Identifier: GPL-2.0

//! Locks, tables, timers and deferred work.
//!
//! What the kernel crate does not have yet and a driver of a fast path needs. Nothing here knows of
//! RDMA.
//!
//! Would become additions to `rust/kernel/sync`, `rust/kernel/time` and `rust/kernel/workqueue.rs`.

use crate::bindings;

mod bh;
pub mod errand;
pub mod id_pool;
pub mod percpu;
pub mod rcu_map;
pub mod spinlock;
pub mod timer;
pub mod work;

pub(crate) use self::bh::BhDisabled;

pub use self::{
    errand::Errand,
    id_pool::{
        IdPool,
        Number, //
    },
    percpu::PerCpuCounters,
    rcu_map::{
        MapKey,
        RcuMap, //
    },
    spinlock::{
        SpinLockBh,
        SpinLockBhGuard,
        SpinLockIrqSave,
        SpinLockIrqSaveGuard, //
    },
    timer::{
        Timer,
        TimerTarget, //
    },
    work::{
        Work,
        WorkQueue,
        WorkTarget, //
    },
};

/// Waits until nothing that the RCU machinery still has to run refers to this module.
///
/// The last thing that a module does in its exit function, after it has dropped every timer, work
/// item, port and registration: each of those waits for its own callbacks, this waits for the
/// deferred frees that they caused.
///
/// # Context
///
/// Process context, may sleep.
pub fn quiesce() {
    // SAFETY: `rcu_barrier` (kernel/rcu/tree.c) has no precondition but that the caller may sleep,
    // where a violation is a warning and not undefined behaviour.
    unsafe { bindings::rcu_barrier() };
}

/// The task that runs, or that the softirq interrupts which does.
fn current() -> *mut bindings::task_struct {
    // SAFETY: `get_current` (arch/*/include/asm/current.h) has no precondition.
    unsafe { bindings::get_current() }
}
