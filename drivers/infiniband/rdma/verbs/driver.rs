// SPDX-License-Identifier: GPL-2.0

//! What a driver has to implement.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`struct ib_device_ops`).
//! In the tree this file would be `rust/kernel/rdma/driver.rs`.
//!
//! All objects but memory regions are allocated by the core, with room for the driver's part behind
//! C's. The driver's part is initialised in place, pinned, by what a create method returns, and
//! dropped in place after the destroy method. An initialiser may fail, with any error; then the object
//! never existed, and no destroy method is called for it.
//!
//! Destroy methods cannot fail. When they are called, nobody calls verbs on the object any more, but
//! timers and packets of the driver may still be under way: it stops them there or in its part's drop.

use super::{
    AddressVector,
    Ah,
    Cq,
    CqInit,
    CqNotifier,
    Device,
    DeviceAttr,
    Mr,
    MrChange,
    MrInit,
    Mw,
    MwKind,
    NewCq,
    NewMr,
    NewMw,
    NewQp,
    NewSrq,
    Pd,
    PortAttr,
    PortModify,
    PortStatistics,
    Qp,
    QpAttr,
    QpInit,
    QpNotifier,
    RecvWr,
    SendWr,
    Sge,
    Srq,
    SrqAttr,
    SrqChange,
    SrqInit,
    SrqNotifier,
    Ucontext,
    WcSink, //
};
use crate::{
    udata::Udata,
    umem::{
        Fault,
        KernelMemory, //
    }, //
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::Arc, //
};

/// A driver of RDMA devices with one port.
#[vtable]
pub trait Driver: Sized + Send + Sync + 'static {
    /// Number by which user space finds its half of the driver; C: `enum rdma_driver_id`.
    const DRIVER_ID: u32;
    /// Version of the interface to user space's half.
    const ABI_VERSION: u32;
    /// What the node calls itself, at most 63 bytes.
    const NODE_DESC: &'static CStr;
    /// Size of the GID table.
    const GID_TABLE_LEN: u32;
    /// What the port can do, e.g. [`super::port::CORE_ROCE_UDP_ENCAP`].
    const PORT_CORE_CAPS: u32;
    /// Names of the counters of the port, in the order of [`Self::read_counters`].
    const COUNTERS: &'static [&'static CStr];
    /// Switches of its own.
    const SWITCHES: [super::Switch<Self>; 2];

    /// The driver's part of a device.
    type Device: Send + Sync;
    /// The driver's part of a user context.
    type Ucontext: Send + Sync;
    /// The driver's part of a protection domain.
    type Pd: Send + Sync;
    /// The driver's part of an address handle.
    type Ah: Send + Sync;
    /// The driver's part of a completion queue.
    type Cq: Send + Sync;
    /// The driver's part of a queue pair.
    type Qp: Send + Sync;
    /// The driver's part of a shared receive queue.
    type Srq: Send + Sync;
    /// The driver's part of a memory region.
    type Mr: Send + Sync;
    /// The driver's part of a memory window.
    type Mw: Send + Sync;
    /// The driver's part of a domain of extended reliable connections.
    type Xrcd: Send + Sync;

    /// Fills in what the device can do. `attr` is zero.
    ///
    /// # Context
    ///
    /// Process, may sleep; also from within [`Device::register`].
    ///
    /// # Errors
    ///
    /// Any; registration fails with it.
    fn query_device(device: &Device<Self>, attr: &mut DeviceAttr) -> Result;

    /// Fills in the state of the port. `attr` is zero.
    ///
    /// # Context
    ///
    /// Process, may sleep; also from within [`Device::register`]. RTNL is not held.
    ///
    /// # Errors
    ///
    /// Any, but the core complains to the log then. While the device goes, this is still called: a port
    /// that is down is a better answer than an error.
    fn query_port(device: &Device<Self>, attr: &mut PortAttr) -> Result;

    /// Changes the port.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for what cannot be changed.
    fn modify_port(device: &Device<Self>, change: &PortModify) -> Result;

    /// Fills in the counters, in the order of [`Self::COUNTERS`]; `values` may be shorter.
    ///
    /// # Context
    ///
    /// Process, may sleep; a mutex of the counters is held.
    fn read_counters(device: &Device<Self>, values: &mut [u64]);

    /// Tells what the port has counted, for performance management.
    ///
    /// # Context
    ///
    /// Process, may sleep; also from within [`Device::register`].
    fn port_statistics(device: &Device<Self>) -> PortStatistics;

    /// The device has gone: this is the last call for it, and all its objects have been destroyed.
    ///
    /// Called once for each device whose driver's part was initialised, also if its registration
    /// failed after that. The driver's part is dropped when the last reference to the device is.
    ///
    /// # Context
    ///
    /// Process, may sleep; the core's lock of unregistration is held, so devices must not be
    /// unregistered here.
    fn unregistered(device: &Device<Self>);

    /// A program has opened the device.
    ///
    /// # Context
    ///
    /// Process, may sleep. Dropped in process context as well, after all its objects.
    fn alloc_ucontext(device: &Device<Self>) -> impl PinInit<Self::Ucontext, Error>;

    /// Creates a protection domain. Dropped after everything that is in it.
    ///
    /// # Context
    ///
    /// Process, may sleep; so is dropping it.
    fn alloc_pd(device: &Device<Self>) -> impl PinInit<Self::Pd, Error>;

    /// Creates a domain of extended reliable connections; all else is as for [`Self::alloc_pd`].
    fn alloc_xrcd(device: &Device<Self>) -> impl PinInit<Self::Xrcd, Error>;

    /// Creates an address handle. `udata` is for the answer to a user program.
    ///
    /// # Context
    ///
    /// Process and may sleep if `sleepable`; else any, perhaps with interrupts off.
    ///
    /// # Errors
    ///
    /// Any.
    fn create_ah(
        pd: &Pd<Self>,
        av: &AddressVector,
        udata: Option<&Udata>,
        sleepable: bool,
    ) -> impl PinInit<Self::Ah, Error>;

    /// Changes an address handle.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// Any.
    fn modify_ah(ah: &Ah<Self>, av: &AddressVector) -> Result;

    /// Returns where an address handle points to.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn query_ah(ah: &Ah<Self>) -> AddressVector;

    /// The address handle is about to be dropped.
    ///
    /// # Context
    ///
    /// Any, perhaps with interrupts off: kernel users destroy address handles in completion handlers.
    /// The same holds for dropping the driver's part.
    fn destroy_ah(ah: &Ah<Self>);

    /// Creates a completion queue, for a user program if there is a `context`.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes that are not allowed, `EOPNOTSUPP` for flags; any other.
    fn create_cq(
        device: &Device<Self>,
        attr: &CqInit,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<CqNotifier>,
    ) -> Result<NewCq<impl PinInit<Self::Cq, Error>>>;

    /// Changes the size of the completion queue of a user program, and tells it in `udata` how to find
    /// the elements from now on. Returns the number of elements that the queue really has then.
    ///
    /// # Context
    ///
    /// Process, may sleep; several threads at once.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a size that is not allowed, or too small for what is in the queue; any other. The
    /// queue is as it was then.
    fn resize_cq(cq: &Cq<Self>, cqe: u32, context: &Ucontext<Self>, udata: &Udata) -> Result<u32>;

    /// The completion queue is about to be dropped; no queue pair uses it any more.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn destroy_cq(cq: &Cq<Self>);

    /// Moves completions of a kernel user into `out`, until it is full or there are no more.
    ///
    /// # Context
    ///
    /// Any but NMI, perhaps with interrupts off, also from within [`CqNotifier::notify`].
    fn poll_cq(cq: &Cq<Self>, out: &mut WcSink<'_>);

    /// Asks for one call of [`CqNotifier::notify`] at the next completion, or the next solicited one.
    ///
    /// If `report_missed`, returns whether completions are waiting that came before this call.
    ///
    /// # Context
    ///
    /// Any but NMI, perhaps with interrupts off, also from within [`CqNotifier::notify`].
    fn req_notify_cq(cq: &Cq<Self>, solicited_only: bool, report_missed: bool) -> bool;

    /// Creates a queue pair, for a user program if there is a `context`. The state is RESET.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for types and flags that are not supported, `EINVAL` for sizes that are not
    /// allowed; any other.
    fn create_qp(
        device: &Device<Self>,
        attr: &QpInit<'_, Self>,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<QpNotifier>,
    ) -> Result<NewQp<impl PinInit<Self::Qp, Error>>>;

    /// Changes the attributes in `mask` (of [`super::mask`], standard ones only).
    ///
    /// # Context
    ///
    /// Process, may sleep. Calls for one queue pair may come from several threads at once if kernel
    /// users make them.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not allowed in this state or out of range.
    fn modify_qp(qp: &Qp<Self>, attr: &QpAttr, mask: u32, udata: Option<&Udata>) -> Result;

    /// Fills in the attributes; those in `mask` at least. `attr` is zero.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// Any.
    fn query_qp(qp: &Qp<Self>, attr: &mut QpAttr, mask: u32) -> Result;

    /// The queue pair is about to be dropped.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn destroy_qp(qp: &Qp<Self>);

    /// Attaches a datagram queue pair to a multicast group: as often as it will be detached.
    ///
    /// # Context
    ///
    /// Process, may sleep; several threads at once. RTNL is not held.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `gid` is no multicast address; any other.
    fn attach_mcast(qp: &Qp<Self>, gid: [u8; 16]) -> Result;

    /// Detaches a queue pair from a group, before it is destroyed: it gets nothing more of it then.
    ///
    /// # Context
    ///
    /// As [`Self::attach_mcast`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached; no other.
    fn detach_mcast(qp: &Qp<Self>, gid: [u8; 16]) -> Result;

    /// Creates a shared receive queue, for a user program if there is a `context`.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes that are not allowed; any other.
    fn create_srq(
        pd: &Pd<Self>,
        attr: &SrqInit<'_, Self>,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<SrqNotifier>,
    ) -> Result<NewSrq<impl PinInit<Self::Srq, Error>>>;

    /// Changes the size or the limit of a shared receive queue.
    ///
    /// # Context
    ///
    /// Process, may sleep; several threads at once.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not allowed, or a size too small for what is posted; any other. Nothing is
    /// changed then.
    fn modify_srq(
        srq: &Srq<Self>,
        change: &SrqChange,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
    ) -> Result;

    /// Returns the attributes of a shared receive queue.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue is broken.
    fn query_srq(srq: &Srq<Self>) -> Result<SrqAttr>;

    /// The shared receive queue is about to be dropped; no queue pair uses it any more.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn destroy_srq(srq: &Srq<Self>);

    /// Takes one receive request of a kernel user.
    ///
    /// # Context
    ///
    /// As [`Self::post_send`].
    ///
    /// # Errors
    ///
    /// As [`Self::post_send`].
    fn post_srq_recv(srq: &Srq<Self>, wr: &RecvWr<'_>) -> Result;

    /// A user program has written requests to its send queue.
    ///
    /// # Context
    ///
    /// Process, may sleep; several threads at once.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state does not allow sends.
    fn doorbell(qp: &Qp<Self>) -> Result;

    /// Takes one send request of a kernel user.
    ///
    /// # Context
    ///
    /// Any but NMI, perhaps with interrupts off; several threads at once; also from within
    /// [`CqNotifier::notify`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` for what is not allowed.
    fn post_send(qp: &Qp<Self>, wr: &SendWr<'_, Self>) -> Result;

    /// Takes one receive request of a kernel user.
    ///
    /// # Context
    ///
    /// As [`Self::post_send`].
    ///
    /// # Errors
    ///
    /// As [`Self::post_send`].
    fn post_recv(qp: &Qp<Self>, wr: &RecvWr<'_>) -> Result;

    /// Registers memory of a program; without a `context` it is the kernel that asks for it.
    ///
    /// # Context
    ///
    /// Process, of the program that owns the memory; may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Umem::pin`], `EOPNOTSUPP` for accesses that are not supported; any other.
    ///
    /// [`Umem::pin`]: crate::umem::Umem::pin
    fn reg_user_mr(
        pd: &Pd<Self>,
        context: Option<&Ucontext<Self>>,
        attr: &MrInit,
    ) -> Result<NewMr<impl PinInit<Self::Mr, Error>>>;

    /// Registers a part of a DMA-BUF that a program has as `fd`; `attr.start` counts from its start.
    ///
    /// # Context
    ///
    /// Process, of that program; may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`DmaBuf::map`]; any other.
    ///
    /// [`DmaBuf::map`]: crate::umem::DmaBuf::map
    fn reg_dma_buf_mr(
        pd: &Pd<Self>,
        fd: i32,
        attr: &MrInit,
    ) -> Result<NewMr<impl PinInit<Self::Mr, Error>>>;

    /// Changes a region of a program, in place: the keys stay the same. All or nothing.
    ///
    /// # Context
    ///
    /// Process, of a program that has the region; may sleep. No other verb runs on the region.
    ///
    /// # Errors
    ///
    /// As [`Self::reg_user_mr`], and `EBUSY` if memory windows are bound to it. The region is as it was
    /// then.
    fn rereg_user_mr(mr: &Mr<Self>, change: &MrChange<'_, Self>) -> Result;

    /// Makes a region of all of the kernel's memory, for a kernel user.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// Any.
    fn get_dma_mr(
        pd: &Pd<Self>,
        access: u32,
        memory: KernelMemory,
    ) -> Result<NewMr<impl PinInit<Self::Mr, Error>>>;

    /// Brings in memory that is paged on demand: before this returns if `wait`, else soon or not at all.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EINVAL` or `EPERM` for what the keys and ranges do not allow; if `wait`, those of
    /// [`OdpUmem::fault`].
    ///
    /// [`OdpUmem::fault`]: crate::umem::OdpUmem::fault
    fn advise_mr(
        pd: &Pd<Self>,
        fault: Fault,
        wait: bool,
        list: impl Iterator<Item = Sge>,
    ) -> Result;

    /// Makes a region for fast registration with at most `max_pages` pages, for a kernel user. It is
    /// not valid until it is registered by a work request.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more pages than the device has; any other.
    fn alloc_mr(
        pd: &Pd<Self>,
        max_pages: u32,
        memory: KernelMemory,
    ) -> Result<NewMr<impl PinInit<Self::Mr, Error>>>;

    /// A list of pages of `page_size` bytes begins that a region is to be registered with.
    ///
    /// # Context
    ///
    /// Any. The kernel user makes one list for one region at a time.
    ///
    /// # Errors
    ///
    /// `EINVAL` for page sizes that are not supported, and for regions that are not from
    /// [`Self::alloc_mr`].
    fn begin_map(mr: &Mr<Self>, page_size: u32) -> Result;

    /// The next page of the list has this address.
    ///
    /// # Context
    ///
    /// As [`Self::begin_map`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full.
    fn map_page(mr: &Mr<Self>, addr: u64) -> Result;

    /// The list is complete; the memory starts at address `first`, in the first page.
    ///
    /// # Context
    ///
    /// As [`Self::begin_map`].
    fn end_map(mr: &Mr<Self>, first: u64);

    /// The region is about to be dropped: from now on its keys must not work.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `EBUSY` if it is still in use; then it stays.
    fn dereg_mr(mr: &Mr<Self>) -> Result;

    /// Makes a memory window. It is bound to nothing.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    ///
    /// # Errors
    ///
    /// Any.
    fn alloc_mw(pd: &Pd<Self>, kind: MwKind) -> Result<NewMw<impl PinInit<Self::Mw, Error>>>;

    /// The memory window is about to be dropped: from now on its key must not work.
    ///
    /// # Context
    ///
    /// Process, may sleep.
    fn dealloc_mw(mw: &Mw<Self>);
}
