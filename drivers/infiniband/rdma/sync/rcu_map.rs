// SPDX-License-Identifier: GPL-2.0

//! A hash table that is read without a lock.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)
//!
//! Would become `rust/kernel/sync/rcu_map.rs`.
//!
//! Readers hold an [`rcu::Guard`], walk one bucket and get a borrow that lives as long as the
//! guard. Writers take a mutex. [`RcuMap::remove`] unlinks the entry, waits until every reader that
//! may have seen it is gone, and gives the value back: after it the caller knows that no reader
//! still runs with the value.
//!
//! ```text
//!   get            insert                   remove
//!   rcu lock       lock                     lock
//!   load bucket    node.next = bucket       predecessor.next = node.next   <- not found from now on
//!   follow next    bucket = node (release)  unlock
//!   rcu unlock     unlock                   wait for all readers, free the node
//! ```
//!
//! [`RcuMap::replace`] is a `remove` that links a new node in the old one's place.

use crate::bindings;
use kernel::{
    alloc::KVVec,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        rcu,
        Arc,
        ArcBorrow,
        Mutex, //
    },
};

/// One entry.
///
/// # Invariants
///
/// A node that can be reached from a bucket is valid. It is freed only when it was unlinked under
/// the writer lock and an RCU grace period has passed since, or with the whole map.
struct Node<T> {
    next: Atomic<*mut Node<T>>,
    key: u32,
    value: Arc<T>,
}

/// A table from `u32` to `Arc<T>`, read under RCU.
///
/// The number of buckets is fixed; chains grow when there are more entries than that, so choose
/// about the number of entries expected.
///
/// # Invariants
///
/// - `buckets` has `1 << (32 - shift)` elements, each the head of a chain of [`Node`]s or null.
/// - Chains are changed only with `writer` held.
#[pin_data(PinnedDrop)]
pub struct RcuMap<T: Send + Sync + 'static> {
    buckets: KVVec<Atomic<*mut Node<T>>>,
    shift: u32,
    len: Atomic<usize>,
    #[pin]
    writer: Mutex<()>,
}

// SAFETY: The map owns `Arc<T>`s, which may be sent when `T` is `Send + Sync`.
unsafe impl<T: Send + Sync + 'static> Send for RcuMap<T> {}

// SAFETY: Shared use gives out borrows of the `Arc<T>`s, and `remove` moves one out; both need `T:
// Send + Sync`. The chains are synchronised by RCU and `writer`.
unsafe impl<T: Send + Sync + 'static> Sync for RcuMap<T> {}

impl<T: Send + Sync + 'static> RcuMap<T> {
    /// Creates an empty map with `1 << log2_buckets` buckets (`log2_buckets` is clamped to 0..=20).
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(log2_buckets: u32) -> impl PinInit<Self, Error> {
        let bits = log2_buckets.min(20);
        try_pin_init!(Self {
            buckets: {
                let mut buckets = KVVec::with_capacity(1 << bits, GFP_KERNEL)?;
                for _ in 0..1u32 << bits {
                    buckets.push(Atomic::new(core::ptr::null_mut()), GFP_KERNEL)?;
                }
                buckets
            },
            shift: 32 - bits,
            len: Atomic::new(0),
            writer <- new_mutex!((), "RcuMap::writer"),
        })
    }

    /// The head of the chain that `key` belongs to.
    #[inline]
    fn bucket(&self, key: u32) -> Option<&Atomic<*mut Node<T>>> {
        // Fibonacci hashing (include/linux/hash.h): the high bits of the product are well mixed.
        let hash = key.wrapping_mul(0x61C8_8647);
        let index = hash.checked_shr(self.shift).unwrap_or(0);
        self.buckets.get(index as usize)
    }

    /// Looks up `key`.
    ///
    /// # Context
    ///
    /// Any; the guard keeps the caller from sleeping.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g rcu::Guard, key: u32) -> Option<ArcBorrow<'g, T>> {
        let _ = guard;
        let mut node = self.bucket(key)?.load(Acquire);
        while !node.is_null() {
            // SAFETY: By the invariant of `Node`, it is valid: it was reachable while the RCU read
            // side lock was held, which it is for `'g`, so that no grace period can end before `'g`
            // does.
            let entry: &'g Node<T> = unsafe { &*node };
            if entry.key == key {
                return Some(entry.value.as_arc_borrow());
            }
            node = entry.next.load(Acquire);
        }
        None
    }

    /// Adds an entry.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST` if `key` is there already, `ENOMEM`.
    pub fn insert(&self, key: u32, value: Arc<T>) -> Result {
        let node = KBox::new(
            Node {
                next: Atomic::new(core::ptr::null_mut()),
                key,
                value,
            },
            GFP_KERNEL,
        )?;
        let bucket = self.bucket(key).ok_or(EINVAL)?;
        let guard = self.writer.lock();
        let head = bucket.load(Relaxed);
        if self.find(bucket, key).is_some() {
            drop(guard);
            return Err(EEXIST);
        }
        node.next.store(head, Relaxed);
        // INVARIANT: The node is complete before it can be reached (release), and `writer` is held.
        bucket.store(KBox::into_raw(node), Release);
        self.len.add(1, Relaxed);
        Ok(())
    }

    /// Removes the entry of `key`, and returns its value when no reader can see it any more.
    ///
    /// # Context
    ///
    /// Process context, may sleep (for an expedited RCU grace period). The caller must not hold an
    /// [`rcu::Guard`].
    pub fn remove(&self, key: u32) -> Option<Arc<T>> {
        let bucket = self.bucket(key)?;
        let guard = self.writer.lock();
        let link = self.find(bucket, key)?;
        let node = link.load(Relaxed);
        // SAFETY: By the invariant of `Node` it is valid: it is reachable and `writer` is held.
        let next = unsafe { &(*node).next }.load(Relaxed);
        link.store(next, Release);
        let _ = self.len.fetch_sub(1, Relaxed);
        drop(guard);
        // SAFETY: The node came from `KBox::into_raw`. It was unlinked above, by this thread alone as
        // `writer` was held.
        Some(unsafe { Self::reclaim(node) })
    }

    /// Puts `value` in the place of the entry of `key`, and returns the old value when no reader can
    /// see it any more. A reader finds the one or the other at any time.
    ///
    /// # Context
    ///
    /// As [`Self::remove`].
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such entry, `ENOMEM`. Nothing has changed then.
    pub fn replace(&self, key: u32, value: Arc<T>) -> Result<Arc<T>> {
        let new = KBox::new(
            Node {
                next: Atomic::new(core::ptr::null_mut()),
                key,
                value,
            },
            GFP_KERNEL,
        )?;
        let bucket = self.bucket(key).ok_or(EINVAL)?;
        let guard = self.writer.lock();
        let Some(link) = self.find(bucket, key) else {
            drop(guard);
            return Err(ENOENT);
        };
        let old = link.load(Relaxed);
        // SAFETY: By the invariant of `Node` it is valid: it is reachable and `writer` is held.
        let next = unsafe { &(*old).next }.load(Relaxed);
        new.next.store(next, Relaxed);
        // INVARIANT: The node is complete before it can be reached (release), and `writer` is held.
        link.store(KBox::into_raw(new), Release);
        drop(guard);
        // SAFETY: As in `remove`.
        Ok(unsafe { Self::reclaim(old) })
    }

    /// Waits for readers of a node, and frees it.
    ///
    /// # Safety
    ///
    /// `node` must be from `KBox::into_raw`, and unlinked by the calling thread alone.
    unsafe fn reclaim(node: *mut Node<T>) -> Arc<T> {
        // SAFETY: `synchronize_rcu_expedited` (kernel/rcu/tree_exp.h) only needs a context that may
        // sleep; a violation is a warning or a deadlock.
        unsafe { bindings::synchronize_rcu_expedited() };
        // SAFETY: By the safety requirement, and since a grace period has passed, nobody else has it.
        let node = unsafe { KBox::from_raw(node) };
        KBox::into_inner(node).value
    }

    /// The number of entries.
    ///
    /// # Context
    ///
    /// Any.
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Whether there is no entry.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The link that points to the node of `key`. The caller holds `writer`.
    fn find<'a>(
        &'a self,
        bucket: &'a Atomic<*mut Node<T>>,
        key: u32,
    ) -> Option<&'a Atomic<*mut Node<T>>> {
        let mut link = bucket;
        loop {
            let node = link.load(Relaxed);
            if node.is_null() {
                return None;
            }
            // SAFETY: By the invariant of `Node` it is valid: it is reachable, and `writer`, which
            // the caller holds, keeps it so.
            let entry: &'a Node<T> = unsafe { &*node };
            if entry.key == key {
                return Some(link);
            }
            link = &entry.next;
        }
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for RcuMap<T> {
    fn drop(self: Pin<&mut Self>) {
        // Readers borrow the map for as long as their borrow of a value lives, so there are none.
        for bucket in self.buckets.iter() {
            let mut node = bucket.load(Relaxed);
            while !node.is_null() {
                // SAFETY: The node came from `KBox::into_raw` in `insert` and is still linked, so
                // nothing freed it.
                let entry = unsafe { KBox::from_raw(node) };
                node = entry.next.load(Relaxed);
            }
            bucket.store(core::ptr::null_mut(), Relaxed);
        }
    }
}
