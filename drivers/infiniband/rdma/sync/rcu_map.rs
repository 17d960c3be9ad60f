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

/// What entries are found by.
pub trait MapKey: Copy + Eq + Send + Sync + 'static {
    /// A number that most often differs when the key does. The table mixes its bits.
    fn hash(self) -> u32;
}

impl MapKey for u32 {
    #[inline]
    fn hash(self) -> u32 {
        self
    }
}

/// One entry.
///
/// # Invariants
///
/// A node that can be reached from a bucket is valid. It is freed only when it was unlinked under
/// the writer lock and an RCU grace period has passed since, or with the whole map.
struct Node<T, K> {
    next: Atomic<*mut Node<T, K>>,
    key: K,
    value: Arc<T>,
}

/// A table from `K` to `Arc<T>`, read under RCU.
///
/// The number of buckets is fixed; chains grow when there are more entries than that, so choose
/// about the number of entries expected.
///
/// # Invariants
///
/// - `buckets` has `1 << (32 - shift)` elements, each the head of a chain of [`Node`]s or null.
/// - Chains are changed only with `writer` held.
#[pin_data(PinnedDrop)]
pub struct RcuMap<T: Send + Sync + 'static, K: MapKey = u32> {
    buckets: KVVec<Atomic<*mut Node<T, K>>>,
    shift: u32,
    len: Atomic<usize>,
    #[pin]
    writer: Mutex<()>,
}

// SAFETY: The map owns `Arc<T>`s, which may be sent when `T` is `Send + Sync`.
unsafe impl<T: Send + Sync + 'static, K: MapKey> Send for RcuMap<T, K> {}

// SAFETY: Shared use gives out borrows of the `Arc<T>`s, and `remove` moves one out; both need `T:
// Send + Sync`. The chains are synchronised by RCU and `writer`.
unsafe impl<T: Send + Sync + 'static, K: MapKey> Sync for RcuMap<T, K> {}

impl<T: Send + Sync + 'static, K: MapKey> RcuMap<T, K> {
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
    fn bucket(&self, key: K) -> Option<&Atomic<*mut Node<T, K>>> {
        // Fibonacci hashing (include/linux/hash.h): the high bits of the product are well mixed.
        let hash = key.hash().wrapping_mul(0x61C8_8647);
        let index = hash.checked_shr(self.shift).unwrap_or(0);
        self.buckets.get(index as usize)
    }

    /// Looks up `key`.
    ///
    /// # Context
    ///
    /// Any; the guard keeps the caller from sleeping.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g rcu::Guard, key: K) -> Option<ArcBorrow<'g, T>> {
        let _ = guard;
        let mut node = self.bucket(key)?.load(Acquire);
        while !node.is_null() {
            // SAFETY: By the invariant of `Node`, it is valid: it was reachable while the RCU read
            // side lock was held, which it is for `'g`, so that no grace period can end before `'g`
            // does.
            let entry: &'g Node<T, K> = unsafe { &*node };
            if entry.key == key {
                return Some(entry.value.as_arc_borrow());
            }
            node = entry.next.load(Acquire);
        }
        None
    }

    /// All entries, in no order. Those that come or go meanwhile may be among them or not.
    ///
    /// # Context
    ///
    /// As [`Self::get`].
    pub fn values<'g>(
        &'g self,
        guard: &'g rcu::Guard,
    ) -> impl Iterator<Item = ArcBorrow<'g, T>> + use<'g, T, K> {
        let _ = guard;
        self.buckets.iter().flat_map(|bucket| {
            let mut node = bucket.load(Acquire);
            core::iter::from_fn(move || {
                // SAFETY: As in `get`, for a node or null.
                let entry: &'g Node<T, K> = unsafe { node.as_ref() }?;
                node = entry.next.load(Acquire);
                Some(entry.value.as_arc_borrow())
            })
        })
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
    pub fn insert(&self, key: K, value: Arc<T>) -> Result {
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
    pub fn remove(&self, key: K) -> Option<Arc<T>> {
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
    pub fn replace(&self, key: K, value: Arc<T>) -> Result<Arc<T>> {
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
    unsafe fn reclaim(node: *mut Node<T, K>) -> Arc<T> {
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
        bucket: &'a Atomic<*mut Node<T, K>>,
        key: K,
    ) -> Option<&'a Atomic<*mut Node<T, K>>> {
        let mut link = bucket;
        loop {
            let node = link.load(Relaxed);
            if node.is_null() {
                return None;
            }
            // SAFETY: By the invariant of `Node` it is valid: it is reachable, and `writer`, which
            // the caller holds, keeps it so.
            let entry: &'a Node<T, K> = unsafe { &*node };
            if entry.key == key {
                return Some(link);
            }
            link = &entry.next;
        }
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static, K: MapKey> PinnedDrop for RcuMap<T, K> {
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

#[cfg(ferroce_kunit)]
#[kunit_tests(rdma_rcu_map)]
mod tests {
    use super::*;
    use crate::sync::{
        Work,
        WorkQueue,
        WorkTarget, //
    };
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

    fn map<T: Send + Sync>(log2_buckets: u32) -> Result<Pin<KBox<RcuMap<T>>>> {
        KBox::pin_init(RcuMap::new(log2_buckets), GFP_KERNEL)
    }

    fn get(map: &RcuMap<u32>, key: u32) -> Option<u32> {
        map.get(&rcu::Guard::new(), key).map(|value| *value)
    }

    /// One bucket, so that all are in a chain; one for each; many.
    fn fills_and_empties(log2_buckets: u32) -> Result {
        const COUNT: u32 = 64;
        let map = map(log2_buckets)?;
        for key in 0..COUNT {
            map.insert(key, Arc::new(key + 1000, GFP_KERNEL)?)?;
        }
        assert_eq!(map.len(), COUNT as usize);
        for key in 0..COUNT {
            assert_eq!(get(&map, key), Some(key + 1000));
        }
        assert_eq!(get(&map, COUNT), None);
        assert_eq!(get(&map, u32::MAX), None);
        // From the middle, the head and the end of the chains.
        for key in (0..COUNT).map(|n| n.wrapping_mul(37) % COUNT) {
            assert_eq!(map.remove(key).map(|value| *value), Some(key + 1000));
            assert_eq!(get(&map, key), None);
            assert!(map.remove(key).is_none());
        }
        assert!(map.is_empty());
        Ok(())
    }

    #[test]
    fn one_bucket() -> Result {
        fills_and_empties(0)
    }

    #[test]
    fn some_buckets() -> Result {
        fills_and_empties(4)
    }

    #[test]
    fn more_buckets_than_entries() -> Result {
        fills_and_empties(10)
    }

    #[test]
    fn refuses_a_key_twice() -> Result {
        let map = map(2)?;
        map.insert(5, Arc::new(1, GFP_KERNEL)?)?;
        assert!(map.insert(5, Arc::new(2, GFP_KERNEL)?) == Err(EEXIST));
        assert_eq!(get(&map, 5), Some(1));
        assert_eq!(map.len(), 1);
        Ok(())
    }

    #[test]
    fn goes_through_all_of_them() -> Result {
        for log2_buckets in [0, 3, 10] {
            let map = map(log2_buckets)?;
            let sum = |map: &RcuMap<u32>| map.values(&rcu::Guard::new()).map(|v| *v).sum::<u32>();
            assert_eq!(sum(&map), 0);
            for key in 0..10 {
                map.insert(key, Arc::new(1 << key, GFP_KERNEL)?)?;
            }
            assert_eq!(sum(&map), 1023);
            let _ = map.remove(4);
            assert_eq!(sum(&map), 1023 - 16);
        }
        Ok(())
    }

    #[test]
    fn other_keys() -> Result {
        /// All of the same hash.
        #[derive(Clone, Copy, Eq, PartialEq)]
        struct Key(u64);
        impl MapKey for Key {
            fn hash(self) -> u32 {
                7
            }
        }
        let map = KBox::pin_init(RcuMap::<u64, Key>::new(4), GFP_KERNEL)?;
        for key in 0..20u64 {
            map.insert(Key(key << 32), Arc::new(key, GFP_KERNEL)?)?;
        }
        assert!(map.insert(Key(3 << 32), Arc::new(0, GFP_KERNEL)?) == Err(EEXIST));
        assert!(map.remove(Key(5 << 32)).is_some_and(|value| *value == 5));
        for key in 0..20u64 {
            let found = map.get(&rcu::Guard::new(), Key(key << 32)).map(|v| *v);
            assert_eq!(found, (key != 5).then_some(key));
        }
        Ok(())
    }

    #[test]
    fn gives_its_references_back() -> Result {
        let value = Arc::new(7, GFP_KERNEL)?;
        let all = map(1)?;
        for key in 0..5 {
            all.insert(key, value.clone())?;
        }
        drop(all.remove(3));
        drop(all);
        assert!(Arc::into_unique_or_drop(value).is_some());
        Ok(())
    }

    /// A reader, on another CPU if there is one, that looks for key 1 all the time.
    #[pin_data]
    struct Reader {
        #[pin]
        map: RcuMap<Atomic<bool>>,
        stop: Atomic<bool>,
        found: Atomic<u64>,
        /// How often it saw an entry after `remove` had returned.
        late: Atomic<u64>,
    }

    impl WorkTarget for Reader {
        fn run(&self) {
            while !self.stop.load(Relaxed) {
                let guard = rcu::Guard::new();
                if let Some(gone) = self.map.get(&guard, 1) {
                    for _ in 0..50 {
                        if gone.load(Relaxed) {
                            self.late.add(1, Relaxed);
                        }
                    }
                    self.found.add(1, Relaxed);
                }
                drop(guard);
                fsleep(Delta::from_micros(1));
            }
        }
    }

    #[test]
    fn no_reader_is_left_after_remove() -> Result {
        let reader = Arc::pin_init(
            try_pin_init!(Reader {
                map <- RcuMap::new(0),
                stop: Atomic::new(false),
                found: Atomic::new(0),
                late: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )?;
        let queue = WorkQueue::new(c"rdma_rcu_map")?;
        let work = Work::new(&queue)?;
        work.attach(reader.clone().into());
        work.queue();
        for round in 0..50 {
            let before = reader.found.load(Relaxed);
            reader
                .map
                .insert(1, Arc::new(Atomic::new(false), GFP_KERNEL)?)?;
            while reader.found.load(Relaxed) == before {
                fsleep(Delta::from_micros(50));
            }
            // Neighbours in the chain come and go as well.
            reader
                .map
                .insert(2 + round, Arc::new(Atomic::new(false), GFP_KERNEL)?)?;
            let value = reader.map.remove(1);
            assert!(value.is_some());
            if let Some(value) = value {
                value.store(true, Relaxed);
                assert!(Arc::into_unique_or_drop(value).is_some());
            }
        }
        reader.stop.store(true, Relaxed);
        work.shutdown();
        assert_eq!(reader.late.load(Relaxed), 0);
        assert_eq!(reader.map.len(), 50);
        Ok(())
    }
}
