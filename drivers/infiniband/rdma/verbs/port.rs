// SPDX-License-Identifier: GPL-2.0

//! Ports: what a driver says about its only port, and what users change in it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/port.rs`.

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// Number of the only port.
pub const PORT: u32 = 1;

/// Core capabilities of a port that speaks RoCE over UDP.
pub const CORE_ROCE_UDP_ENCAP: u32 = bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;

/// Logical state of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum PortState {
    /// No link.
    #[default]
    Down = bindings::ib_port_state_IB_PORT_DOWN,
    /// Link up, not yet configured.
    Init = bindings::ib_port_state_IB_PORT_INIT,
    /// Configured, not yet active.
    Armed = bindings::ib_port_state_IB_PORT_ARMED,
    /// In operation.
    Active = bindings::ib_port_state_IB_PORT_ACTIVE,
}

/// Physical state of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum PhysState {
    /// Looking for a link.
    Polling = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
    /// Switched off.
    #[default]
    Disabled = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
    /// Link up.
    LinkUp = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
}

/// Attributes of a port; C: `struct ib_port_attr`.
///
/// MTUs are in the code of `enum ib_mtu`: 1 for 256 bytes to 5 for 4096.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    missing_docs,
    reason = "the names are C's, and the InfiniBand specification's"
)]
pub struct PortAttr {
    pub state: PortState,
    pub phys_state: PhysState,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub max_vl_num: u8,
    pub active_width: u8,
    pub active_speed: u16,
}

/// What `modify_port` is to do; C: `struct ib_port_modify` and its mask.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortModify {
    /// Capability flags to set.
    pub set_port_cap_mask: u32,
    /// Capability flags to clear.
    pub clr_port_cap_mask: u32,
    /// Take the port down.
    pub shutdown: bool,
    /// Reset the counter of Q_Key violations.
    pub reset_qkey_cntr: bool,
}

/// The thunks for ports.
pub(super) struct VTable<D: Driver>(core::marker::PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.query_port`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_query_port`: `ib` is a live device of this driver, `attr` valid.
    pub(super) unsafe extern "C" fn query_port(
        ib: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        from_result(|| {
            if port != PORT {
                return Err(EINVAL);
            }
            // SAFETY: `ib` is a live device of this driver by the safety requirement.
            let device = unsafe { Device::<D>::from_raw(ib) };
            let mut values = PortAttr::default();
            D::query_port(device, &mut values)?;
            // SAFETY: `attr` is valid and exclusive by the safety requirement.
            let attr = unsafe { &mut *attr };
            attr.state = values.state as u32;
            // CAST: The states are small numbers.
            attr.phys_state = values.phys_state as u8;
            attr.max_mtu = values.max_mtu;
            attr.active_mtu = values.active_mtu;
            attr.gid_tbl_len = c_int::try_from(values.gid_tbl_len)?;
            attr.pkey_tbl_len = values.pkey_tbl_len;
            attr.port_cap_flags = values.port_cap_flags;
            attr.max_msg_sz = values.max_msg_sz;
            attr.bad_pkey_cntr = values.bad_pkey_cntr;
            attr.qkey_viol_cntr = values.qkey_viol_cntr;
            attr.max_vl_num = values.max_vl_num;
            attr.active_width = values.active_width;
            attr.active_speed = values.active_speed;
            Ok(0)
        })
    }

    /// `ib_device_ops.modify_port`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_modify_port`: `ib` is a live device of this driver; `modify` is
    /// valid, or null if `mask` needs nothing from it.
    pub(super) unsafe extern "C" fn modify_port(
        ib: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        modify: *mut bindings::ib_port_modify,
    ) -> c_int {
        from_result(|| {
            if port != PORT {
                return Err(EINVAL);
            }
            // SAFETY: `ib` is a live device of this driver by the safety requirement.
            let device = unsafe { Device::<D>::from_raw(ib) };
            // CAST: The mask has the bits of `enum ib_port_modify_flags`.
            let mask = mask as u32;
            let mut change = PortModify {
                shutdown: mask & bindings::ib_port_modify_flags_IB_PORT_SHUTDOWN != 0,
                reset_qkey_cntr: mask & bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR != 0,
                ..PortModify::default()
            };
            // SAFETY: `modify` is valid or null by the safety requirement.
            if let Some(modify) = unsafe { modify.as_ref() } {
                change.set_port_cap_mask = modify.set_port_cap_mask;
                change.clr_port_cap_mask = modify.clr_port_cap_mask;
            }
            D::modify_port(device, &change)?;
            Ok(0)
        })
    }

    /// `ib_device_ops.query_pkey`: one P_Key, the default one.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_query_pkey`: `pkey` is valid for a write.
    pub(super) unsafe extern "C" fn query_pkey(
        _ib: *mut bindings::ib_device,
        _port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        if index != 0 {
            return EINVAL.to_errno();
        }
        // SAFETY: `pkey` is valid by the safety requirement.
        unsafe { pkey.write(0xffff) };
        0
    }

    /// `ib_device_ops.get_link_layer`.
    ///
    /// # Safety
    ///
    /// None: the arguments are not used.
    pub(super) unsafe extern "C" fn get_link_layer(
        _ib: *mut bindings::ib_device,
        _port: u32,
    ) -> bindings::rdma_link_layer {
        bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    /// `ib_device_ops.get_port_immutable`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:setup_port_data`: `immutable` is valid and exclusive.
    pub(super) unsafe extern "C" fn get_port_immutable(
        _ib: *mut bindings::ib_device,
        port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        if port != PORT {
            return EINVAL.to_errno();
        }
        // SAFETY: `immutable` is valid and exclusive by the safety requirement.
        let immutable = unsafe { &mut *immutable };
        immutable.core_cap_flags = D::PORT_CORE_CAPS;
        immutable.pkey_tbl_len = 1;
        // CAST: The driver's constant; C keeps it as `int`.
        immutable.gid_tbl_len = D::GID_TABLE_LEN as c_int;
        // `IB_MGMT_MAD_SIZE`.
        immutable.max_mad_size = 256;
        0
    }
}
