// SPDX-License-Identifier: GPL-2.0

//! Work completions.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/wc.rs`.

use super::notifier::QpNotifier;
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// How a work request ended; C: `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the names are the InfiniBand specification's")]
#[repr(u32)]
pub enum WcStatus {
    #[default]
    Success = bindings::ib_wc_status_IB_WC_SUCCESS,
    LocLenErr = bindings::ib_wc_status_IB_WC_LOC_LEN_ERR,
    LocQpOpErr = bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    LocEecOpErr = bindings::ib_wc_status_IB_WC_LOC_EEC_OP_ERR,
    LocProtErr = bindings::ib_wc_status_IB_WC_LOC_PROT_ERR,
    WrFlushErr = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR,
    MwBindErr = bindings::ib_wc_status_IB_WC_MW_BIND_ERR,
    BadRespErr = bindings::ib_wc_status_IB_WC_BAD_RESP_ERR,
    LocAccessErr = bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR,
    RemInvReqErr = bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    RemAccessErr = bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    RemOpErr = bindings::ib_wc_status_IB_WC_REM_OP_ERR,
    RetryExcErr = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR,
    RnrRetryExcErr = bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    RemAbortErr = bindings::ib_wc_status_IB_WC_REM_ABORT_ERR,
    FatalErr = bindings::ib_wc_status_IB_WC_FATAL_ERR,
    RespTimeoutErr = bindings::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
    GeneralErr = bindings::ib_wc_status_IB_WC_GENERAL_ERR,
}

/// What a work request did; C: `enum ib_wc_opcode`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the names are the InfiniBand specification's")]
#[repr(u32)]
pub enum WcOpcode {
    #[default]
    Send = bindings::ib_wc_opcode_IB_WC_SEND,
    RdmaWrite = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
    RdmaRead = bindings::ib_wc_opcode_IB_WC_RDMA_READ,
    CompSwap = bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
    FetchAdd = bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
    BindMw = bindings::ib_wc_opcode_IB_WC_BIND_MW,
    LocalInv = bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
    RegMr = bindings::ib_wc_opcode_IB_WC_REG_MR,
    Flush = bindings::ib_wc_opcode_IB_WC_FLUSH,
    AtomicWrite = bindings::ib_wc_opcode_IB_WC_ATOMIC_WRITE,
    Recv = bindings::ib_wc_opcode_IB_WC_RECV,
    RecvRdmaWithImm = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// What came with a message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum WcExtra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, in network byte order.
    Imm([u8; 4]),
    /// The R_Key that the message invalidated.
    Invalidated(u32),
}

/// Kind of network header in front of a datagram; C: `enum rdma_network_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum NetworkHeader {
    /// An InfiniBand global route header (also: RoCE version 1).
    Ib = bindings::rdma_network_type_RDMA_NETWORK_IB as u8,
    /// IPv4.
    V4 = bindings::rdma_network_type_RDMA_NETWORK_IPV4 as u8,
    /// IPv6.
    V6 = bindings::rdma_network_type_RDMA_NETWORK_IPV6 as u8,
}

/// A work completion: a plain value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    /// The value from the work request. In a completion for a kernel user it must be the one from
    /// the request, of which this is the first and only completion: users keep a pointer there.
    pub wr_id: u64,
    /// How it ended. If not well, only `wr_id`, `qp_num` and `vendor_err` mean something.
    pub status: WcStatus,
    /// What it did.
    pub opcode: WcOpcode,
    /// Detail of the driver.
    pub vendor_err: u32,
    /// Bytes that were received, or read.
    pub byte_len: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// What came with the message.
    pub extra: WcExtra,
    /// Number of the sender's queue pair (datagrams).
    pub src_qp: u32,
    /// The first 40 bytes of the buffer hold the global route header (datagrams).
    pub grh: bool,
    /// Index of the P_Key (queue pair 1).
    pub pkey_index: u16,
    /// Source LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the destination LID.
    pub dlid_path_bits: u8,
    /// Number of the port.
    pub port_num: u8,
    /// Kind of the network header (datagrams, kernel users only).
    pub network_hdr: Option<NetworkHeader>,
    /// Ethernet address of the sender (kernel users only).
    pub smac: Option<[u8; 6]>,
    /// VLAN that the message came on (kernel users only).
    pub vlan_id: Option<u16>,
}

impl Wc {
    fn flags(&self) -> u32 {
        let mut flags = 0;
        if self.grh {
            flags |= bindings::ib_wc_flags_IB_WC_GRH;
        }
        match self.extra {
            WcExtra::None => {}
            WcExtra::Imm(_) => flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM,
            WcExtra::Invalidated(_) => flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE,
        }
        flags
    }

    fn extra_word(&self) -> u32 {
        match self.extra {
            WcExtra::None => 0,
            WcExtra::Imm(bytes) => u32::from_ne_bytes(bytes),
            WcExtra::Invalidated(rkey) => rkey,
        }
    }

    /// The completion as user programs get it: the bytes of a `struct ib_uverbs_wc`
    /// (`include/uapi/rdma/ib_user_verbs.h`).
    pub fn to_uverbs(&self) -> [u8; 48] {
        /// `IBV_WC_WITH_INV` of libibverbs, which is not the kernel's bit for it.
        const USER_WITH_INV: u32 = 1 << 3;
        let flags = match self.extra {
            WcExtra::None | WcExtra::Imm(_) => self.flags(),
            WcExtra::Invalidated(_) => {
                self.flags() & !bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE | USER_WITH_INV
            }
        };
        let wc = bindings::ib_uverbs_wc {
            wr_id: self.wr_id,
            status: self.status as u32,
            opcode: self.opcode as u32,
            vendor_err: self.vendor_err,
            byte_len: self.byte_len,
            ex: bindings::ib_uverbs_wc__bindgen_ty_1 {
                invalidate_rkey: self.extra_word(),
            },
            qp_num: self.qp_num,
            src_qp: self.src_qp,
            wc_flags: flags,
            pkey_index: self.pkey_index,
            slid: self.slid,
            sl: self.sl,
            dlid_path_bits: self.dlid_path_bits,
            port_num: self.port_num,
            reserved: 0,
        };
        // SAFETY: The structure has no padding (uapi: fields of 8, then 4, 2, and 1 bytes, 48 in
        // all; `transmute` checks the size), so all its bytes are initialised.
        unsafe { core::mem::transmute::<bindings::ib_uverbs_wc, [u8; 48]>(wc) }
    }

    /// The completion as kernel users get it.
    fn to_kernel(self, qp: NonNull<bindings::ib_qp>) -> bindings::ib_wc {
        let mut flags = self.flags();
        let mut wc = bindings::ib_wc {
            status: self.status as u32,
            opcode: self.opcode as u32,
            vendor_err: self.vendor_err,
            byte_len: self.byte_len,
            qp: qp.as_ptr(),
            src_qp: self.src_qp,
            slid: self.slid.into(),
            pkey_index: self.pkey_index,
            sl: self.sl,
            dlid_path_bits: self.dlid_path_bits,
            port_num: self.port_num.into(),
            ..pin_init::zeroed()
        };
        wc.__bindgen_anon_1.wr_id = self.wr_id;
        wc.ex.invalidate_rkey = self.extra_word();
        if let Some(kind) = self.network_hdr {
            wc.network_hdr_type = kind as u8;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
        }
        if let Some(smac) = self.smac {
            wc.smac = smac;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_SMAC;
        }
        if let Some(vlan_id) = self.vlan_id {
            wc.vlan_id = vlan_id;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN;
        }
        // CAST: C keeps flags in an `int`.
        wc.wc_flags = flags as kernel::ffi::c_int;
        wc
    }
}

/// Where `poll_cq` puts the completions of a kernel user.
///
/// # Invariants
///
/// `slots` points to `len` elements, `used` of them are written, `used <= len`.
pub struct WcSink<'a> {
    slots: *mut bindings::ib_wc,
    len: usize,
    used: usize,
    _slots: PhantomData<&'a mut bindings::ib_wc>,
}

impl<'a> WcSink<'a> {
    /// # Safety
    ///
    /// `slots` must be valid for writes of `len` elements for the lifetime `'a`.
    pub(super) unsafe fn new(slots: *mut bindings::ib_wc, len: usize) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            slots,
            len,
            used: 0,
            _slots: PhantomData,
        }
    }

    /// Nothing more can be pushed.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used >= self.len
    }

    /// How many completions were taken.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Hands over a completion of the queue pair that `qp` notifies.
    ///
    /// Returns whether it was taken, which is so unless the sink is full. A completion of a queue
    /// pair that has been destroyed is taken and thrown away, as the user does not expect it any
    /// more.
    pub fn push(&mut self, wc: &Wc, qp: &QpNotifier) -> bool {
        if self.is_full() {
            return false;
        }
        if let Some(qp) = NonNull::new(qp.qp()) {
            let slot = self.slots.wrapping_add(self.used);
            // SAFETY: By the type invariant `slots` has more than `used` elements.
            unsafe { slot.write(wc.to_kernel(qp)) };
            // INVARIANT: The element was written; `used < len`, so no overflow.
            self.used = self.used.wrapping_add(1);
        }
        true
    }
}
