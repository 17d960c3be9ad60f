// SPDX-License-Identifier: GPL-2.0

//! The whole table of what the core calls.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`struct ib_device_ops`).
//! In the tree this file would be `rust/kernel/rdma/ops.rs`.

use super::{
    ah,
    attributes,
    cq,
    device,
    mad,
    mcast,
    mr,
    mw,
    pd,
    port,
    qp,
    srq,
    stats,
    ucontext,
    xrcd,
    Ah,
    Cq,
    Driver,
    Mw,
    Pd,
    Qp,
    Srq,
    Ucontext,
    Xrcd, //
};
use crate::{
    bindings,
    mmap, //
};
use core::{
    alloc::Layout,
    marker::PhantomData, //
};

/// Size of an allocation by `kmalloc()` that is aligned for `T`.
pub(super) const fn kmalloc_size<T>() -> usize {
    Layout::new::<T>().pad_to_align().size()
}

/// The table for driver `D`.
pub(super) struct Ops<D: Driver>(PhantomData<D>);

impl<D: Driver> Ops<D> {
    pub(super) const OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        owner: kernel::module::this_module::<D::OwnerModule>().as_ptr(),
        driver_id: D::DRIVER_ID,
        uverbs_abi_ver: D::ABI_VERSION,
        device_group: attributes::VTable::<D>::GROUP,

        alloc_hw_port_stats: if D::COUNTERS.is_empty() {
            None
        } else {
            Some(stats::VTable::<D>::alloc_hw_port_stats)
        },
        attach_mcast: Some(mcast::VTable::<D>::attach),
        advise_mr: Some(mr::VTable::<D>::advise),
        alloc_mr: Some(mr::VTable::<D>::alloc),
        alloc_mw: Some(mw::VTable::<D>::alloc),
        alloc_pd: Some(pd::VTable::<D>::alloc),
        alloc_ucontext: Some(ucontext::VTable::<D>::alloc),
        alloc_xrcd: Some(xrcd::VTable::<D>::alloc),
        create_ah: Some(ah::VTable::<D>::create),
        create_cq: Some(cq::VTable::<D>::create),
        create_qp: Some(qp::VTable::<D>::create),
        create_srq: Some(srq::VTable::<D>::create),
        create_user_ah: Some(ah::VTable::<D>::create),
        dealloc_driver: Some(device::VTable::<D>::dealloc_driver),
        dealloc_mw: Some(mw::VTable::<D>::dealloc),
        dealloc_pd: Some(pd::VTable::<D>::dealloc),
        dealloc_ucontext: Some(ucontext::VTable::<D>::dealloc),
        dealloc_xrcd: Some(xrcd::VTable::<D>::dealloc),
        dereg_mr: Some(mr::VTable::<D>::dereg),
        detach_mcast: Some(mcast::VTable::<D>::detach),
        destroy_ah: Some(ah::VTable::<D>::destroy),
        destroy_cq: Some(cq::VTable::<D>::destroy),
        destroy_qp: Some(qp::VTable::<D>::destroy),
        destroy_srq: Some(srq::VTable::<D>::destroy),
        disassociate_ucontext: Some(ucontext::VTable::<D>::disassociate),
        get_dma_mr: Some(mr::VTable::<D>::get_dma),
        get_hw_stats: if D::COUNTERS.is_empty() {
            None
        } else {
            Some(stats::VTable::<D>::get_hw_stats)
        },
        get_link_layer: Some(port::VTable::<D>::get_link_layer),
        get_netdev: Some(device::VTable::<D>::get_netdev),
        get_port_immutable: Some(port::VTable::<D>::get_port_immutable),
        map_mr_sg: Some(mr::VTable::<D>::map_sg),
        mmap: Some(mmap::mmap_callback),
        mmap_free: Some(mmap::mmap_free_callback),
        modify_ah: Some(ah::VTable::<D>::modify),
        modify_device: Some(device::VTable::<D>::modify_device),
        modify_port: Some(port::VTable::<D>::modify_port),
        modify_qp: Some(qp::VTable::<D>::modify),
        modify_srq: Some(srq::VTable::<D>::modify),
        poll_cq: Some(cq::VTable::<D>::poll),
        post_recv: Some(qp::VTable::<D>::post_recv),
        post_send: Some(qp::VTable::<D>::post_send),
        post_srq_recv: Some(srq::VTable::<D>::post_recv),
        process_mad: Some(mad::VTable::<D>::process),
        query_ah: Some(ah::VTable::<D>::query),
        query_device: Some(device::VTable::<D>::query_device),
        query_pkey: Some(port::VTable::<D>::query_pkey),
        query_port: Some(port::VTable::<D>::query_port),
        query_qp: Some(qp::VTable::<D>::query),
        query_srq: Some(srq::VTable::<D>::query),
        reg_user_mr: Some(mr::VTable::<D>::reg_user),
        reg_user_mr_dmabuf: Some(mr::VTable::<D>::reg_dma_buf),
        rereg_user_mr: Some(mr::VTable::<D>::rereg_user),
        req_notify_cq: Some(cq::VTable::<D>::req_notify),
        resize_user_cq: Some(cq::VTable::<D>::resize_user),

        size_ib_ah: kmalloc_size::<Ah<D>>(),
        size_ib_cq: kmalloc_size::<Cq<D>>(),
        size_ib_mw: kmalloc_size::<Mw<D>>(),
        size_ib_pd: kmalloc_size::<Pd<D>>(),
        size_ib_qp: kmalloc_size::<Qp<D>>(),
        size_ib_srq: kmalloc_size::<Srq<D>>(),
        size_ib_ucontext: kmalloc_size::<Ucontext<D>>(),
        size_ib_xrcd: kmalloc_size::<Xrcd<D>>(),

        ..pin_init::zeroed()
    };
}
