// SPDX-License-Identifier: GPL-2.0

//! Numbers that are handed out and taken back.
//!
//! C header: [`include/linux/idr.h`](srctree/include/linux/idr.h)
//!
//! Would become `rust/kernel/sync/id_pool.rs`, next to `rust/kernel/id_pool.rs`, which hands out
//! the lowest free number: here a number that was given back comes round again as late as possible,
//! so that a stale packet or a stale key does not meet a new owner.

use crate::{
    bindings,
    sync::SpinLockIrqSave, //
};
use core::ops::Range;
use kernel::{
    error::to_result,
    prelude::*,
    static_lock_class,
    str::CStr,
    sync::Arc,
    types::Opaque, //
};

/// An initialised `struct idr`, used through a mutable reference only.
struct Idr(Opaque<bindings::idr>);

// SAFETY: A `struct idr` is not bound to a CPU or a thread, and holds no pointers but to its own
// nodes.
unsafe impl Send for Idr {}

impl Idr {
    fn new(cursor: u32) -> impl PinInit<Self> {
        let init = move |slot: *mut Self| {
            let idr: *mut bindings::idr = Opaque::cast_into(slot.cast());
            // SAFETY: `idr_init` initialises all of the memory that it is given, and cannot fail.
            unsafe { bindings::idr_init(idr) };
            // SAFETY: Just initialised, and nobody else has it yet (`idr.h:idr_set_cursor`).
            unsafe { (*idr).idr_next = cursor };
        };
        // SAFETY: The closure initialises the slot: `Idr` is nothing but the `Opaque<idr>`.
        unsafe {
            pin_init::pin_init_from_closure(move |slot| {
                init(slot);
                Ok(())
            })
        }
    }
}

impl Idr {
    fn raw(&self) -> *mut bindings::idr {
        self.0.get()
    }
}

impl Drop for Idr {
    fn drop(&mut self) {
        // SAFETY: `self.0` was initialised in `new`, and the exclusive reference stands for the
        // lock that `idr_destroy` (lib/radix-tree.c) wants.
        unsafe { bindings::idr_destroy(self.0.get()) };
    }
}

/// Stands for a number that is taken: not null, so that it can be told from one that is not.
const TAKEN: *mut c_void = core::ptr::dangling_mut::<u64>().cast();

/// What the lock of a pool protects.
#[pin_data]
struct Taken {
    /// The numbers that are taken,
    #[pin]
    idr: Idr,
    /// and how many they are.
    count: u32,
}

/// A pool of numbers, of which only so many may be taken at a time.
///
/// # Examples
///
/// ```
/// let id = pool.alloc(1..1 << 24)?;
/// pool.free(id);
/// ```
#[pin_data]
pub struct IdPool {
    max: u32,
    #[pin]
    taken: SpinLockIrqSave<Taken>,
}

/// The name of the lock. The initialiser below is compiled into the crates that use it, each with
/// a copy of the literals in it, and lockdep wants one address for one class.
#[inline(never)]
fn name() -> &'static CStr {
    c"IdPool::taken"
}

impl IdPool {
    /// Creates a pool with every number free, of which at most `max` may be taken.
    pub fn new(max: u32) -> impl PinInit<Self> {
        Self::starting_at(0, max)
    }

    /// The same, but the first number that is taken is `first`, or the start of the range if that is
    /// greater. A random one keeps the owners of two pools apart that live one after the other.
    pub fn starting_at(first: u32, max: u32) -> impl PinInit<Self> {
        let taken = pin_init!(Taken {
            idr <- Idr::new(first),
            count: 0,
        });
        pin_init!(Self {
            max,
            taken <- SpinLockIrqSave::new(taken, name(), static_lock_class!()),
        })
    }

    /// The same, for [`Self::take`].
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub fn new_shared(max: u32) -> Result<Arc<Self>> {
        Arc::pin_init(Self::new(max), GFP_KERNEL)
    }

    /// As [`Self::alloc`]; the number is given back when the value is dropped.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Those of [`Self::alloc`].
    pub fn take(self: &Arc<Self>, range: Range<u32>) -> Result<Number> {
        let id = self.alloc(range)?;
        Ok(Number {
            pool: self.clone(),
            id,
        })
    }

    /// Takes the next free number of `range` after the one that was taken last, starting over at
    /// its end.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when as many are taken as may be, or if there is no memory; `ENOSPC` when all of the
    /// range are taken; `EINVAL` for an empty range or one beyond `i32::MAX`.
    pub fn alloc(&self, range: Range<u32>) -> Result<u32> {
        let start = i32::try_from(range.start).map_err(|_| EINVAL)?;
        let end = i32::try_from(range.end).map_err(|_| EINVAL)?;
        if start >= end {
            return Err(EINVAL);
        }
        let mut guard = self.taken.lock();
        if guard.count >= self.max {
            return Err(ENOMEM);
        }
        let idr = guard.idr.raw();
        // SAFETY: `idr` is initialised, and the lock that `idr_alloc_cyclic` (lib/idr.c) wants is
        // held. It stores the pointer and never follows it.
        let id = unsafe {
            bindings::idr_alloc_cyclic(
                idr,
                TAKEN,
                start,
                end,
                bindings::GFP_ATOMIC | bindings::__GFP_NOWARN,
            )
        };
        let id = u32::try_from(id).map_err(|_| to_result(id).err().unwrap_or(EINVAL))?;
        let taken = guard.as_mut().project();
        *taken.count = taken.count.wrapping_add(1);
        Ok(id)
    }

    /// Gives `id` back. A number that is not taken is ignored.
    ///
    /// # Context
    ///
    /// Any.
    pub fn free(&self, id: u32) {
        let mut guard = self.taken.lock();
        let idr = guard.idr.raw();
        // SAFETY: `idr` is initialised, and the lock that `idr_find` (lib/idr.c) wants is held.
        // All of the pointers in it are those of `alloc`.
        let entry = unsafe { bindings::idr_remove(idr, id as usize) };
        if entry.is_null() {
            return;
        }
        let taken = guard.as_mut().project();
        *taken.count = taken.count.wrapping_sub(1);
    }
}

/// A number of a pool, which gets it back when this is dropped, in any context.
pub struct Number {
    pool: Arc<IdPool>,
    id: u32,
}

impl Number {
    /// The number.
    pub fn get(&self) -> u32 {
        self.id
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.pool.free(self.id);
    }
}

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_id_pool)]
mod tests {
    use super::*;

    fn pool() -> Result<Pin<KBox<IdPool>>> {
        KBox::pin_init(IdPool::new(u32::MAX), GFP_KERNEL)
    }

    #[test]
    fn goes_round_before_it_reuses() -> Result {
        let pool = pool()?;
        assert_eq!(pool.alloc(10..14)?, 10);
        assert_eq!(pool.alloc(10..14)?, 11);
        pool.free(10);
        assert_eq!(pool.alloc(10..14)?, 12);
        assert_eq!(pool.alloc(10..14)?, 13);
        // Only now does the number that was given back come again.
        assert_eq!(pool.alloc(10..14)?, 10);
        Ok(())
    }

    #[test]
    fn says_when_all_are_taken() -> Result {
        let pool = pool()?;
        for want in 0..100 {
            assert_eq!(pool.alloc(0..100)?, want);
        }
        assert!(pool.alloc(0..100) == Err(ENOSPC));
        pool.free(42);
        assert_eq!(pool.alloc(0..100)?, 42);
        assert!(pool.alloc(0..100) == Err(ENOSPC));
        Ok(())
    }

    #[test]
    fn refuses_ranges_that_cannot_be() -> Result {
        let pool = pool()?;
        assert!(pool.alloc(5..5) == Err(EINVAL));
        assert!(pool.alloc(6..5) == Err(EINVAL));
        assert!(pool.alloc(0..u32::MAX) == Err(EINVAL));
        let last = i32::MAX.unsigned_abs();
        assert_eq!(pool.alloc(last - 1..last)?, last - 1);
        Ok(())
    }

    #[test]
    fn ignores_a_number_that_is_not_taken() -> Result {
        let pool = pool()?;
        pool.free(7);
        assert_eq!(pool.alloc(7..9)?, 7);
        pool.free(8);
        pool.free(7);
        pool.free(7);
        assert_eq!(pool.alloc(7..9)?, 8);
        assert_eq!(pool.alloc(7..9)?, 7);
        Ok(())
    }

    #[test]
    fn no_more_than_may_be_taken() -> Result {
        let pool = KBox::pin_init(IdPool::new(2), GFP_KERNEL)?;
        assert_eq!(pool.alloc(0..100)?, 0);
        assert_eq!(pool.alloc(0..100)?, 1);
        assert!(pool.alloc(0..100) == Err(ENOMEM));
        // Not taken, so it makes no room.
        pool.free(50);
        assert!(pool.alloc(0..100) == Err(ENOMEM));
        pool.free(0);
        assert_eq!(pool.alloc(0..100)?, 2);
        assert!(pool.alloc(0..100) == Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn a_number_gives_itself_back() -> Result {
        let pool = IdPool::new_shared(1)?;
        for want in 3..6 {
            let number = pool.take(3..6)?;
            assert_eq!(number.get(), want);
            assert!(pool.take(3..6).err() == Some(ENOMEM));
        }
        assert!(Arc::into_unique_or_drop(pool).is_some());
        Ok(())
    }
}
