// SPDX-License-Identifier: GPL-2.0
//! The port of a device: its network interface, its objects by number, its counters.
//!
//! # Lifetime
//!
//! Counted. The device holds one reference, each QP another. The network interface is given up as
//! soon as the device is unregistered ([`Port::close`]), whoever else still holds the port.

use crate::{
    address::AddressHandle,
    counters::Counters,
    device::limits,
    groups::Groups,
    listener::{
        Listener,
        Listeners, //
    },
    qp::QueuePair,
    region::Memory,
    xrc::XrcQueue, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    net::{
        Flow,
        FlowKey,
        MulticastAddr,
        NetDevice,
        SegmentPool, //
    },
    sync::{
        IdPool,
        RcuMap,
        SpinLockIrqSave,
        WorkQueue, //
    },
    verbs::AddressVector, //
};
use roce::{
    types::{
        Mtu,
        Qpn, //
    },
    wire::{
        ICRC_LEN,
        MAX_PAYLOAD_HEADER_LEN, //
    },
};

/// UDP source ports of RoCEv2 start here (IBTA A17.4.4).
const SOURCE_PORT_BASE: u16 = 0xc000;

/// The port of a device.
#[pin_data]
pub(crate) struct Port {
    /// Queue pairs by number.
    #[pin]
    pub(crate) qps: RcuMap<QueuePair>,
    /// Registered memory by the index in its keys.
    #[pin]
    pub(crate) regions: RcuMap<Memory>,
    /// Address handles of user space by number.
    #[pin]
    pub(crate) addresses: RcuMap<AddressHandle>,
    /// Shared receive queues of extended reliable connections by number.
    #[pin]
    pub(crate) xrc_queues: RcuMap<XrcQueue>,
    /// Multicast groups that queue pairs are attached to.
    #[pin]
    pub(crate) groups: Groups,
    /// Numbers of QPs. They start anywhere and come round again after all others, so that late
    /// packets, and peers whose connection manager still waits for them (TimeWait, IBTA 12.9.8.4),
    /// do not meet a new owner; not even that of a device that was made anew.
    #[pin]
    pub(crate) qp_numbers: IdPool,
    #[pin]
    pub(crate) region_numbers: IdPool,
    #[pin]
    pub(crate) address_numbers: IdPool,
    pub(crate) srq_numbers: Arc<IdPool>,
    pub(crate) cq_numbers: Arc<IdPool>,
    pub(crate) pd_numbers: Arc<IdPool>,
    pub(crate) xrcd_numbers: Arc<IdPool>,
    pub(crate) counters: Counters,
    pub(crate) workqueue: Arc<WorkQueue>,
    /// For work that waits for pages of programs.
    pub(crate) pagers: Arc<WorkQueue>,
    /// Memory for the packets of trains.
    pub(crate) segments: SegmentPool,
    ifindex: u32,
    /// See [`Self::next_serial`].
    serial: Atomic<u64>,
    /// Code of the MTU that the interface allows.
    mtu: Atomic<u32>,
    /// Packets carry an ICRC, and only those with the right one are taken.
    icrc: Atomic<bool>,
    /// Packets from one QP to another of this port are not built: see [`crate::qp`].
    direct: Atomic<bool>,
    /// What the managers on this host say that the port can do (`PortInfo:CapabilityMask`).
    capabilities: Atomic<u32>,
    listeners: Arc<Listeners>,
    #[pin]
    netdev: SpinLockIrqSave<Option<ARef<NetDevice>>>,
    #[pin]
    listener: Mutex<Option<Arc<Listener>>>,
}

impl Port {
    /// A port on `netdev` that receives whatever comes to the RoCEv2 UDP port there.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if somebody else has the UDP port in this network namespace, `ENOMEM`.
    pub(crate) fn open(
        netdev: &NetDevice,
        listeners: Arc<Listeners>,
        workqueue: Arc<WorkQueue>,
        pagers: Arc<WorkQueue>,
    ) -> Result<Arc<Self>> {
        let port = Arc::pin_init(
            try_pin_init!(Self {
                qps <- RcuMap::new(10),
                regions <- RcuMap::new(10),
                addresses <- RcuMap::new(6),
                xrc_queues <- RcuMap::new(6),
                groups <- Groups::new(),
                // QP1 has a number of its own.
                qp_numbers <- IdPool::starting_at(
                    Qpn::new(rdma::time::random_u32()).get(),
                    limits::objects(limits::MAX_QP).saturating_sub(1),
                ),
                region_numbers <- IdPool::new(limits::objects(limits::MAX_MR)),
                address_numbers <- IdPool::new(limits::objects(limits::MAX_AH)),
                srq_numbers: IdPool::new_shared(limits::objects(limits::MAX_SRQ))?,
                cq_numbers: IdPool::new_shared(limits::objects(limits::MAX_CQ))?,
                pd_numbers: IdPool::new_shared(limits::objects(limits::MAX_PD))?,
                xrcd_numbers: IdPool::new_shared(limits::objects(limits::MAX_XRCD))?,
                counters: Counters::new()?,
                workqueue,
                pagers,
                segments: SegmentPool::new()?,
                ifindex: netdev.ifindex(),
                serial: Atomic::new(0),
                mtu: Atomic::new(roce_mtu(netdev.mtu()).code()),
                icrc: Atomic::new(true),
                direct: Atomic::new(true),
                capabilities: Atomic::new(0),
                listeners,
                netdev <- rdma::new_spinlock_irqsave!(Some(netdev.into()), "ferroce_netdev"),
                listener <- new_mutex!(None, "ferroce_listener"),
            }? Error),
            GFP_KERNEL,
        )?;
        let listener = port.listeners.join(netdev)?;
        if let Err(error) = listener.insert(port.ifindex, port.clone()) {
            port.listeners.leave(listener);
            return Err(error);
        }
        *port.listener.lock() = Some(listener);
        Ok(port)
    }

    /// Stops receiving and gives the network interface up. Done once, later calls do nothing.
    ///
    /// # Context
    ///
    /// Process context, sleeps; the RTNL may be held.
    pub(crate) fn close(&self) {
        let listener = self.listener.lock().take();
        if let Some(listener) = listener {
            listener.remove(self.ifindex);
            self.listeners.leave(listener);
        }
        let netdev = self.netdev.lock().take();
        drop(netdev);
    }

    /// A number that no other object of this port has had: for [`crate::region::Accessor`] and
    /// [`crate::xrc::XrcName`].
    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed)
    }

    /// The network interface, unless the port is closed.
    pub(crate) fn netdev(&self) -> Option<ARef<NetDevice>> {
        self.netdev.lock().clone()
    }

    /// The largest MTU whose packets fit the interface.
    pub(crate) fn mtu(&self) -> Mtu {
        Mtu::from_code(self.mtu.load(Relaxed)).unwrap_or(Mtu::M256)
    }

    /// Whether packets carry an ICRC, and only those with the right one are taken.
    pub(crate) fn uses_icrc(&self) -> bool {
        self.icrc.load(Relaxed)
    }

    /// Switches the ICRC on or off.
    pub(crate) fn use_icrc(&self, on: bool) {
        self.icrc.store(on, Relaxed);
    }

    /// Whether QPs of this port reach each other without packets.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    /// Switches that on or off.
    pub(crate) fn set_direct(&self, on: bool) {
        self.direct.store(on, Relaxed);
    }

    /// Whether `flow` leads to this port itself.
    pub(crate) fn is_reached_by(&self, flow: &mut Flow) -> bool {
        flow.leads_to(self.ifindex)
    }

    /// What the port can do, as its managers say.
    pub(crate) fn capabilities(&self) -> u32 {
        self.capabilities.load(Relaxed)
    }

    /// A manager on this host, such as the connection manager, begins or ends its work.
    pub(crate) fn change_capabilities(&self, set: u32, clear: u32) {
        let mut old = self.capabilities();
        while let Err(now) = self
            .capabilities
            .cmpxchg(old, (old | set) & !clear, Relaxed)
        {
            old = now;
        }
    }

    /// The MTU of `netdev`, the interface of this port, has changed.
    pub(crate) fn set_mtu(&self, netdev: &NetDevice) {
        self.mtu.store(roce_mtu(netdev.mtu()).code(), Relaxed);
    }

    /// The way from QP `local` to QP `remote` at the address in `av`.
    ///
    /// # Context
    ///
    /// Any with interrupts on.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the port is closed.
    pub(crate) fn flow(&self, av: &AddressVector, local: Qpn, remote: Qpn) -> Result<Flow> {
        let netdev = self.netdev().ok_or(ENODEV)?;
        let hop_limit = match av.hop_limit {
            // To InfiniBand this is what does not leave the subnet, to IP what does not leave the host.
            0 if MulticastAddr::from_mapped(&av.dgid).is_some() => 1,
            limit => limit,
        };
        Flow::new(
            &netdev,
            FlowKey {
                v4: av.v4,
                saddr: av.sgid,
                daddr: av.dgid,
                sport: source_port(av.flow_label, local, remote),
                dport: roce::wire::UDP_PORT,
                tclass: av.traffic_class,
                hop_limit,
                flow_label: av.flow_label,
                oif: av.ifindex,
            },
        )
    }
}

/// The largest MTU whose packets fit an interface with `mtu` bytes: IPv6 and UDP, BTH, the longest
/// extension headers and the ICRC have to go with the payload.
fn roce_mtu(mtu: u32) -> Mtu {
    const OVERHEAD: u32 = (40 + 8 + MAX_PAYLOAD_HEADER_LEN + ICRC_LEN) as u32;
    let room = mtu.saturating_sub(OVERHEAD);
    for code in (1..=5).rev() {
        if let Some(mtu) = Mtu::from_code(code) {
            if mtu.bytes() <= room {
                return mtu;
            }
        }
    }
    Mtu::M256
}

/// UDP source port of a flow, so that routers spread flows over paths: from the flow label if
/// there is one, else from the QP numbers, folded as the RDMA core does it for hardware
/// (`rdma_get_udp_sport` in `include/rdma/ib_verbs.h`).
fn source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = if flow_label != 0 {
        flow_label
    } else {
        let mut v = u64::from(local.get()).wrapping_mul(u64::from(remote.get()));
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    };
    let folded = (label & 0x3fff) ^ (label >> 14 & 0x3f);
    SOURCE_PORT_BASE | folded as u16
}
