// SPDX-License-Identifier: GPL-2.0
//! The verbs: from the RDMA core to this driver's objects.

mod advise;
mod ah;
mod cq;
mod mr;
mod mw;
mod post;
mod qp;
mod srq;

use crate::{
    address::AddressHandle,
    completion::CompletionQueue,
    counters,
    device::{
        self,
        Ferroce, //
    },
    port::Port,
    prefetch::Prefetcher,
    qp::QueuePair, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    net::MulticastAddr,
    sync::Number,
    udata::Udata,
    umem::{
        Fault,
        KernelMemory, //
    },
    verbs::{
        AddressVector,
        Ah,
        Cq,
        CqInit,
        CqNotifier,
        Device,
        DeviceAttr,
        Driver,
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
        Switch,
        Ucontext,
        WcSink, //
    }, //
};

/// A protection domain. Domains are told apart by what the core knows; here they are counted.
pub(crate) struct Domain {
    prefetcher: Prefetcher,
    _number: Number,
}

/// Number of librxe, the user space half that drives this driver (`enum rdma_driver_id`).
const RDMA_DRIVER_RXE: u32 = 14;

#[vtable]
impl Driver for Ferroce {
    const DRIVER_ID: u32 = RDMA_DRIVER_RXE;
    const ABI_VERSION: u32 = 2;
    const NODE_DESC: &'static CStr = c"ferroce";
    const GID_TABLE_LEN: u32 = device::limits::GID_TABLE;
    const PORT_CORE_CAPS: u32 = rdma::verbs::port::CORE_ROCE_UDP_ENCAP;
    const COUNTERS: &'static [&'static CStr] = &counters::NAMES;
    const SWITCHES: [Switch<Self>; 2] = [
        Switch {
            name: c"icrc",
            get: |device| device.drv().uses_icrc(),
            set: |device, on| device.drv().use_icrc(on),
        },
        Switch {
            name: c"direct",
            get: |device| device.drv().is_direct(),
            set: |device, on| device.drv().set_direct(on),
        },
    ];

    type Device = Arc<Port>;
    type Ucontext = ();
    type Pd = Domain;
    type Ah = Arc<AddressHandle>;
    type Cq = Arc<CompletionQueue>;
    type Qp = Arc<QueuePair>;
    type Srq = srq::SharedReceives;
    type Mr = mr::Registration;
    type Mw = mw::Allocation;
    type Xrcd = Number;

    fn query_device(device: &Device<Self>, attr: &mut DeviceAttr) -> Result {
        *attr = device::attr(device);
        Ok(())
    }

    fn query_port(device: &Device<Self>, attr: &mut PortAttr) -> Result {
        *attr = device::port_attr(device)?;
        Ok(())
    }

    fn modify_port(device: &Device<Self>, change: &PortModify) -> Result {
        if change.shutdown {
            return Err(EOPNOTSUPP);
        }
        let port = device.drv();
        port.change_capabilities(change.set_port_cap_mask, change.clr_port_cap_mask);
        Ok(())
    }

    fn read_counters(device: &Device<Self>, values: &mut [u64]) {
        device.drv().counters.read(values);
    }

    fn port_statistics(device: &Device<Self>) -> PortStatistics {
        device.drv().counters.statistics()
    }

    fn unregistered(device: &Device<Self>) {
        device.drv().close();
    }

    fn alloc_ucontext(_device: &Device<Self>) -> impl PinInit<(), Error> {
        Ok::<(), Error>(())
    }

    fn alloc_pd(device: &Device<Self>) -> impl PinInit<Domain, Error> {
        let port = device.drv();
        let number = port.pd_numbers.take(0..device::limits::MAX_PD)?;
        Ok(Domain {
            prefetcher: Prefetcher::new(&port.pagers)?,
            _number: number,
        })
    }

    fn alloc_xrcd(device: &Device<Self>) -> impl PinInit<Number, Error> {
        device.drv().xrcd_numbers.take(0..device::limits::MAX_XRCD)
    }

    fn create_ah(
        pd: &Pd<Self>,
        av: &AddressVector,
        udata: Option<&Udata>,
        sleepable: bool,
    ) -> impl PinInit<Arc<AddressHandle>, Error> {
        ah::create(pd, av, udata, sleepable)
    }

    fn modify_ah(ah: &Ah<Self>, av: &AddressVector) -> Result {
        ah::modify(ah.drv(), av)
    }

    fn query_ah(ah: &Ah<Self>) -> AddressVector {
        ah.drv().vector()
    }

    fn destroy_ah(ah: &Ah<Self>) {
        ah::destroy(ah.pd().device().drv(), ah.drv());
    }

    fn create_cq(
        device: &Device<Self>,
        attr: &CqInit,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<CqNotifier>,
    ) -> Result<NewCq<impl PinInit<Arc<CompletionQueue>, Error>>> {
        cq::create(device.drv(), attr, context, udata, notifier)
    }

    fn resize_cq(cq: &Cq<Self>, cqe: u32, context: &Ucontext<Self>, udata: &Udata) -> Result<u32> {
        cq::resize(cq.drv(), cqe, context, udata)
    }

    fn destroy_cq(_cq: &Cq<Self>) {}

    fn poll_cq(cq: &Cq<Self>, out: &mut WcSink<'_>) {
        cq.drv().poll(out);
    }

    fn req_notify_cq(cq: &Cq<Self>, solicited_only: bool, report_missed: bool) -> bool {
        cq.drv().arm(solicited_only, report_missed)
    }

    fn create_qp(
        device: &Device<Self>,
        attr: &QpInit<'_, Self>,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<QpNotifier>,
    ) -> Result<NewQp<impl PinInit<Arc<QueuePair>, Error>>> {
        qp::create(device, attr, context, udata, notifier)
    }

    fn modify_qp(qp: &Qp<Self>, attr: &QpAttr, mask: u32, _udata: Option<&Udata>) -> Result {
        qp::modify(qp.device().drv(), qp.drv(), attr, mask)
    }

    fn query_qp(qp: &Qp<Self>, attr: &mut QpAttr, _mask: u32) -> Result {
        *attr = qp::query(qp.drv());
        Ok(())
    }

    fn destroy_qp(qp: &Qp<Self>) {
        qp::destroy(qp.device().drv(), qp.drv());
    }

    fn attach_mcast(qp: &Qp<Self>, gid: [u8; 16]) -> Result {
        let group = MulticastAddr::from_mapped(&gid).ok_or(EINVAL)?;
        let port = qp.device().drv();
        port.groups.attach(port, qp.drv(), group)
    }

    fn detach_mcast(qp: &Qp<Self>, gid: [u8; 16]) -> Result {
        let group = MulticastAddr::from_mapped(&gid).ok_or(EINVAL)?;
        let port = qp.device().drv();
        port.groups.detach(port, qp.drv(), group)
    }

    fn create_srq(
        pd: &Pd<Self>,
        attr: &SrqInit<'_, Self>,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
        notifier: Arc<SrqNotifier>,
    ) -> Result<NewSrq<impl PinInit<srq::SharedReceives, Error>>> {
        srq::create(pd, attr, context, udata, notifier)
    }

    fn modify_srq(
        srq: &Srq<Self>,
        change: &SrqChange,
        context: Option<&Ucontext<Self>>,
        udata: Option<&Udata>,
    ) -> Result {
        srq::modify(srq.drv().queue(), change, context, udata)
    }

    fn query_srq(srq: &Srq<Self>) -> Result<SrqAttr> {
        srq::query(srq)
    }

    fn destroy_srq(srq: &Srq<Self>) {
        srq::destroy(srq.pd().device().drv(), srq.drv());
    }

    fn post_srq_recv(srq: &Srq<Self>, wr: &RecvWr<'_>) -> Result {
        post::receive_shared(srq.drv().queue(), wr)
    }

    fn doorbell(qp: &Qp<Self>) -> Result {
        qp.drv().doorbell()
    }

    fn post_send(qp: &Qp<Self>, wr: &SendWr<'_, Self>) -> Result {
        post::send(qp.drv(), wr)
    }

    fn post_recv(qp: &Qp<Self>, wr: &RecvWr<'_>) -> Result {
        post::receive(qp.drv(), wr)
    }

    fn reg_user_mr(
        pd: &Pd<Self>,
        _context: Option<&Ucontext<Self>>,
        attr: &MrInit,
    ) -> Result<NewMr<impl PinInit<mr::Registration, Error>>> {
        mr::register(pd, attr)
    }

    fn reg_dma_buf_mr(
        pd: &Pd<Self>,
        fd: i32,
        attr: &MrInit,
    ) -> Result<NewMr<impl PinInit<mr::Registration, Error>>> {
        mr::register_dma_buf(pd, fd, attr)
    }

    fn rereg_user_mr(mr: &Mr<Self>, change: &MrChange<'_, Self>) -> Result {
        let pd = mr.pd();
        mr::change(pd.device().drv(), mr.drv(), pd, change)
    }

    fn get_dma_mr(
        pd: &Pd<Self>,
        access: u32,
        memory: KernelMemory,
    ) -> Result<NewMr<impl PinInit<mr::Registration, Error>>> {
        mr::all_memory(pd, access, memory)
    }

    fn advise_mr(
        pd: &Pd<Self>,
        fault: Fault,
        wait: bool,
        list: impl Iterator<Item = Sge>,
    ) -> Result {
        advise::advise(pd, fault, wait, list)
    }

    fn alloc_mr(
        pd: &Pd<Self>,
        max_pages: u32,
        memory: KernelMemory,
    ) -> Result<NewMr<impl PinInit<mr::Registration, Error>>> {
        mr::allocate(pd, max_pages, memory)
    }

    fn begin_map(mr: &Mr<Self>, page_size: u32) -> Result {
        mr.drv().fast()?.begin_map(page_size)
    }

    fn map_page(mr: &Mr<Self>, addr: u64) -> Result {
        mr.drv().fast()?.map_page(addr)
    }

    fn end_map(mr: &Mr<Self>, first: u64) {
        if let Ok(region) = mr.drv().fast() {
            region.end_map(first);
        }
    }

    fn dereg_mr(mr: &Mr<Self>) -> Result {
        mr::deregister(mr.pd().device().drv(), mr.drv())
    }

    fn alloc_mw(pd: &Pd<Self>, kind: MwKind) -> Result<NewMw<impl PinInit<mw::Allocation, Error>>> {
        mw::allocate(pd, kind)
    }

    fn dealloc_mw(mw: &Mw<Self>) {
        mw::deallocate(mw.device().drv(), mw.drv());
    }
}
