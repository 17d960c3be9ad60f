// SPDX-License-Identifier: GPL-2.0

//! Network devices, and UDP datagrams that carry a protocol of the kernel's own.
//!
//! ```text
//!   UdpPort --receive--> RxPacket       Flow --build--> TxPacket --push--> TxQueue --send--> IP
//!      one per namespace                     one per connection: cached route and header template
//! ```
//!
//! **Namespaces.** Nothing here keeps a network namespace from being deleted. [`UdpPort`] and
//! [`Flow`] hold a reference on the loopback device of their namespace instead, which its deletion
//! waits for: whoever owns them drops them when the device that they were made for goes away
//! ([`NetdevEvent::Unregister`]), at once or soon after.
//!
//! Would become `rust/kernel/net`.

pub mod flow;
pub mod ip_header;
pub mod multicast;
pub mod netdev;
pub mod notifier;
mod route;
pub mod rtnl;
pub mod rx;
#[cfg(ferroce_kunit)]
pub(crate) mod testing;
#[cfg(ferroce_kunit)]
mod tests;
pub mod train;
pub mod tx;
pub mod udp_port;

pub use self::{
    flow::{
        Flow,
        FlowKey, //
    },
    ip_header::{
        IpHeader,
        OwnedIpHeader, //
    },
    multicast::MulticastAddr,
    netdev::{
        Name,
        Namespace,
        NetDevice, //
    },
    notifier::{
        NetdevEvent,
        NetdevEvents,
        Notifier, //
    },
    rtnl::Rtnl,
    rx::RxPacket,
    train::{
        SegmentPool,
        Segments,
        TxTrain, //
    },
    tx::{
        TxError,
        TxOutcome,
        TxPacket,
        TxQueue, //
    },
    udp_port::{
        UdpPort,
        UdpReceive, //
    },
};
