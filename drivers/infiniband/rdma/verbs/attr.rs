// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and of queue pairs: plain values.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/attr.rs`.
//!
//! The names are those of C, and those are the InfiniBand specification's.
#![expect(
    missing_docs,
    reason = "the names are C's, and the InfiniBand specification's"
)]

use super::ah::AddressVector;
use crate::bindings;
use kernel::prelude::*;

/// Accesses that a memory region or a queue pair allows; C: `enum ib_access_flags`.
pub mod access {
    use crate::bindings;

    pub const LOCAL_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    pub const REMOTE_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
    pub const REMOTE_READ: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ;
    pub const REMOTE_ATOMIC: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
    pub const MW_BIND: u32 = bindings::ib_access_flags_IB_ACCESS_MW_BIND;
    pub const ZERO_BASED: u32 = bindings::ib_access_flags_IB_ZERO_BASED;
    pub const ON_DEMAND: u32 = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND;
    pub const FLUSH_GLOBAL: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL;
    pub const FLUSH_PERSISTENT: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT;
    pub const HUGETLB: u32 = bindings::ib_access_flags_IB_ACCESS_HUGETLB;
    pub const RELAXED_ORDERING: u32 = bindings::ib_access_flags_IB_ACCESS_RELAXED_ORDERING;
    /// Flags that a driver may ignore.
    pub const OPTIONAL: u32 = bindings::ib_access_flags_IB_ACCESS_OPTIONAL;
}

/// Capabilities of a device; C: `enum ib_device_cap_flags`.
pub mod device_cap {
    use crate::bindings;

    pub const BAD_PKEY_CNTR: u64 = bindings::ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR as u64;
    pub const BAD_QKEY_CNTR: u64 = bindings::ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR as u64;
    pub const CHANGE_PHY_PORT: u64 = bindings::ib_device_cap_flags_IB_DEVICE_CHANGE_PHY_PORT as u64;
    pub const UD_AV_PORT_ENFORCE: u64 =
        bindings::ib_device_cap_flags_IB_DEVICE_UD_AV_PORT_ENFORCE as u64;
    pub const PORT_ACTIVE_EVENT: u64 =
        bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT as u64;
    pub const SYS_IMAGE_GUID: u64 = bindings::ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID as u64;
    pub const RC_RNR_NAK_GEN: u64 = bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64;
    pub const SRQ_RESIZE: u64 = bindings::ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE as u64;
    pub const MEM_WINDOW: u64 = bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64;
    pub const MEM_MGT_EXTENSIONS: u64 =
        bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64;
    pub const XRC: u64 = bindings::ib_device_cap_flags_IB_DEVICE_XRC as u64;
    pub const FLUSH_GLOBAL: u64 = bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL as u64;
    /// FLUSH that makes data persistent.
    pub const FLUSH_PERSISTENT: u64 =
        bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_PERSISTENT as u64;
    pub const ATOMIC_WRITE: u64 = bindings::ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE as u64;
    pub const MEM_WINDOW_TYPE_2B: u64 =
        bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64;
}

/// Towards what atomic operations are atomic; C: `enum ib_atomic_cap`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum AtomicCap {
    /// There are none.
    #[default]
    None = bindings::ib_atomic_cap_IB_ATOMIC_NONE,
    /// Towards each other within this device.
    Hca = bindings::ib_atomic_cap_IB_ATOMIC_HCA,
    /// Towards everything, the CPUs included.
    Glob = bindings::ib_atomic_cap_IB_ATOMIC_GLOB,
}

/// What works on memory that is paged on demand; C: `enum ib_odp_transport_cap_bits`.
pub mod odp_cap {
    use crate::bindings;

    pub const SEND: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND;
    pub const RECV: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV;
    pub const WRITE: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE;
    pub const READ: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ;
    pub const ATOMIC: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC;
    pub const SRQ_RECV: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SRQ_RECV;
    pub const FLUSH: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH;
    pub const ATOMIC_WRITE: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC_WRITE;
}

/// What works on memory that is paged on demand, of [`odp_cap`]; C: `struct ib_odp_caps`.
///
/// That the device has such memory, of the whole address space too, goes with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct OdpCaps {
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
    pub xrc: u32,
}

/// Attributes of a device; C: `struct ib_device_attr`.
///
/// What is not here is zero; that users may delete the device is set for all devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceAttr {
    pub fw_ver: u64,
    pub sys_image_guid: [u8; 8],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    /// Of [`device_cap`].
    pub device_cap_flags: u64,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_mw: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_fast_reg_page_list_len: u32,
    pub max_pkeys: u16,
    /// Memory is paged on demand.
    pub odp: Option<OdpCaps>,
    pub local_ca_ack_delay: u8,
}

impl DeviceAttr {
    /// Writes the values to `attr`, which is zero.
    pub(super) fn write_to(&self, attr: &mut bindings::ib_device_attr) {
        attr.fw_ver = self.fw_ver;
        // Kept in network byte order.
        attr.sys_image_guid = u64::from_ne_bytes(self.sys_image_guid);
        attr.max_mr_size = self.max_mr_size;
        attr.page_size_cap = self.page_size_cap;
        attr.vendor_id = self.vendor_id;
        attr.vendor_part_id = self.vendor_part_id;
        attr.hw_ver = self.hw_ver;
        attr.max_qp = self.max_qp;
        attr.max_qp_wr = self.max_qp_wr;
        attr.device_cap_flags = self.device_cap_flags;
        attr.kernel_cap_flags = u64::from(bindings::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG);
        if let Some(odp) = self.odp {
            attr.kernel_cap_flags |= u64::from(bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING);
            attr.odp_caps.general_caps =
                u64::from(bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT)
                    | u64::from(bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT);
            attr.odp_caps.per_transport_caps.rc_odp_caps = odp.rc;
            attr.odp_caps.per_transport_caps.uc_odp_caps = odp.uc;
            attr.odp_caps.per_transport_caps.ud_odp_caps = odp.ud;
            attr.odp_caps.per_transport_caps.xrc_odp_caps = odp.xrc;
        }
        attr.max_send_sge = self.max_send_sge;
        attr.max_recv_sge = self.max_recv_sge;
        attr.max_sge_rd = self.max_sge_rd;
        attr.max_cq = self.max_cq;
        attr.max_cqe = self.max_cqe;
        attr.max_mr = self.max_mr;
        attr.max_pd = self.max_pd;
        attr.max_qp_rd_atom = self.max_qp_rd_atom;
        attr.max_res_rd_atom = self.max_res_rd_atom;
        attr.max_qp_init_rd_atom = self.max_qp_init_rd_atom;
        attr.atomic_cap = self.atomic_cap as u32;
        attr.max_mw = self.max_mw;
        attr.max_mcast_grp = self.max_mcast_grp;
        attr.max_mcast_qp_attach = self.max_mcast_qp_attach;
        attr.max_total_mcast_qp_attach = self.max_total_mcast_qp_attach;
        attr.max_ah = self.max_ah;
        attr.max_srq = self.max_srq;
        attr.max_srq_wr = self.max_srq_wr;
        attr.max_srq_sge = self.max_srq_sge;
        attr.max_fast_reg_page_list_len = self.max_fast_reg_page_list_len;
        attr.max_pkeys = self.max_pkeys;
        attr.local_ca_ack_delay = self.local_ca_ack_delay;
    }
}

/// Type of a queue pair; C: `enum ib_qp_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpKind {
    Smi,
    Gsi,
    Rc,
    Uc,
    Ud,
    XrcIni,
    XrcTgt,
    /// Any other, with C's number.
    Other(u32),
}

impl QpKind {
    pub(super) fn from_raw(kind: bindings::ib_qp_type) -> Self {
        match kind {
            bindings::ib_qp_type_IB_QPT_SMI => Self::Smi,
            bindings::ib_qp_type_IB_QPT_GSI => Self::Gsi,
            bindings::ib_qp_type_IB_QPT_RC => Self::Rc,
            bindings::ib_qp_type_IB_QPT_UC => Self::Uc,
            bindings::ib_qp_type_IB_QPT_UD => Self::Ud,
            bindings::ib_qp_type_IB_QPT_XRC_INI => Self::XrcIni,
            bindings::ib_qp_type_IB_QPT_XRC_TGT => Self::XrcTgt,
            other => Self::Other(other),
        }
    }
}

/// State of a queue pair; C: `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum QpState {
    #[default]
    Reset = bindings::ib_qp_state_IB_QPS_RESET,
    Init = bindings::ib_qp_state_IB_QPS_INIT,
    Rtr = bindings::ib_qp_state_IB_QPS_RTR,
    Rts = bindings::ib_qp_state_IB_QPS_RTS,
    Sqd = bindings::ib_qp_state_IB_QPS_SQD,
    Sqe = bindings::ib_qp_state_IB_QPS_SQE,
    Err = bindings::ib_qp_state_IB_QPS_ERR,
}

impl TryFrom<u32> for QpState {
    type Error = Error;

    fn try_from(state: u32) -> Result<Self> {
        Ok(match state {
            bindings::ib_qp_state_IB_QPS_RESET => Self::Reset,
            bindings::ib_qp_state_IB_QPS_INIT => Self::Init,
            bindings::ib_qp_state_IB_QPS_RTR => Self::Rtr,
            bindings::ib_qp_state_IB_QPS_RTS => Self::Rts,
            bindings::ib_qp_state_IB_QPS_SQD => Self::Sqd,
            bindings::ib_qp_state_IB_QPS_SQE => Self::Sqe,
            bindings::ib_qp_state_IB_QPS_ERR => Self::Err,
            _ => return Err(EINVAL),
        })
    }
}

/// Which attributes a `modify_qp` or `query_qp` is about; C: `enum ib_qp_attr_mask`.
pub mod mask {
    use crate::bindings;

    pub const STATE: u32 = bindings::ib_qp_attr_mask_IB_QP_STATE;
    pub const CUR_STATE: u32 = bindings::ib_qp_attr_mask_IB_QP_CUR_STATE;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = bindings::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY;
    pub const ACCESS_FLAGS: u32 = bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS;
    pub const PKEY_INDEX: u32 = bindings::ib_qp_attr_mask_IB_QP_PKEY_INDEX;
    pub const PORT: u32 = bindings::ib_qp_attr_mask_IB_QP_PORT;
    pub const QKEY: u32 = bindings::ib_qp_attr_mask_IB_QP_QKEY;
    pub const AV: u32 = bindings::ib_qp_attr_mask_IB_QP_AV;
    pub const PATH_MTU: u32 = bindings::ib_qp_attr_mask_IB_QP_PATH_MTU;
    pub const TIMEOUT: u32 = bindings::ib_qp_attr_mask_IB_QP_TIMEOUT;
    pub const RETRY_CNT: u32 = bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT;
    pub const RNR_RETRY: u32 = bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY;
    pub const RQ_PSN: u32 = bindings::ib_qp_attr_mask_IB_QP_RQ_PSN;
    pub const MAX_QP_RD_ATOMIC: u32 = bindings::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC;
    pub const ALT_PATH: u32 = bindings::ib_qp_attr_mask_IB_QP_ALT_PATH;
    pub const MIN_RNR_TIMER: u32 = bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER;
    pub const SQ_PSN: u32 = bindings::ib_qp_attr_mask_IB_QP_SQ_PSN;
    pub const MAX_DEST_RD_ATOMIC: u32 = bindings::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC;
    pub const PATH_MIG_STATE: u32 = bindings::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE;
    pub const CAP: u32 = bindings::ib_qp_attr_mask_IB_QP_CAP;
    pub const DEST_QPN: u32 = bindings::ib_qp_attr_mask_IB_QP_DEST_QPN;
    pub const RATE_LIMIT: u32 = bindings::ib_qp_attr_mask_IB_QP_RATE_LIMIT;
    /// All that every driver has to know.
    pub const STANDARD: u32 = bindings::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS;
}

/// The state of path migration of a queue pair that has one path; C: `enum ib_mig_state`.
pub const PATH_MIGRATED: u32 = bindings::ib_mig_state_IB_MIG_MIGRATED;

/// Sizes of the queues of a queue pair; C: `struct ib_qp_cap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// In bytes.
    pub max_inline_data: u32,
}

impl QpCaps {
    pub(super) fn from_raw(cap: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    pub(super) fn write_to(&self, cap: &mut bindings::ib_qp_cap) {
        cap.max_send_wr = self.max_send_wr;
        cap.max_recv_wr = self.max_recv_wr;
        cap.max_send_sge = self.max_send_sge;
        cap.max_recv_sge = self.max_recv_sge;
        cap.max_inline_data = self.max_inline_data;
    }
}

/// Attributes of a queue pair; C: `struct ib_qp_attr`.
///
/// In `modify_qp` only those in the mask mean something. Numbers come as the user gave them: nothing
/// is checked but what an enum here cannot express.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    pub state: QpState,
    pub cur_state: QpState,
    /// Code of `enum ib_mtu`: 1 for 256 bytes to 5 for 4096.
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qpn: u32,
    /// Of [`access`].
    pub access_flags: u32,
    pub caps: QpCaps,
    pub av: AddressVector,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rate_limit: u32,
}

impl QpAttr {
    /// Reads the attributes in `mask`.
    ///
    /// # Safety
    ///
    /// If `mask` has [`mask::AV`], `attr.ah_attr` must meet the requirement of
    /// [`AddressVector::from_raw`].
    pub(super) unsafe fn from_raw(attr: &bindings::ib_qp_attr, mask: u32) -> Result<Self> {
        let mut this = Self {
            path_mtu: attr.path_mtu,
            path_mig_state: attr.path_mig_state,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qpn: attr.dest_qp_num,
            // CAST: C keeps flags in an `int`.
            access_flags: attr.qp_access_flags as u32,
            caps: QpCaps::from_raw(&attr.cap),
            pkey_index: attr.pkey_index,
            en_sqd_async_notify: attr.en_sqd_async_notify != 0,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            rate_limit: attr.rate_limit,
            ..Self::default()
        };
        if mask & mask::STATE != 0 {
            this.state = attr.qp_state.try_into()?;
        }
        if mask & mask::CUR_STATE != 0 {
            this.cur_state = attr.cur_qp_state.try_into()?;
        }
        if mask & mask::AV != 0 {
            // SAFETY: By the safety requirement.
            this.av = unsafe { AddressVector::from_raw(&attr.ah_attr) }?;
        }
        Ok(this)
    }

    /// Writes all attributes.
    pub(super) fn write_to(&self, attr: &mut bindings::ib_qp_attr) {
        *attr = bindings::ib_qp_attr {
            qp_state: self.state as u32,
            cur_qp_state: self.cur_state as u32,
            path_mtu: self.path_mtu,
            path_mig_state: self.path_mig_state,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qpn,
            // CAST: C keeps flags in an `int`.
            qp_access_flags: self.access_flags as c_int,
            pkey_index: self.pkey_index,
            en_sqd_async_notify: self.en_sqd_async_notify.into(),
            sq_draining: self.sq_draining.into(),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            rate_limit: self.rate_limit,
            ah_attr: self.av.to_raw(),
            ..pin_init::zeroed()
        };
        self.caps.write_to(&mut attr.cap);
    }
}
