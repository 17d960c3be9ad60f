// SPDX-License-Identifier: GPL-2.0

//! Trains: many datagrams of a flow in one buffer.
//!
//! The datagrams of a train have equal size, but for a shorter last one. The train crosses the IP
//! stack, queueing disciplines and virtual devices as one packet; whoever needs the datagrams one by
//! one cuts it up ("UDP segmentation offload"). Each then has its own IP and UDP header, with the
//! IPv4 identification counting up from 0 and a UDP checksum.
//!
//! C header: [`include/linux/skbuff.h`](srctree/include/linux/skbuff.h) (`SKB_GSO_UDP_L4`)
//!
//! Would become `rust/kernel/net/skbuff/train.rs`.

use crate::{
    bindings,
    net::{
        ip_header::{
            IpHeader,
            UDP_LEN, //
        },
        tx::{
            TxError,
            TxPacket, //
        },
    },
    sync::BhDisabled, //
};
use core::{
    ptr::NonNull,
    slice, //
};
use kernel::prelude::*;

/// How large trains may be.
#[derive(Clone, Copy, Default)]
pub(super) struct TrainLimit {
    /// The longest IP packet, in bytes; 0 if the device takes no trains.
    pub(super) bytes: u32,
    /// The most datagrams.
    pub(super) segments: u32,
}

/// Blocks of memory that a CPU takes in turn: enough for all that a connection has on its way, so that
/// the memory of those that have arrived is used again instead of being freed, allocated and zeroed.
const BLOCKS: usize = 40;

/// What a CPU has of a [`SegmentPool`].
struct Blocks {
    blocks: [bindings::page_frag; BLOCKS],
    /// The one that is being cut.
    current: usize,
}

impl Blocks {
    /// The block to cut `len` bytes from, if there is memory. It has as many or more from `offset` on.
    #[inline]
    fn with_room(&mut self, len: u32) -> Option<&mut bindings::page_frag> {
        let current = self.blocks.get(self.current)?;
        if current.offset.saturating_add(len) > current.size {
            self.current = self.current.wrapping_add(1) % BLOCKS;
        }
        let block = self.blocks.get_mut(self.current)?;
        if let Some(page) = NonNull::new(block.page).filter(|_| block.size < len) {
            // A single page, which was all that there was, and would never do.
            block.page = core::ptr::null_mut();
            // SAFETY: The reference was the block's, which has no page any more.
            unsafe { bindings::put_page(page.as_ptr()) };
        }
        let gfp = bindings::GFP_ATOMIC | bindings::__GFP_NOWARN;
        // SAFETY: The block is ours. `skb_page_frag_refill` (net/core/sock.c) goes back to the start
        // of a page that only we refer to, and gives one up that has not enough room.
        if !unsafe { bindings::skb_page_frag_refill(len, block, gfp) } {
            return None;
        }
        // A single page may have been all that there was.
        (block.offset.saturating_add(len) <= block.size).then_some(block)
    }
}

/// Memory that the datagrams of trains are cut from: a few blocks of pages for each CPU, used again
/// when the packets that they went with have been freed.
///
/// # Invariants
///
/// `blocks` is a per-CPU allocation of [`Blocks`], owned by this value, which are only used on their
/// own CPU with softirqs off. The page of each, if there is one, is a reference of ours, and nobody
/// uses the part of it from `offset` on.
pub struct SegmentPool {
    blocks: NonNull<Blocks>,
}

// SAFETY: A per-CPU allocation is not bound to the thread that made it.
unsafe impl Send for SegmentPool {}

// SAFETY: Each CPU uses its own part, and nothing interrupts it that would as well.
unsafe impl Sync for SegmentPool {}

impl SegmentPool {
    /// Creates a pool without memory in it.
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
        let blocks = unsafe { bindings::alloc_percpu(size_of::<Blocks>(), align_of::<Blocks>()) };
        // INVARIANT: Allocated just now, without pages.
        Ok(Self {
            blocks: NonNull::new(blocks.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Takes memory for datagrams of `len` bytes each, one behind the other: for at least one, and for
    /// `count` if there is so much in one piece. `None` if there is no memory.
    ///
    /// # Context
    ///
    /// Process or softirq context.
    #[inline]
    pub fn take(&self, len: u32, count: u32) -> Option<Segments> {
        let _bh = BhDisabled::new();
        // SAFETY: By the type invariant this is a per-CPU allocation, and this thread stays on its
        // CPU while softirqs are off.
        let blocks = unsafe { bindings::this_cpu_ptr(self.blocks.as_ptr().cast()) };
        // SAFETY: By the type invariant nobody else uses the blocks now.
        let blocks = unsafe { &mut *blocks.cast::<Blocks>() };
        let block = blocks.with_room(len)?;
        let room = block.size.wrapping_sub(block.offset);
        let count = room.checked_div(len)?.min(count).max(1);
        let total = len.checked_mul(count)?;
        let page = NonNull::new(block.page)?;
        // SAFETY: The block holds a reference on the page.
        unsafe { bindings::get_page(page.as_ptr()) };
        // SAFETY: The page is valid, and not in high memory: `GFP_ATOMIC` does not ask for that.
        let base = unsafe { bindings::page_address(page.as_ptr()) };
        let data = NonNull::new(base.cast::<u8>().wrapping_add(block.offset as usize));
        // INVARIANT: The part from `offset` on was nobody's, and so much of it is not the block's any
        // more: there is room for `count` times `len`.
        let segments = Segments {
            page,
            data: data?,
            offset: block.offset,
            len: total,
        };
        block.offset = block.offset.wrapping_add(total);
        Some(segments)
    }
}

impl Drop for SegmentPool {
    fn drop(&mut self) {
        for cpu in 0..kernel::cpu::nr_cpu_ids() {
            // SAFETY: `cpu` is below `nr_cpu_ids`, as `cpumask_test_cpu` (include/linux/cpumask.h)
            // wants.
            if !unsafe { bindings::cpu_possible(cpu) } {
                continue;
            }
            // SAFETY: By the type invariant this is a per-CPU allocation, which every possible CPU
            // has.
            let blocks = unsafe { bindings::per_cpu_ptr(self.blocks.as_ptr().cast(), cpu) };
            // SAFETY: By the type invariant the blocks are valid, and nobody uses them any more.
            for block in unsafe { &(*blocks.cast::<Blocks>()).blocks } {
                if !block.page.is_null() {
                    // SAFETY: By the type invariant the block's reference on its page is ours.
                    unsafe { bindings::put_page(block.page) };
                }
            }
        }
        // SAFETY: By the type invariant this is a per-CPU allocation that nobody else frees.
        unsafe { bindings::free_percpu(self.blocks.as_ptr().cast()) };
    }
}

/// Memory for the payload of some datagrams, one behind the other.
///
/// # Invariants
///
/// `data` points to `len` bytes, `offset` bytes into `page`, that only this value uses. It owns a
/// reference on the page.
pub struct Segments {
    page: NonNull<bindings::page>,
    data: NonNull<u8>,
    offset: u32,
    len: u32,
}

impl Segments {
    /// The bytes. All of them must be written before the train is sent: they hold whatever the memory
    /// held before.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: By the type invariant these bytes are there, and only we use them. Memory that
        // comes from a function outside of the compiler's sight has some value.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }
    }

    /// The bytes, as [`Self::bytes_mut`] gives them.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: As in `bytes_mut`.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }

    /// Gives up all but the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: u32) {
        // INVARIANT: Not more than there were.
        self.len = self.len.min(len);
    }
}

impl Drop for Segments {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant we own a reference.
        unsafe { bindings::put_page(self.page.as_ptr()) };
    }
}

/// Datagrams that are to be sent as one packet, or a single one.
///
/// # Invariants
///
/// `packet` has no payload in its linear part. Behind that are `segments` pieces of together
/// `payload` bytes, each of `size` bytes but perhaps a shorter last one (then `closed`).
pub struct TxTrain {
    packet: TxPacket,
    limit: TrainLimit,
    size: u32,
    segments: u32,
    payload: u32,
    closed: bool,
}

impl TxTrain {
    /// A train of datagrams with `size` bytes each; `packet` consists of headers alone.
    pub(super) fn new(packet: TxPacket, size: u32, limit: TrainLimit) -> Self {
        // INVARIANT: No pieces yet.
        Self {
            packet,
            limit,
            size,
            segments: 0,
            payload: 0,
            closed: false,
        }
    }

    /// How many datagrams with `len` bytes of payload can be added; one at most that is shorter than
    /// the others.
    #[inline]
    pub fn room(&self, len: usize) -> u32 {
        // SAFETY: By the type invariants of `TxPacket` the skb is valid.
        let info = unsafe { bindings::skb_shinfo(self.packet.as_raw()) };
        // SAFETY: Every skb has this, and this one is ours.
        let frags = u32::from(unsafe { (*info).nr_frags });
        if self.closed || len > self.size as usize || frags >= bindings::MAX_SKB_FRAGS {
            return 0;
        }
        let total = (self.packet.header_len() as u32).saturating_add(self.payload);
        let bytes = self.limit.bytes.saturating_sub(total);
        let most = if len < self.size as usize {
            1
        } else {
            self.limit.segments.saturating_sub(self.segments)
        };
        bytes.checked_div(len as u32).unwrap_or(0).min(most)
    }

    /// The number of datagrams so far: the IPv4 identification of the next one.
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// Adds datagrams of `len` bytes each, all that there are in `segments`.
    ///
    /// # Errors
    ///
    /// [`TxError::TOO_LONG`] if [`Self::room`] is not enough.
    #[inline]
    pub fn push(&mut self, segments: Segments, len: u32) -> Result<(), TxError> {
        let count = segments.len.checked_div(len).unwrap_or(0);
        if count > self.room(len as usize) || count.wrapping_mul(len) != segments.len {
            return Err(TxError::TOO_LONG);
        }
        // SAFETY: The skb is ours, by the invariants of `TxPacket`; there is a free slot for a
        // fragment, checked above. The reference on the page goes to the skb, or is dropped if the
        // piece before has one.
        unsafe {
            bindings::skb_append_page(
                self.packet.as_raw(),
                segments.page.as_ptr(),
                segments.offset,
                segments.len,
            )
        };
        // INVARIANT: So many more pieces; a shorter one is alone and closes the train.
        self.closed = len < self.size;
        self.segments = self.segments.wrapping_add(count);
        self.payload = self.payload.wrapping_add(segments.len);
        core::mem::forget(segments);
        Ok(())
    }

    /// The finished packet. Nothing may be written to it any more.
    pub fn finish(self) -> TxPacket {
        let mut packet = self.packet;
        packet.set_lengths(self.payload);
        if self.segments > 1 {
            let skb = packet.as_raw();
            let length = self.payload.wrapping_add(UDP_LEN as u32) as i32;
            match packet.ip() {
                IpHeader::V4(ip) => {
                    let [.., a, b, c, d, e, f, g, h] = *ip;
                    let saddr = u32::from_ne_bytes([a, b, c, d]);
                    let daddr = u32::from_ne_bytes([e, f, g, h]);
                    // SAFETY: The skb is ours, with its transport header set and all of the UDP
                    // header in its linear part. Only the start of a checksum is computed.
                    unsafe { bindings::udp_set_csum(false, skb, saddr, daddr, length) };
                }
                IpHeader::V6(ip) => {
                    let addresses = ip.as_ptr().wrapping_add(8).cast::<bindings::in6_addr>();
                    // SAFETY: As above; the IPv6 header holds both addresses, at an alignment of
                    // four.
                    unsafe {
                        bindings::udp6_set_csum(
                            false,
                            skb,
                            addresses,
                            addresses.wrapping_add(1),
                            length,
                        )
                    };
                }
            }
            // SAFETY: The skb is valid and ours.
            let info = unsafe { bindings::skb_shinfo(skb) };
            // SAFETY: Every skb has this, and this one is ours.
            let info = unsafe { &mut *info };
            info.gso_size = self.size as u16;
            info.gso_segs = self.segments as u16;
            info.gso_type = bindings::SKB_GSO_UDP_L4 as u32;
        }
        packet
    }
}
