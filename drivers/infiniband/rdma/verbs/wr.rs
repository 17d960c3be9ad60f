// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel users.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/wr.rs`.
//!
//! User programs do not post through these: they write to a ring that they share with the driver.

use super::{
    ah::Ah,
    attr::QpKind,
    mr::Mr,
    object::Object,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::prelude::*;

/// Flags of a send request; C: `enum ib_send_flags`.
pub mod send_flags {
    use crate::bindings;

    /// Wait for earlier reads and atomics.
    pub const FENCE: u32 = bindings::ib_send_flags_IB_SEND_FENCE as u32;
    /// Complete even if all goes well.
    pub const SIGNALED: u32 = bindings::ib_send_flags_IB_SEND_SIGNALED as u32;
    /// Raise an event at the receiver.
    pub const SOLICITED: u32 = bindings::ib_send_flags_IB_SEND_SOLICITED as u32;
    /// Copy the data now.
    pub const INLINE: u32 = bindings::ib_send_flags_IB_SEND_INLINE as u32;
}

/// A piece of memory in a work request; C: `struct ib_sge`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sge {
    /// Address, in terms of the region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// The elements at `list`.
///
/// # Safety
///
/// `list` must be valid for reads of `count` elements for the lifetime `'a`, or `count` not positive.
pub(super) unsafe fn sges<'a>(
    list: *const bindings::ib_sge,
    count: c_int,
) -> impl ExactSizeIterator<Item = Sge> + Clone + 'a {
    let count = usize::try_from(count).unwrap_or(0);
    let list: &'a [bindings::ib_sge] = if count == 0 || list.is_null() {
        &[]
    } else {
        // SAFETY: By the safety requirement.
        unsafe { core::slice::from_raw_parts(list, count) }
    };
    list.iter().map(|sge| Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    })
}

/// Where a one-sided operation goes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Remote {
    /// Address, in terms of the peer's region.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// What a send request asks for.
pub enum SendOp<'a, D: Driver> {
    /// Send.
    Send,
    /// Send with immediate data, in network byte order.
    SendImm([u8; 4]),
    /// Send, and invalidate the peer's key.
    SendInv(u32),
    /// Send a datagram, perhaps with immediate data in network byte order.
    Datagram {
        /// Where to.
        ah: &'a Ah<D>,
        /// The peer's queue pair.
        remote_qpn: u32,
        /// The peer's Q_Key.
        remote_qkey: u32,
        /// Index of the P_Key (queue pair 1).
        pkey_index: u16,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// Write to the peer's memory, perhaps with immediate data in network byte order.
    RdmaWrite(Remote, Option<[u8; 4]>),
    /// Read the peer's memory.
    RdmaRead(Remote),
    /// Compare and swap in the peer's memory.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// Value that must be there.
        compare: u64,
        /// Value to store then.
        swap: u64,
    },
    /// Fetch and add in the peer's memory.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// Write 8 bytes at once to the peer's memory.
    AtomicWrite(Remote),
    /// Invalidate the local region with this key.
    LocalInv(u32),
    /// Register a region with the pages that were mapped last.
    RegMr {
        /// The region.
        mr: &'a Mr<D>,
        /// Its key from now on.
        key: u32,
        /// What it allows, of [`super::access`].
        access: u32,
    },
    /// Something else, with C's opcode.
    Other(u32),
}

/// A send request.
///
/// # Invariants
///
/// `raw` is the request of a kernel user, of the kind that its opcode and `kind`, the type of its
/// queue pair, say; it and what it points to stay as they are for `'a`.
pub struct SendWr<'a, D: Driver> {
    raw: &'a bindings::ib_send_wr,
    kind: QpKind,
    _driver: PhantomData<D>,
}

impl<'a, D: Driver> SendWr<'a, D> {
    /// # Safety
    ///
    /// `raw` must meet the type invariant.
    pub(super) unsafe fn new(raw: &'a bindings::ib_send_wr, kind: QpKind) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            raw,
            kind,
            _driver: PhantomData,
        }
    }

    /// The value to return in the completion.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both fields of the union are 64 bits without padding.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Of [`send_flags`].
    pub fn flags(&self) -> u32 {
        // CAST: C keeps flags in an `int`.
        self.raw.send_flags as u32
    }

    /// The pieces of memory.
    pub fn sges(&self) -> impl ExactSizeIterator<Item = Sge> + Clone + 'a {
        // SAFETY: The user gave `num_sge` elements, by the type invariant.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }

    /// The word that may come with a message.
    fn extra(&self) -> u32 {
        // SAFETY: Both fields of the union are 32 bits without padding.
        unsafe { self.raw.ex.invalidate_rkey }
    }

    /// What it asks for.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a datagram has no address handle.
    pub fn op(&self) -> Result<SendOp<'a, D>> {
        let imm = self.extra().to_ne_bytes();
        let datagram = matches!(self.kind, QpKind::Ud | QpKind::Gsi | QpKind::Smi);
        Ok(match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND if datagram => self.datagram(None)?,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM if datagram => self.datagram(Some(imm))?,
            bindings::ib_wr_opcode_IB_WR_SEND => SendOp::Send,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => SendOp::SendInv(self.extra()),
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => SendOp::RdmaWrite(self.rdma(), None),
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                SendOp::RdmaWrite(self.rdma(), Some(imm))
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => SendOp::RdmaRead(self.rdma()),
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => {
                let (remote, compare, swap) = self.atomic();
                SendOp::CompareSwap {
                    remote,
                    compare,
                    swap,
                }
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                let (remote, add, _) = self.atomic();
                SendOp::FetchAdd { remote, add }
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_WRITE => SendOp::AtomicWrite(self.rdma()),
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => SendOp::LocalInv(self.extra()),
            bindings::ib_wr_opcode_IB_WR_REG_MR => self.reg_mr()?,
            other => SendOp::Other(other),
        })
    }

    fn datagram(&self, imm: Option<[u8; 4]>) -> Result<SendOp<'a, D>> {
        // SAFETY: Sends on a datagram queue pair are `ib_ud_wr`s (`ib_verbs.h:ud_wr`), by the type
        // invariant.
        let ud = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_ud_wr>() };
        if ud.ah.is_null() {
            return Err(EINVAL);
        }
        Ok(SendOp::Datagram {
            // SAFETY: The user gave an address handle of this device, alive until the completion, by
            // the type invariant.
            ah: unsafe { Ah::from_raw(ud.ah) },
            remote_qpn: ud.remote_qpn,
            remote_qkey: ud.remote_qkey,
            pkey_index: ud.pkey_index,
            imm,
        })
    }

    /// Must only be called for fast registrations.
    fn reg_mr(&self) -> Result<SendOp<'a, D>> {
        // SAFETY: Requests with this opcode are `ib_reg_wr`s (`ib_verbs.h:reg_wr`), by the type
        // invariant; `op` has looked at the opcode.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_reg_wr>() };
        if wr.mr.is_null() {
            return Err(EINVAL);
        }
        Ok(SendOp::RegMr {
            // SAFETY: The user gave a region of this device, alive until the completion, by the type
            // invariant.
            mr: unsafe { Mr::from_raw(wr.mr) },
            key: wr.key,
            // CAST: C keeps flags in an `int`.
            access: wr.access as u32,
        })
    }

    /// Must only be called for RDMA operations.
    fn rdma(&self) -> Remote {
        // SAFETY: Requests with these opcodes are `ib_rdma_wr`s (`ib_verbs.h:rdma_wr`), by the type
        // invariant; `op` has looked at the opcode.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_rdma_wr>() };
        Remote {
            addr: wr.remote_addr,
            rkey: wr.rkey,
        }
    }

    /// Must only be called for atomic operations.
    fn atomic(&self) -> (Remote, u64, u64) {
        // SAFETY: Requests with these opcodes are `ib_atomic_wr`s (`ib_verbs.h:atomic_wr`), by the
        // type invariant; `op` has looked at the opcode.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_atomic_wr>() };
        let remote = Remote {
            addr: wr.remote_addr,
            rkey: wr.rkey,
        };
        (remote, wr.compare_add, wr.swap)
    }

    /// Copies the data of a request with [`send_flags::INLINE`]; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is not inline, or the data does not fit into `out`.
    pub fn copy_inline(&self, out: &mut [u8]) -> Result<usize> {
        if self.flags() & send_flags::INLINE == 0 {
            return Err(EINVAL);
        }
        let mut used = 0usize;
        for sge in self.sges() {
            let len = sge.length as usize;
            let end = used.checked_add(len).ok_or(EINVAL)?;
            let dst = out.get_mut(used..end).ok_or(EINVAL)?;
            let src = usize::try_from(sge.addr).map_err(|_| EINVAL)? as *const u8;
            // SAFETY: Inline elements are kernel addresses that the user gave for this time
            // (`ib_verbs.h`: "the sge list can be non-mapped"), by the type invariant.
            unsafe { bindings::copy_opaque(dst.as_mut_ptr().cast(), src.cast(), len) };
            used = end;
        }
        Ok(used)
    }
}

/// A receive request.
///
/// # Invariants
///
/// `raw` is the request of a kernel user; it and what it points to stay as they are for `'a`.
pub struct RecvWr<'a> {
    raw: &'a bindings::ib_recv_wr,
}

impl<'a> RecvWr<'a> {
    /// # Safety
    ///
    /// `raw` must meet the type invariant.
    pub(super) unsafe fn new(raw: &'a bindings::ib_recv_wr) -> Self {
        // INVARIANT: By the safety requirement.
        Self { raw }
    }

    /// The value to return in the completion.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both fields of the union are 64 bits without padding.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// The pieces of memory.
    pub fn sges(&self) -> impl ExactSizeIterator<Item = Sge> + Clone + 'a {
        // SAFETY: The user gave `num_sge` elements, by the type invariant.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }
}
