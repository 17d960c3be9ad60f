// SPDX-License-Identifier: GPL-2.0
//! `rdma link add` and `delete`, and the network interfaces below the devices.

use crate::{
    counters::PortCounter,
    device::Ferroce,
    listener::Listeners,
    port::Port, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    link::LinkDriver,
    net::{
        NetDevice,
        NetdevEvent,
        NetdevEvents, //
    },
    sync::WorkQueue,
    verbs::Device, //
};

/// What all devices share.
pub(crate) struct Shared {
    listeners: Arc<Listeners>,
    workqueue: Arc<WorkQueue>,
    pagers: Arc<WorkQueue>,
}

impl Shared {
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            listeners: Listeners::new()?,
            workqueue: WorkQueue::new(c"ferroce")?,
            pagers: WorkQueue::new_slow(c"ferroce_pager")?,
        })
    }
}

impl Drop for Shared {
    /// Waits for pages that are still on their way, of queue pairs and regions that are gone.
    fn drop(&mut self) {
        self.pagers.drain();
    }
}

impl LinkDriver for Ferroce {
    type Shared = Shared;

    fn new_link(shared: &Shared, name: &CStr, netdev: &NetDevice) -> Result {
        if netdev.is_vlan() {
            // Its addresses are GIDs of the device on the interface below.
            pr_err!("{name:?}: add the link on the interface below the VLAN\n");
            return Err(EPERM);
        }
        if Device::<Self>::by_netdev(netdev).is_some() {
            pr_err!("{name:?}: the interface has a device already\n");
            return Err(EEXIST);
        }
        let port = Port::open(
            netdev,
            shared.listeners.clone(),
            shared.workqueue.clone(),
            shared.pagers.clone(),
        )
        .inspect_err(|error| {
            if *error == EADDRINUSE {
                pr_err!("{name:?}: UDP port 4791 is taken in this network namespace\n");
            }
        })?;
        let vectors = rdma::num_possible_cpus();
        Device::<Self>::register(name, netdev, node_guid(netdev), vectors, Ok(port.clone()))
            .inspect_err(|_| port.close())?;
        Ok(())
    }
}

impl NetdevEvents for Ferroce {
    fn event(event: NetdevEvent, netdev: &NetDevice) {
        let Some(device) = Device::<Self>::by_netdev(netdev) else {
            return;
        };
        match event {
            NetdevEvent::Unregister => {
                // Now, since the namespace may end right after; the rest follows from a work item,
                // for it waits for users, who may need the lock that is held here.
                device.drv().close();
                device.unregister_queued();
            }
            NetdevEvent::Down => {
                device.drv().counters.add(PortCounter::LinkDowned, 1);
                device.report_port_state(netdev);
            }
            NetdevEvent::Up | NetdevEvent::Change => device.report_port_state(netdev),
            NetdevEvent::ChangeMtu => device.drv().set_mtu(netdev),
            NetdevEvent::ChangeAddr | NetdevEvent::ChangeName => {}
        }
    }
}

/// EUI-64 of the interface's MAC address (IBTA A17.3.2); random if it has none, as tunnels.
fn node_guid(netdev: &NetDevice) -> [u8; 8] {
    if netdev.addr_len() != 6 {
        let [a, b, c, d] = rdma::time::random_u32().to_ne_bytes();
        let [e, f, g, h] = rdma::time::random_u32().to_ne_bytes();
        // Locally administered, no group.
        return [a & 0xfc | 0x02, b, c, d, e, f, g, h];
    }
    let [a, b, c, d, e, f] = netdev.mac();
    [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
}
