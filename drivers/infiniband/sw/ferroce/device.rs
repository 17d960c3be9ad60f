// SPDX-License-Identifier: GPL-2.0
//! The device: what it says of itself and of its port.

use kernel::prelude::*;
use rdma::verbs::{
    device_cap,
    odp_cap,
    AtomicCap,
    Device,
    DeviceAttr,
    OdpCaps,
    PhysState,
    PortAttr,
    PortState, //
};
use roce::{
    qp::attr::MAX_RD_ATOMIC,
    types::Mtu, //
};

/// The driver, as the RDMA abstractions know it.
pub(crate) enum Ferroce {}

/// Limits that the device reports and keeps.
pub(crate) mod limits {
    pub(crate) const MAX_QP: u32 = 1 << 20;
    /// One slot of a ring stays empty: this is what fills one.
    pub(crate) const MAX_QP_WR: u32 = (1 << 20) - 1;
    pub(crate) const MAX_SGE: u32 = 32;
    pub(crate) const MAX_INLINE: u32 = 512;
    pub(crate) const MAX_CQ: u32 = 1 << 20;
    pub(crate) const MAX_CQE: u32 = (1 << 20) - 1;
    pub(crate) const MAX_SRQ: u32 = 1 << 20;
    pub(crate) const MAX_SRQ_WR: u32 = (1 << 20) - 1;
    pub(crate) const MAX_MR: u32 = 1 << 20;
    /// Pages of a region for fast registration.
    pub(crate) const MAX_FAST_PAGES: u32 = 512;
    pub(crate) const MAX_PD: u32 = 1 << 20;
    pub(crate) const MAX_XRCD: u32 = 1 << 20;
    pub(crate) const MAX_AH: u32 = 1 << 16;
    pub(crate) const MAX_GROUPS: u32 = 1 << 10;
    pub(crate) const MAX_GROUP_MEMBERS: u32 = 1 << 8;
    /// Members of all groups together.
    pub(crate) const MAX_ATTACHED: u32 = 1 << 13;
    pub(crate) const GID_TABLE: u32 = 1024;

    /// How many objects of a kind a device may have: `most`, or fewer if the module was loaded so.
    pub(crate) fn objects(most: u32) -> u32 {
        most.min(crate::module_parameters::max_objects.value())
    }
}

/// What the device reports of itself.
pub(crate) fn attr(device: &Device<Ferroce>) -> DeviceAttr {
    DeviceAttr {
        sys_image_guid: device.node_guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: 0x00ff_ffff,
        max_qp: limits::objects(limits::MAX_QP),
        max_qp_wr: limits::MAX_QP_WR,
        device_cap_flags: device_cap::PORT_ACTIVE_EVENT
            | device_cap::SYS_IMAGE_GUID
            | device_cap::RC_RNR_NAK_GEN
            | device_cap::SRQ_RESIZE
            | device_cap::XRC
            | device_cap::FLUSH_GLOBAL
            | device_cap::FLUSH_PERSISTENT
            | device_cap::ATOMIC_WRITE
            | device_cap::MEM_MGT_EXTENSIONS
            | device_cap::MEM_WINDOW
            | device_cap::MEM_WINDOW_TYPE_2B,
        max_send_sge: limits::MAX_SGE,
        max_recv_sge: limits::MAX_SGE,
        max_sge_rd: limits::MAX_SGE,
        max_cq: limits::objects(limits::MAX_CQ),
        max_cqe: limits::MAX_CQE,
        max_mr: limits::objects(limits::MAX_MR),
        max_mw: limits::objects(limits::MAX_MR),
        odp: Some(odp_caps()),
        max_fast_reg_page_list_len: limits::MAX_FAST_PAGES,
        max_pd: limits::objects(limits::MAX_PD),
        max_qp_rd_atom: u32::from(MAX_RD_ATOMIC),
        max_res_rd_atom: u32::from(MAX_RD_ATOMIC).saturating_mul(limits::objects(limits::MAX_QP)),
        max_qp_init_rd_atom: u32::from(MAX_RD_ATOMIC),
        atomic_cap: AtomicCap::Glob,
        max_mcast_grp: limits::MAX_GROUPS,
        max_mcast_qp_attach: limits::MAX_GROUP_MEMBERS,
        max_total_mcast_qp_attach: limits::MAX_ATTACHED,
        max_ah: limits::objects(limits::MAX_AH),
        max_srq: limits::objects(limits::MAX_SRQ),
        max_srq_wr: limits::MAX_SRQ_WR,
        max_srq_sge: limits::MAX_SGE,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        ..DeviceAttr::default()
    }
}

/// What works on memory that is paged on demand: whatever a transport has.
fn odp_caps() -> OdpCaps {
    let messages = odp_cap::SEND | odp_cap::RECV | odp_cap::SRQ_RECV;
    let connected = messages
        | odp_cap::WRITE
        | odp_cap::READ
        | odp_cap::ATOMIC
        | odp_cap::FLUSH
        | odp_cap::ATOMIC_WRITE;
    OdpCaps {
        rc: connected,
        uc: messages | odp_cap::WRITE,
        ud: messages,
        xrc: connected,
    }
}

/// What the port reports of itself now.
///
/// # Errors
///
/// `ENODEV` once the network interface is gone.
pub(crate) fn port_attr(device: &Device<Ferroce>) -> Result<PortAttr> {
    let port = device.drv();
    let netdev = port.netdev().ok_or(ENODEV)?;
    // Interfaces that do not know their speed: one lane, the slowest there is.
    let (active_width, active_speed) = device.eth_speed().unwrap_or((1, 1));
    let (state, phys_state) = if netdev.is_up() && netdev.carrier() {
        (PortState::Active, PhysState::LinkUp)
    } else if netdev.is_up() {
        (PortState::Down, PhysState::Polling)
    } else {
        (PortState::Down, PhysState::Disabled)
    };
    Ok(PortAttr {
        state,
        phys_state,
        max_mtu: Mtu::M4096.code(),
        active_mtu: port.mtu().code(),
        gid_tbl_len: limits::GID_TABLE,
        pkey_tbl_len: 1,
        port_cap_flags: port.capabilities(),
        max_msg_sz: crate::qp::MAX_MESSAGE,
        max_vl_num: 1,
        active_width,
        active_speed,
        ..PortAttr::default()
    })
}
