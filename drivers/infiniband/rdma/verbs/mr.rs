// SPDX-License-Identifier: GPL-2.0

//! Memory regions. These are allocated here, not by the core.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/mr.rs`.

use super::{
    object::{
        Object,
        Part, //
    },
    ucontext::Ucontext,
    wr::sges,
    Driver,
    Pd, //
};
use crate::{
    bindings,
    umem::{
        Fault,
        KernelMemory, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::offset_of, //
};
use kernel::{
    error::from_result,
    prelude::*, //
};

/// What a user program wants to register.
#[derive(Clone, Copy, Debug)]
pub struct MrInit {
    /// Address in the program.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which the region will be named in work requests and by peers.
    pub virt_addr: u64,
    /// Of [`super::access`].
    pub access: u32,
}

/// What a user program wants to change of a region.
pub struct MrChange<'a, D: Driver> {
    /// Other memory, if that is to change; its accesses are the region's if they do not change too.
    pub translation: Option<MrTranslation>,
    /// Another protection domain.
    pub pd: Option<&'a Pd<D>>,
    /// Other accesses, of [`super::access`].
    pub access: Option<u32>,
}

/// The memory of a region.
#[derive(Clone, Copy, Debug)]
pub struct MrTranslation {
    /// Address in the program.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which the region will be named.
    pub virt_addr: u64,
}

/// A region that a driver made.
pub struct NewMr<I> {
    /// Key by which local work requests name it.
    pub lkey: u32,
    /// Key by which peers name it.
    pub rkey: u32,
    /// Initialises the driver's part.
    pub init: I,
}

/// A memory region.
///
/// # Invariants
///
/// `ib` has a device of driver `D`, filled in by the core after creation.
#[repr(C)]
#[pin_data]
pub struct Mr<D: Driver> {
    ib: Part<bindings::ib_mr>,
    #[pin]
    drv: D::Mr,
}

// SAFETY: `ib` is at the start, and all regions are from `create`.
unsafe impl<D: Driver> Object for Mr<D> {
    type Raw = bindings::ib_mr;
    type Drv = D::Mr;
    const DRV: usize = offset_of!(Self, drv);
}

impl<D: Driver> Mr<D> {
    /// Allocates the region that the driver makes with `make`. The memory first: what the driver has
    /// made, and perhaps given a key, must not get lost for want of it.
    fn create<I: PinInit<D::Mr, Error>>(
        make: impl FnOnce() -> Result<NewMr<I>>,
    ) -> Result<*mut bindings::ib_mr> {
        let memory = KBox::<Self>::new_uninit(GFP_KERNEL)?;
        let NewMr { lkey, rkey, init } = make()?;
        let ib = Part::<bindings::ib_mr>::zeroed();
        // SAFETY: `ib` is our own, and zeroes are valid for it.
        unsafe { (*ib.get()).lkey = lkey };
        // SAFETY: As above.
        unsafe { (*ib.get()).rkey = rkey };
        let this = memory.write_pin_init(try_pin_init!(Self {
            ib,
            drv <- init,
        }? Error))?;
        // SAFETY: C does not move the object.
        Ok(KBox::into_raw(unsafe { Pin::into_inner_unchecked(this) }).cast())
    }

    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Mr {
        &self.drv
    }

    /// The protection domain that it was created in.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: By the type invariant; the core set `pd` after creation and counts regions in it, so
        // that it is not freed before them.
        unsafe { Pd::from_raw((*self.ib.get()).pd) }
    }

    /// The key by which local work requests name it.
    pub fn lkey(&self) -> u32 {
        // SAFETY: The object is live; for these regions it does not change after creation.
        unsafe { (*self.ib.get()).lkey }
    }

    /// First address and length of a region for fast registration, as its user has set them with the
    /// last list of pages.
    ///
    /// # Context
    ///
    /// Any, while a registration of the region is posted.
    pub fn mapped(&self) -> (u64, u64) {
        // SAFETY: The object is live; its user does not change it while it posts.
        unsafe { ((*self.ib.get()).iova, (*self.ib.get()).length) }
    }

    /// The key by which peers name it.
    pub fn rkey(&self) -> u32 {
        // SAFETY: As above.
        unsafe { (*self.ib.get()).rkey }
    }
}

/// The thunks for memory regions.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.reg_user_mr`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_cmd.c:ib_uverbs_reg_mr`, `uverbs_std_types_mr.c` and, without `udata`,
    /// `verbs.c:ib_reg_user_mr`: `pd` is live, `udata` as for [`Ucontext::from_udata`].
    pub(super) unsafe extern "C" fn reg_user(
        pd: *mut bindings::ib_pd,
        start: u64,
        length: u64,
        virt_addr: u64,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        let create = || {
            if !dmah.is_null() {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: `pd` is live by the safety requirement.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            // SAFETY: By the safety requirement.
            let context = unsafe { Ucontext::from_udata(udata) };
            let attr = MrInit {
                start,
                length,
                virt_addr,
                // CAST: C keeps flags in an `int`.
                access: access as u32,
            };
            Mr::<D>::create(|| D::reg_user_mr(pd, context, &attr))
        };
        create().unwrap_or_else(|e| e.to_ptr())
    }

    /// `ib_device_ops.reg_user_mr_dmabuf`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_std_types_mr.c`: `pd` is live.
    pub(super) unsafe extern "C" fn reg_dma_buf(
        pd: *mut bindings::ib_pd,
        offset: u64,
        length: u64,
        virt_addr: u64,
        fd: c_int,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_mr {
        let create = || {
            if !dmah.is_null() {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: `pd` is live by the safety requirement.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            let attr = MrInit {
                start: offset,
                length,
                virt_addr,
                // CAST: C keeps flags in an `int`.
                access: access as u32,
            };
            Mr::<D>::create(|| D::reg_dma_buf_mr(pd, fd, &attr))
        };
        create().unwrap_or_else(|e| e.to_ptr())
    }

    /// `ib_device_ops.rereg_user_mr`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_cmd.c:ib_uverbs_rereg_mr`: `mr` is live and from `Mr::create`, and nobody
    /// else calls verbs on it; `pd` is live.
    pub(super) unsafe extern "C" fn rereg_user(
        mr: *mut bindings::ib_mr,
        flags: c_int,
        start: u64,
        length: u64,
        virt_addr: u64,
        access: c_int,
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        const TRANS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS;
        const PD: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_PD;
        const ACCESS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS;
        // CAST: C keeps flags in an `int`.
        let flags = flags as u32;
        let change = || {
            if flags & !(TRANS | PD | ACCESS) != 0 {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: `mr` is live by the safety requirement.
            let mr = unsafe { Mr::<D>::from_raw(mr) };
            // SAFETY: `pd` is live by the safety requirement.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            let change = MrChange {
                translation: (flags & TRANS != 0).then_some(MrTranslation {
                    start,
                    length,
                    virt_addr,
                }),
                pd: (flags & PD != 0).then_some(pd),
                // CAST: C keeps flags in an `int`.
                access: (flags & ACCESS != 0).then_some(access as u32),
            };
            D::rereg_user_mr(mr, &change)
        };
        match change() {
            // The region is the same object, with the same keys.
            Ok(()) => core::ptr::null_mut(),
            Err(e) => e.to_ptr(),
        }
    }

    /// `ib_device_ops.get_dma_mr`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:__ib_alloc_pd`: `pd` is live and belongs to a kernel user.
    pub(super) unsafe extern "C" fn get_dma(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // SAFETY: `pd` is live by the safety requirement.
        let pd = unsafe { Pd::<D>::from_raw(pd) };
        // SAFETY: The region belongs to a kernel user by the safety requirement, so its keys are
        // that user's.
        let memory = unsafe { KernelMemory::new() };
        // CAST: C keeps flags in an `int`.
        Mr::<D>::create(|| D::get_dma_mr(pd, access as u32, memory)).unwrap_or_else(|e| e.to_ptr())
    }

    /// `ib_device_ops.alloc_mr`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_alloc_mr`: `pd` is live and belongs to a kernel user.
    pub(super) unsafe extern "C" fn alloc(
        pd: *mut bindings::ib_pd,
        kind: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        let create = || {
            if kind != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: `pd` is live by the safety requirement.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            // SAFETY: As in `get_dma`; what is in the list are addresses of that user's.
            let memory = unsafe { KernelMemory::new() };
            Mr::<D>::create(|| D::alloc_mr(pd, max_num_sg, memory))
        };
        create().unwrap_or_else(|e| e.to_ptr())
    }

    /// `ib_device_ops.map_mr_sg`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_map_mr_sg`: `mr` is live and its user does nothing else with it at
    /// the same time, `page_size` is set; `sg` has `nents` entries, mapped for this device;
    /// `sg_offset` is null or valid.
    pub(super) unsafe extern "C" fn map_sg(
        mr: *mut bindings::ib_mr,
        sg: *mut bindings::scatterlist,
        nents: c_int,
        sg_offset: *mut c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `mr` is live by the safety requirement.
            let this = unsafe { Mr::<D>::from_raw(mr) };
            // SAFETY: As above.
            D::begin_map(this, unsafe { (*mr).page_size })?;
            // SAFETY: By the safety requirement, and `set_page` is for regions of `D`.
            let mapped =
                unsafe { bindings::ib_sg_to_pages(mr, sg, nents, sg_offset, Some(Self::set_page)) };
            if mapped > 0 {
                // SAFETY: As above; `ib_sg_to_pages` has set it.
                D::end_map(this, unsafe { (*mr).iova });
            }
            Ok(mapped)
        })
    }

    /// # Safety
    ///
    /// `mr` must be a live region of `D`.
    unsafe extern "C" fn set_page(mr: *mut bindings::ib_mr, addr: u64) -> c_int {
        // SAFETY: By the safety requirement.
        let this = unsafe { Mr::<D>::from_raw(mr) };
        from_result(|| D::map_page(this, addr).map(|()| 0))
    }

    /// `ib_device_ops.advise_mr`.
    ///
    /// # Safety
    ///
    /// As called by `uverbs_std_types_mr.c` and `verbs.c:ib_advise_mr`: `pd` is live, `list` has `count`
    /// elements.
    pub(super) unsafe extern "C" fn advise(
        pd: *mut bindings::ib_pd,
        advice: bindings::ib_uverbs_advise_mr_advice,
        flags: u32,
        list: *mut bindings::ib_sge,
        count: u32,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        const FLUSH: u32 = bindings::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
        from_result(|| {
            let fault = match advice {
                bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Fault::Read,
                bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => {
                    Fault::Write
                }
                bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => {
                    Fault::Present
                }
                _ => return Err(EOPNOTSUPP),
            };
            if flags & !FLUSH != 0 {
                return Err(EINVAL);
            }
            // SAFETY: `pd` is live by the safety requirement.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            // SAFETY: The elements are there by the safety requirement.
            let list = unsafe { sges(list, c_int::try_from(count)?) };
            D::advise_mr(pd, fault, flags & FLUSH != 0, list)?;
            Ok(0)
        })
    }

    /// `ib_device_ops.dereg_mr`.
    ///
    /// # Safety
    ///
    /// As called by `verbs.c:ib_dereg_mr_user` and `ib_dealloc_pd_user`: `mr` is from `Mr::create`,
    /// and not used any more if this returns 0.
    pub(super) unsafe extern "C" fn dereg(
        mr: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `mr` is live by the safety requirement.
            D::dereg_mr(unsafe { Mr::<D>::from_raw(mr) })?;
            // SAFETY: From `Mr::create`, and not used any more.
            drop(unsafe { KBox::from_raw(mr.cast::<Mr<D>>()) });
            Ok(0)
        })
    }
}
