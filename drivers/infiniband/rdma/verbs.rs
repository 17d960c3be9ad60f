// SPDX-License-Identifier: GPL-2.0

//! Verbs: devices, and the objects that users create in them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma.rs`.
//!
//! A driver implements [`Driver`] for a type of its own and registers [`Device`]s of it, usually when
//! a [`LinkOps`](crate::link::LinkOps) asks for them. Objects have C's part at the start and the
//! driver's part behind it (`drv()`); see [`driver`](Driver) for who creates and drops what.

mod ah;
mod attr;
mod attributes;
mod cq;
pub(crate) mod device;
mod driver;
mod mad;
mod mcast;
mod mr;
mod mw;
mod notifier;
mod object;
mod ops;
mod pd;
pub mod port;
mod qp;
pub(crate) mod registry;
mod srq;
mod stats;
mod ucontext;
mod wc;
mod wr;
mod xrcd;

pub use self::{
    ah::{
        AddressVector,
        Ah, //
    },
    attr::{
        access,
        device_cap,
        mask,
        odp_cap,
        AtomicCap,
        DeviceAttr,
        OdpCaps,
        QpAttr,
        QpCaps,
        QpKind,
        QpState,
        PATH_MIGRATED, //
    },
    attributes::Switch,
    cq::{
        Cq,
        CqInit,
        NewCq, //
    },
    device::{
        Device,
        DeviceRef, //
    },
    driver::Driver,
    mad::PortStatistics,
    mr::{
        Mr,
        MrChange,
        MrInit,
        MrTranslation,
        NewMr, //
    },
    mw::{
        Mw,
        MwKind,
        NewMw, //
    },
    notifier::{
        CqNotifier,
        QpEvent,
        QpNotifier,
        SrqEvent,
        SrqNotifier, //
    },
    pd::Pd,
    port::{
        PhysState,
        PortAttr,
        PortModify,
        PortState, //
    },
    qp::{
        NewQp,
        Qp,
        QpInit, //
    },
    srq::{
        NewSrq,
        Srq,
        SrqAttr,
        SrqChange,
        SrqInit,
        XrcInit, //
    },
    ucontext::Ucontext,
    wc::{
        NetworkHeader,
        Wc,
        WcExtra,
        WcOpcode,
        WcSink,
        WcStatus, //
    },
    wr::{
        send_flags,
        RecvWr,
        Remote,
        SendOp,
        SendWr,
        Sge, //
    },
    xrcd::Xrcd,
};
