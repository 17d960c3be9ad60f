// SPDX-License-Identifier: GPL-2.0
//! The layouts that this driver shares with the `librxe` provider of rdma-core, to the byte.
//!
//! C header: `include/uapi/rdma/rdma_user_rxe.h`. Everything here is plain data in native byte
//! order. It is copied out of memory that user space can write, once, before anybody looks at it.

use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout, //
};

/// `struct mminfo`: where user space finds a queue buffer.
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct MmapInfo {
    /// Offset for `mmap()` on the uverbs file.
    pub(crate) offset: u64,
    /// Length of the mapping, in bytes.
    pub(crate) size: u32,
    pad: u32,
}

impl MmapInfo {
    pub(crate) fn new(offset: u64, size: u32) -> Self {
        Self {
            offset,
            size,
            pad: 0,
        }
    }
}

/// `struct rxe_create_ah_resp`.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateAhResponse {
    /// What the provider puts in a datagram WQE.
    pub(crate) ah_num: u32,
    /// Zero.
    pub(crate) reserved: u32,
}

/// `struct rxe_create_srq_resp`.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateSrqResponse {
    /// The queue.
    pub(crate) ring: MmapInfo,
    /// Its number.
    pub(crate) srq_num: u32,
    /// Zero.
    pub(crate) reserved: u32,
}

/// `struct rxe_modify_srq_cmd`.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct ModifySrqCommand {
    /// Where in user space to write the [`MmapInfo`] of the new ring.
    pub(crate) mmap_info_addr: u64,
}

/// `struct rxe_create_qp_resp`.
#[derive(Clone, Copy, Default, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct CreateQpResponse {
    /// The receive queue; zero if it is a shared one.
    pub(crate) rq: MmapInfo,
    /// The send queue.
    pub(crate) sq: MmapInfo,
}

/// Offsets in `struct rxe_queue_buf`, the head of every shared ring.
pub(crate) mod queue_buf {
    /// log2 of the size of an element.
    pub(crate) const LOG2_ELEM_SIZE: usize = 0;
    /// Number of slots less one.
    pub(crate) const INDEX_MASK: usize = 4;
    /// Index of the next slot to fill.
    pub(crate) const PRODUCER: usize = 128;
    /// Index of the next slot to take.
    pub(crate) const CONSUMER: usize = 256;
    /// The slots.
    pub(crate) const DATA: usize = 384;
}

/// `struct rxe_dma_info` without its array.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct DmaInfo {
    /// Bytes of payload; user space sums its list into 32 bits.
    pub(crate) length: u32,
    resid: u32,
    cur_sge: u32,
    /// Entries in the scatter-gather list.
    pub(crate) num_sge: u32,
    sge_offset: u32,
    reserved: u32,
}

/// `struct rxe_send_wqe` up to its scatter-gather list or inline data.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct SendWqe {
    /// The consumer's identifier.
    pub(crate) wr_id: u64,
    reserved: u32,
    /// `enum ib_wr_opcode`.
    pub(crate) opcode: u32,
    /// `enum ib_send_flags`.
    pub(crate) send_flags: u32,
    /// Immediate data, in network order, or the key to invalidate, in native order.
    pub(crate) ex: [u8; 4],
    /// The union of operands.
    pub(crate) operands: [u8; 120],
    /// Progress of the C driver; this one keeps its own in kernel memory.
    progress: [u8; 40],
    /// Length and list.
    pub(crate) dma: DmaInfo,
}

/// `wr.rdma` in the union of operands.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RdmaOperands {
    /// Remote virtual address.
    pub(crate) remote_addr: u64,
    /// Remote key.
    pub(crate) rkey: u32,
    reserved: u32,
}

/// `wr.atomic` in the union of operands.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AtomicOperands {
    /// Remote virtual address.
    pub(crate) remote_addr: u64,
    /// Value to compare with, or to add.
    pub(crate) compare_add: u64,
    /// Value to store.
    pub(crate) swap: u64,
    /// Remote key.
    pub(crate) rkey: u32,
    reserved: u32,
}

/// The number of the shared receive queue at the peer, for an extended reliable connection. The header
/// has no field for it; this is its place in the patches for rxe and librxe that were proposed, behind
/// the operands of all operations, so that it goes with each of them.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct XrcOperands {
    others: [u8; 32],
    /// In native order, 24 bits.
    pub(crate) srq_num: u32,
}

/// `wr.flush` in the union of operands.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FlushOperands {
    /// Remote virtual address.
    pub(crate) remote_addr: u64,
    /// Not filled in: the length is that of the WQE.
    length: u32,
    /// Remote key.
    pub(crate) rkey: u32,
    /// Bits of `enum ib_placement_type`.
    pub(crate) types: u8,
    /// `enum ib_selectivity_level`.
    pub(crate) level: u8,
    reserved: [u8; 6],
}

/// Bits and values in [`FlushOperands`].
pub(crate) mod flush {
    pub(crate) const GLOBAL: u8 = 1;
    pub(crate) const PERSISTENT: u8 = 2;
    pub(crate) const RANGE: u8 = 0;
    pub(crate) const REGION: u8 = 1;
}

/// `wr.mw` in the union of operands.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BindOperands {
    /// First virtual address in the region.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Key of the region.
    pub(crate) mr_lkey: u32,
    /// Key of the window so far.
    pub(crate) mw_rkey: u32,
    /// Key of the window from now on.
    pub(crate) rkey: u32,
    /// Bits of `enum ib_access_flags`.
    pub(crate) access: u32,
}

/// `wr.ud` in the union of operands, without the address vector of old providers.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UdOperands {
    /// Destination QP.
    pub(crate) remote_qpn: u32,
    /// Queue key, or with the top bit set: that of the QP.
    pub(crate) remote_qkey: u32,
    pkey_index: u16,
    reserved: u16,
    /// The address handle, as returned in [`CreateAhResponse`].
    pub(crate) ah_num: u32,
}

/// `struct rxe_recv_wqe` up to its scatter list.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct RecvWqe {
    /// The consumer's identifier.
    pub(crate) wr_id: u64,
    reserved: [u32; 2],
    /// Length and list.
    pub(crate) dma: DmaInfo,
}

/// `struct rxe_sge`, the same as `struct ib_sge`.
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct Sge {
    /// Virtual address.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) length: u32,
    /// Local key.
    pub(crate) lkey: u32,
}

const _: () = {
    assert!(size_of::<MmapInfo>() == 16);
    assert!(size_of::<CreateQpResponse>() == 32);
    assert!(size_of::<CreateSrqResponse>() == 24);
    assert!(size_of::<ModifySrqCommand>() == 8);
    assert!(size_of::<SendWqe>() == 208);
    assert!(core::mem::offset_of!(SendWqe, operands) == 24);
    assert!(core::mem::offset_of!(SendWqe, dma) == 184);
    assert!(size_of::<AtomicOperands>() == 32);
    assert!(core::mem::offset_of!(AtomicOperands, rkey) == 24);
    assert!(core::mem::offset_of!(XrcOperands, srq_num) == size_of::<AtomicOperands>());
    assert!(core::mem::offset_of!(XrcOperands, srq_num) == size_of::<BindOperands>());
    assert!(core::mem::offset_of!(FlushOperands, rkey) == 12);
    assert!(core::mem::offset_of!(FlushOperands, level) == 17);
    assert!(size_of::<RecvWqe>() == 40);
    assert!(size_of::<Sge>() == 16);
};

/// Values of `enum ib_wr_opcode` that user space may post.
pub(crate) mod wr_opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
    pub(crate) const FLUSH: u32 = 14;
    pub(crate) const ATOMIC_WRITE: u32 = 15;
}

/// Bits of `enum ib_send_flags`.
pub(crate) mod send_flags {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 2;
    pub(crate) const SOLICITED: u32 = 4;
    pub(crate) const INLINE: u32 = 8;
}

/// Bits of `enum ib_access_flags`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const MW_BIND: u32 = 16;
    /// Addresses count from the start of the memory.
    pub(crate) const ZERO_BASED: u32 = 32;
    pub(crate) const ON_DEMAND: u32 = 64;
    pub(crate) const HUGETLB: u32 = 128;
    /// Rights for which the memory must be made for writing (`ib_access_writable`).
    pub(crate) const WRITABLE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
    pub(crate) const FLUSH_GLOBAL: u32 = 256;
    pub(crate) const FLUSH_PERSISTENT: u32 = 512;
    /// Bits that a driver may ignore (`IB_ACCESS_OPTIONAL`), relaxed ordering among them.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}
