// SPDX-License-Identifier: GPL-2.0

//! Counters of a port, as shown in sysfs (`hw_counters`) and by `rdma statistic`.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`struct rdma_hw_stats`).
//! In the tree this file would be `rust/kernel/rdma/stats.rs`.

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::prelude::*;

/// The most counters that a driver can have.
const MAX: usize = 128;

/// `RDMA_HW_STATS_DEFAULT_LIFESPAN`: how long values stay fresh, in milliseconds.
const LIFESPAN: usize = 10;

/// The thunks for counters.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// The names in the form that C wants; the first `D::COUNTERS.len()` are used.
    const DESCS: &'static [bindings::rdma_stat_desc; MAX] = &Self::descs();

    const fn descs() -> [bindings::rdma_stat_desc; MAX] {
        assert!(D::COUNTERS.len() <= MAX, "too many counters");
        const EMPTY: bindings::rdma_stat_desc = pin_init::zeroed();
        let mut descs = [EMPTY; MAX];
        let mut i = 0;
        while i < D::COUNTERS.len() {
            descs[i].name = D::COUNTERS[i].to_bytes_with_nul().as_ptr();
            i += 1;
        }
        descs
    }

    /// `ib_device_ops.alloc_hw_port_stats`.
    ///
    /// # Safety
    ///
    /// As called by `sysfs.c:alloc_hw_stats_port`.
    pub(super) unsafe extern "C" fn alloc_hw_port_stats(
        _ib: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        // CAST: At most `MAX`.
        let count = D::COUNTERS.len() as c_int;
        // SAFETY: `DESCS` has at least `count` elements and is static, as is each name, which
        // `verbs.c:rdma_alloc_hw_stats_struct` keeps.
        unsafe { bindings::rdma_alloc_hw_stats_struct(Self::DESCS.as_ptr(), count, LIFESPAN) }
    }

    /// `ib_device_ops.get_hw_stats`.
    ///
    /// # Safety
    ///
    /// As called by `sysfs.c` and `counters.c`: `ib` is a live device of this driver; `stats` is from
    /// `alloc_hw_port_stats`, and its lock is held.
    pub(super) unsafe extern "C" fn get_hw_stats(
        ib: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        if port == 0 || stats.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: `stats` is live by the safety requirement.
        let count = unsafe { (*stats).num_counters };
        let len = usize::try_from(count).unwrap_or(0).min(D::COUNTERS.len());
        // SAFETY: As above.
        let values = unsafe { &raw mut (*stats).value }.cast::<u64>();
        // SAFETY: `stats` has `num_counters` values, and its lock, which is held, protects them.
        let values = unsafe { core::slice::from_raw_parts_mut(values, len) };
        // SAFETY: `ib` is a live device of this driver by the safety requirement.
        let device = unsafe { Device::<D>::from_raw(ib) };
        D::read_counters(device, values);
        count
    }
}
