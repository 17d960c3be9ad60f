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

/// Blocks of memory that a CPU takes in turn: enough for two trains on their way, so that the memory
/// of those that have arrived is used again instead of being freed, allocated and zeroed.
const BLOCKS: usize = 4;

/// What a CPU has of a [`SegmentPool`].
type Blocks = [bindings::page_frag; BLOCKS];

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
        let blocks = unsafe { bindings::alloc_percpu_page_frags(BLOCKS) };
        // INVARIANT: Allocated just now, without pages.
        Ok(Self {
            blocks: NonNull::new(blocks.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Takes `len` bytes in one piece. `None` if there is no memory for so many.
    ///
    /// # Context
    ///
    /// Process or softirq context.
    #[inline]
    pub fn take(&self, len: u32) -> Option<Segment> {
        let _bh = BhDisabled::new();
        // SAFETY: By the type invariant this is a per-CPU allocation, and this thread stays on its
        // CPU while softirqs are off.
        let blocks = unsafe { bindings::this_cpu_page_frag(self.blocks.as_ptr().cast()) };
        // SAFETY: By the type invariant nobody else uses the blocks now.
        let blocks = unsafe { &mut *blocks.cast::<Blocks>() };
        let [first, ..] = &*blocks;
        if first.offset.saturating_add(len) > first.size {
            blocks.rotate_left(1);
        }
        let [frag, ..] = blocks;
        let gfp = bindings::GFP_ATOMIC | bindings::__GFP_NOWARN;
        // SAFETY: The block is ours. `skb_page_frag_refill` (net/core/sock.c) goes back to the start
        // of a page that only we refer to, and gives one up that has not enough room.
        if !unsafe { bindings::skb_page_frag_refill(len, frag, gfp) } {
            return None;
        }
        let end = frag.offset.checked_add(len)?;
        if end > frag.size {
            // A single page was all that there was.
            return None;
        }
        let page = NonNull::new(frag.page)?;
        // SAFETY: The block holds a reference on the page.
        unsafe { bindings::get_page(page.as_ptr()) };
        // SAFETY: The page is valid, and not in high memory: `GFP_ATOMIC` does not ask for that.
        let base = unsafe { bindings::page_address(page.as_ptr()) };
        let data = NonNull::new(base.cast::<u8>().wrapping_add(frag.offset as usize));
        // INVARIANT: The part from `offset` to `end` was nobody's, and is not the block's any more.
        let segment = Segment {
            page,
            data: data?,
            offset: frag.offset,
            len,
        };
        frag.offset = end;
        Some(segment)
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
            let blocks = unsafe { bindings::per_cpu_page_frag(self.blocks.as_ptr().cast(), cpu) };
            // SAFETY: By the type invariant the blocks are valid, and nobody uses them any more.
            for block in unsafe { &*blocks.cast::<Blocks>() } {
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

/// Memory for the payload of one datagram.
///
/// # Invariants
///
/// `data` points to `len` bytes, `offset` bytes into `page`, that only this value uses. It owns a
/// reference on the page.
pub struct Segment {
    page: NonNull<bindings::page>,
    data: NonNull<u8>,
    offset: u32,
    len: u32,
}

impl Segment {
    /// The bytes. All of them must be written before the train is sent: they hold whatever the memory
    /// held before.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: By the type invariant these bytes are there, and only we use them. Memory that
        // comes from a function outside of the compiler's sight has some value.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }
    }
}

impl Drop for Segment {
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

    /// Whether a datagram with `len` bytes of payload can be added.
    #[inline]
    pub fn takes(&self, len: usize) -> bool {
        let total = (self.packet.header_len() as u32).saturating_add(self.payload);
        // SAFETY: By the type invariants of `TxPacket` the skb is valid.
        let info = unsafe { bindings::skb_shinfo(self.packet.as_raw()) };
        // SAFETY: Every skb has this, and this one is ours.
        let frags = u32::from(unsafe { (*info).nr_frags });
        !self.closed
            && len <= self.size as usize
            && self.segments < self.limit.segments
            && frags < bindings::MAX_SKB_FRAGS
            && (len as u32).saturating_add(total) <= self.limit.bytes
    }

    /// The number of datagrams so far: the IPv4 identification of the next one.
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// Adds a datagram.
    ///
    /// # Errors
    ///
    /// [`TxError::TOO_LONG`] if [`Self::takes`] says no.
    #[inline]
    pub fn push(&mut self, segment: Segment) -> Result<(), TxError> {
        if !self.takes(segment.len as usize) {
            return Err(TxError::TOO_LONG);
        }
        // SAFETY: The skb is ours, by the invariants of `TxPacket`; there is a free slot for a
        // fragment, checked above. The reference on the page goes to the skb, or is dropped if the
        // piece before has one.
        unsafe {
            bindings::skb_append_page(
                self.packet.as_raw(),
                segment.page.as_ptr(),
                segment.offset,
                segment.len,
            )
        };
        // INVARIANT: One more piece, which closes the train if it is shorter.
        self.closed = segment.len < self.size;
        self.segments = self.segments.wrapping_add(1);
        self.payload = self.payload.wrapping_add(segment.len);
        core::mem::forget(segment);
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
