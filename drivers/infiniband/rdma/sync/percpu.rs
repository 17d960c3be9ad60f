// SPDX-License-Identifier: GPL-2.0

//! Counters that many CPUs bump at no cost to each other.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)
//!
//! Would become `rust/kernel/percpu.rs`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// The number of CPUs that this machine can ever have.
///
/// # Context
///
/// Any.
pub fn num_possible_cpus() -> u32 {
    // SAFETY: `num_possible_cpus` (include/linux/cpumask.h) has no precondition.
    unsafe { bindings::num_possible_cpus() }
}

/// `N` counters of 64 bits, one copy for each CPU.
///
/// # Invariants
///
/// `counters` is a per-CPU allocation of `N` `u64`s, owned by this value.
pub struct PerCpuCounters<const N: usize> {
    counters: NonNull<u64>,
}

// SAFETY: A per-CPU allocation is not bound to the thread that made it.
unsafe impl<const N: usize> Send for PerCpuCounters<N> {}

// SAFETY: The counters are only changed by `this_cpu_add` and only read by single loads, from any
// CPU.
unsafe impl<const N: usize> Sync for PerCpuCounters<N> {}

impl<const N: usize> PerCpuCounters<N> {
    /// Creates the counters, all zero.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: `__alloc_percpu` (include/linux/percpu.h) may be called whenever sleeping is
        // allowed; it returns zeroed memory or null.
        let counters = unsafe { bindings::alloc_percpu_u64(N) };
        // INVARIANT: Allocated for `N` counters just now.
        Ok(Self {
            counters: NonNull::new(counters).ok_or(ENOMEM)?,
        })
    }

    /// The per-CPU address of a counter, if there is one of that index.
    #[inline]
    fn counter(&self, index: usize) -> Option<*mut u64> {
        // `wrapping_add`: the address is a per-CPU cookie, not one of memory.
        (index < N).then(|| self.counters.as_ptr().wrapping_add(index))
    }

    /// Adds `value` to the counter of that index; an index out of range is ignored.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn add(&self, index: usize, value: u64) {
        if let Some(counter) = self.counter(index) {
            // SAFETY: By the type invariant `counter` is a per-CPU `u64`. `this_cpu_add`
            // (Documentation/core-api/ this_cpu_ops.rst) is safe against preemption and interrupts.
            unsafe { bindings::this_cpu_add_u64(counter, value) };
        }
    }

    /// The sum over all CPUs; 0 for an index out of range.
    ///
    /// Not a snapshot: increments that run at the same time may or may not be in it.
    ///
    /// # Context
    ///
    /// Any.
    pub fn sum(&self, index: usize) -> u64 {
        let Some(counter) = self.counter(index) else {
            return 0;
        };
        let mut sum = 0u64;
        for cpu in 0..kernel::cpu::nr_cpu_ids() {
            // SAFETY: `cpu` is below `nr_cpu_ids`, as `cpumask_test_cpu` (include/linux/cpumask.h)
            // wants.
            if unsafe { bindings::cpu_possible(cpu) } {
                // SAFETY: By the type invariant `counter` is a per-CPU `u64`, which every possible
                // CPU has.
                sum = sum.wrapping_add(unsafe { bindings::per_cpu_read_u64(counter, cpu) });
            }
        }
        sum
    }
}

impl<const N: usize> Drop for PerCpuCounters<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is a per-CPU allocation that nobody else frees.
        unsafe { bindings::free_percpu(self.counters.as_ptr().cast()) };
    }
}

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_percpu)]
mod tests {
    use super::*;

    #[test]
    fn sums_what_was_added() -> Result {
        let counters = PerCpuCounters::<3>::new()?;
        for index in 0..4 {
            assert_eq!(counters.sum(index), 0);
        }
        for _ in 0..1000 {
            counters.add(0, 1);
            counters.add(2, 3);
            // Does not exist.
            counters.add(3, 5);
            counters.add(usize::MAX, 5);
        }
        assert_eq!(counters.sum(0), 1000);
        assert_eq!(counters.sum(1), 0);
        assert_eq!(counters.sum(2), 3000);
        assert_eq!(counters.sum(3), 0);
        assert_eq!(counters.sum(usize::MAX), 0);
        Ok(())
    }

    #[test]
    fn wraps() -> Result {
        let counters = PerCpuCounters::<1>::new()?;
        counters.add(0, u64::MAX);
        counters.add(0, 2);
        assert_eq!(counters.sum(0), 1);
        Ok(())
    }

    #[test]
    fn there_is_a_cpu() {
        assert!(num_possible_cpus() >= 1);
    }
}
