// SPDX-License-Identifier: GPL-2.0

//! Devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h).
//! In the tree this file would be `rust/kernel/rdma/device.rs`.
//!
//! # Lifetimes
//!
//! ```text
//! register ──> registered ──> unregistered ──> driver's part dropped ──> memory freed
//!    │             │    ib_unregister_device*()      last ARef               last reference to
//!    └── fails ────┘    ends with dealloc_driver                             the struct device
//! ```
//!
//! A registered device owns one count of [`Head::refs`], which `dealloc_driver` gives back; each
//! [`ARef`] owns one as well. All counts together own one reference to the `struct device`. The code of
//! the driver must stay until they are all gone: see [`super::registry`].
//!
//! # Network interface
//!
//! The core is told of it by `get_netdev`, not by `ib_device_set_netdev()`. That would put the device
//! into the table that other drivers look into with `ib_device_get_by_netdev()`, by driver number: one
//! that serves the same user space driver would find it there, take it for one of its own, and write
//! to memory that is not. What the core itself uses the table for, the driver does with
//! [`DeviceRef::report_port_state`].

use super::{
    attr::DeviceAttr,
    ops::{
        kmalloc_size,
        Ops, //
    },
    port::PORT,
    registry,
    Driver, //
};
use crate::{
    bindings,
    net::{
        NetDevice,
        Rtnl, //
    },
    new_spinlock_irqsave,
    sync::SpinLockIrqSave, //
};
use core::{
    any::TypeId,
    marker::PhantomData,
    mem::offset_of,
    ops::Deref,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    device,
    error::from_result,
    fmt,
    prelude::*,
    str::CStr,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Completion,
        Refcount, //
    },
    types::Opaque, //
};

/// What all devices have in common.
#[repr(C)]
pub(super) struct Head {
    ib: Opaque<bindings::ib_device>,
    /// Counts on the driver's part.
    refs: Refcount,
    /// The driver's part has been dropped.
    released: Atomic<bool>,
    /// As `released`, to wait for.
    released_completion: Completion,
    /// The network interface, until `dealloc_driver`.
    netdev: SpinLockIrqSave<Option<ARef<NetDevice>>>,
}

impl Head {
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Acquire)
    }

    pub(super) fn wait_released(&self) {
        self.released_completion.wait_for_completion();
    }

    /// The `struct device` inside.
    fn dev(&self) -> *mut bindings::device {
        // SAFETY: Only the address of the field is taken.
        unsafe { &raw mut (*self.ib.get()).__bindgen_anon_1.dev }.cast()
    }
}

/// A device.
///
/// # Invariants
///
/// - `head` is initialised, with an `ib_device` from `_ib_alloc_device()` at the start.
/// - `drv` is initialised until `head.refs` gets to 0, and not used afterwards.
#[repr(C)]
pub struct Device<D: Driver> {
    head: Head,
    drv: D::Device,
}

// SAFETY: Devices belong to no thread; `drv` is `Send`.
unsafe impl<D: Driver> Send for Device<D> {}

// SAFETY: The core synchronises its own; `drv` is `Sync`.
unsafe impl<D: Driver> Sync for Device<D> {}

// SAFETY: While there are counts, `drv` is initialised and a reference to the `struct device` is held,
// so that the memory stays.
unsafe impl<D: Driver> AlwaysRefCounted for Device<D> {
    fn inc_ref(&self) {
        self.head.refs.inc();
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        let this = obj.as_ptr();
        // SAFETY: The caller owns a count, so the device is alive.
        let head = unsafe { &(*this).head };
        if !head.refs.dec_and_test() {
            return;
        }
        // SAFETY: There are no counts any more, so nobody uses `drv`, which is initialised by the type
        // invariant.
        unsafe { core::ptr::drop_in_place(&raw mut (*this).drv) };
        head.released.store(true, Release);
        head.released_completion.complete_all();
        // SAFETY: The counts owned a reference.
        unsafe { bindings::put_device(head.dev()) };
    }
}

impl<D: Driver> Device<D> {
    /// Creates a device on a network interface and registers it.
    ///
    /// `node_guid` is in network byte order. The name may not have a `%`. Users see the device before
    /// this returns.
    ///
    /// # Context
    ///
    /// Process, may sleep; RTNL must not be held. Usually called from
    /// [`new_link`](crate::link::LinkDriver::new_link).
    ///
    /// # Errors
    ///
    /// `EEXIST` if the interface has a device already, or the name is taken; `EINVAL` for a name that
    /// is not allowed; `ENODEV` if the interface is going, or there is no
    /// [`LinkOps`](crate::link::LinkOps) that would unregister the device; `ENOMEM`; the error of
    /// `init` or of a method of `D`. Nothing is left then.
    pub fn register(
        name: &CStr,
        netdev: &NetDevice,
        node_guid: [u8; 8],
        comp_vectors: u32,
        init: impl PinInit<D::Device, Error>,
    ) -> Result<ARef<Self>> {
        check_name(name)?;
        let comp_vectors = c_int::try_from(comp_vectors)?;
        let registering = registry::begin()?;
        let kind = TypeId::of::<D>();
        let link = registry::prepare(&registering, kind, netdev.as_raw())?;
        let this = Self::alloc(netdev, init)?;
        let ib = this.as_raw();
        // SAFETY: `ib` is not registered, so that nobody else looks at it.
        unsafe {
            bindings::ib_set_device_ops(ib, &Ops::<D>::OPS);
            (*ib).link_ops = link.as_ptr();
            (*ib).node_type = bindings::RDMA_NODE_IB_CA as u8;
            (*ib).phys_port_cnt = PORT;
            (*ib).num_comp_vectors = comp_vectors;
            (*ib).node_guid = u64::from_ne_bytes(node_guid);
            (*ib).local_dma_lkey = 0;
            (*ib).uverbs_cmd_mask |= 1
                << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
                | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
        }
        set_node_desc(&this.head, D::NODE_DESC);
        // SAFETY: Taken for the list.
        unsafe { bindings::get_device(this.head.dev()) };
        let head = NonNull::from(&*this).cast();
        // SAFETY: `this` is a device of `D`, and the reference was just taken.
        unsafe { registry::add(&registering, kind, head, link, netdev.as_raw()) };

        // SAFETY: `ib` is set up; without a DMA device, DMA addresses are virtual ones.
        let mut ret = unsafe { bindings::ib_register_device(ib, name.as_char_ptr(), null_mut()) };
        if ret != 0 {
            // SAFETY: Not registered, so it has to be freed by hand (`device.c:ib_register_device`),
            // which calls `dealloc_driver`.
            unsafe { bindings::ib_dealloc_device(ib) };
        } else if !netdev_is_registered(netdev) {
            // The notifier may have run before the core could find the device.
            // SAFETY: `ib` is a device in memory, held by `this`.
            unsafe { bindings::ib_unregister_device(ib) };
            ret = ENODEV.to_errno();
        }
        if ret == 0 {
            return Ok(this);
        }
        drop(this);
        registry::reap(&registering);
        match Error::from_errno(ret) {
            // `device.c:assign_name`.
            ENFILE => Err(EEXIST),
            error => Err(error),
        }
    }

    /// Allocates a device and initialises the driver's part. The count of the registration is left to
    /// `dealloc_driver`, so that it must be called.
    fn alloc(netdev: &NetDevice, init: impl PinInit<D::Device, Error>) -> Result<ARef<Self>> {
        const_assert!(offset_of!(Head, ib) == 0, "ib_device must be at offset 0");
        const_assert!(offset_of!(Self, head) == 0, "ib_device must be at offset 0");
        // SAFETY: `netdev` is live, and so is its namespace during this call.
        let ib = unsafe { bindings::ib_alloc_device_for(kmalloc_size::<Self>(), netdev.as_raw()) };
        let this = NonNull::new(ib.cast::<Self>()).ok_or(ENOMEM)?;
        let raw = this.as_ptr();
        // SAFETY: `drv` is uninitialised memory that C does not move and that is freed on failure.
        if let Err(error) = unsafe { pin_init::raw_try_init(&raw mut (*raw).drv, init) } {
            // SAFETY: From `_ib_alloc_device()`; there are no ops yet, so nothing is called.
            unsafe { bindings::ib_dealloc_device(ib) };
            return Err(error);
        }
        // SAFETY: A field of the allocated memory. One count for the registration, one for the caller.
        unsafe { (&raw mut (*raw).head.refs).write(Refcount::new(2)) };
        // SAFETY: As above.
        unsafe { (&raw mut (*raw).head.released).write(Atomic::new(false)) };
        // SAFETY: As above; the device does not move.
        unsafe { pin_init::raw_init(&raw mut (*raw).head.released_completion, Completion::new()) };
        let netdev = new_spinlock_irqsave!(Some(netdev.into()), "Device::netdev");
        // SAFETY: As above.
        unsafe { pin_init::raw_init(&raw mut (*raw).head.netdev, netdev) };
        // SAFETY: `ib` is allocated. The counts own this reference.
        unsafe { bindings::get_device((*raw).head.dev()) };
        // SAFETY: One count is the caller's.
        Ok(unsafe { ARef::from_raw(this) })
    }

    /// The registered device of this driver on `netdev`.
    ///
    /// # Context
    ///
    /// Process, may sleep; RTNL may be held.
    pub fn by_netdev(netdev: &NetDevice) -> Option<DeviceRef<D>> {
        let device = registry::get_by_netdev(TypeId::of::<D>(), netdev.as_raw())?.cast();
        // INVARIANT: The reference was taken, and the device is one of `D`.
        Some(DeviceRef { device })
    }

    /// Borrows a device.
    ///
    /// # Safety
    ///
    /// `ptr` must be a device of driver `D`, with counts that last for the lifetime `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: `alloc` allocated `size_of::<Self>()` bytes with the `ib_device` at the start.
        unsafe { &*ptr.cast() }
    }

    /// C's part.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.head.ib.get()
    }

    /// The driver's part.
    #[inline]
    pub fn drv(&self) -> &D::Device {
        &self.drv
    }

    /// The name that the device has at this moment.
    pub fn name(&self) -> Name {
        let mut name = [0; NAME_MAX];
        // SAFETY: Only the address of the field is taken.
        let from = unsafe { &raw const (*self.as_raw()).name }.cast::<u8>();
        for (i, byte) in name.iter_mut().enumerate().take(NAME_MAX - 1) {
            // SAFETY: `name` has `NAME_MAX` bytes. A change at the same time changes single bytes.
            *byte = unsafe { from.wrapping_add(i).read_volatile() };
        }
        Name(name)
    }

    /// The GUID of the node, in network byte order.
    pub fn node_guid(&self) -> [u8; 8] {
        // SAFETY: By the type invariant; it does not change after registration.
        unsafe { (*self.as_raw()).node_guid }.to_ne_bytes()
    }

    /// The network interface, as long as the device is registered.
    ///
    /// # Context
    ///
    /// Process.
    pub fn netdev(&self) -> Option<ARef<NetDevice>> {
        // SAFETY: The device is live; `device.c:ib_device_get_netdev` copes with one that is not
        // registered.
        let netdev = unsafe { bindings::ib_device_get_netdev(self.as_raw(), PORT) };
        let netdev = NonNull::new(netdev.cast::<NetDevice>())?;
        // SAFETY: The reference is ours; `NetDevice` is transparent.
        Some(unsafe { ARef::from_raw(netdev) })
    }

    /// Width and speed of the link, in the codes of `enum ib_port_width` and `enum ib_port_speed`.
    ///
    /// # Context
    ///
    /// Process, may sleep; RTNL must not be held.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the network interface has gone.
    pub fn eth_speed(&self) -> Result<(u8, u16)> {
        let (mut speed, mut width) = (0u16, 0u8);
        // SAFETY: As in `netdev`.
        let ret =
            unsafe { bindings::ib_get_eth_speed(self.as_raw(), PORT, &mut speed, &mut width) };
        kernel::error::to_result(ret)?;
        Ok((width, speed))
    }
}

impl<D: Driver> AsRef<device::Device> for Device<D> {
    fn as_ref(&self) -> &device::Device {
        // SAFETY: The device inside is live as long as `self`.
        unsafe { device::Device::from_raw(self.head.dev()) }
    }
}

// Not generic and not inlined, so that what can panic in theory (arithmetic on the length of strings)
// stays in this crate.

/// Refuses names that are empty, or patterns.
#[inline(never)]
fn check_name(name: &CStr) -> Result {
    if name.is_empty() || name.to_bytes().contains(&b'%') {
        return Err(EINVAL);
    }
    Ok(())
}

/// Copies the description, which C ends with a nul.
#[inline(never)]
fn set_node_desc(head: &Head, desc: &CStr) {
    let desc = desc.to_bytes();
    // SAFETY: Only the address of the field is taken.
    let dst = unsafe { &raw mut (*head.ib.get()).node_desc }.cast::<u8>();
    for i in 0..63 {
        let byte = desc.get(i).copied().unwrap_or(0);
        // SAFETY: `node_desc` has 64 bytes (`IB_DEVICE_NODE_DESC_MAX`). C writes it without a lock as
        // well.
        unsafe { dst.wrapping_add(i).write_volatile(byte) };
    }
}

/// Whether the network interface has not begun to go.
fn netdev_is_registered(netdev: &NetDevice) -> bool {
    // It is not held, by the contract of the only caller.
    let _rtnl = Rtnl::lock();
    // SAFETY: `netdev` is live as long as the reference to it.
    unsafe { bindings::netdev_is_registered(netdev.as_raw()) }
}

/// Size of a device's name with its final nul (`IB_DEVICE_NAME_MAX`).
const NAME_MAX: usize = 64;

/// The name of a device.
pub struct Name([u8; NAME_MAX]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take_while(|byte| **byte != 0) {
            let c = if byte.is_ascii_graphic() { *byte } else { b'?' };
            fmt::Write::write_char(f, char::from(c))?;
        }
        Ok(())
    }
}

/// A device that stays registered as long as this exists: unregistration waits.
///
/// # Invariants
///
/// A reference for `ib_device_put()` is owned.
pub struct DeviceRef<D: Driver> {
    device: NonNull<Device<D>>,
}

// SAFETY: The reference belongs to no thread.
unsafe impl<D: Driver> Send for DeviceRef<D> {}

// SAFETY: A shared one gives a shared `Device`, which is `Sync`.
unsafe impl<D: Driver> Sync for DeviceRef<D> {}

impl<D: Driver> DeviceRef<D> {
    /// Unregisters the device later, from a work queue.
    ///
    /// # Context
    ///
    /// Process; RTNL may be held.
    pub fn unregister_queued(self) {
        // SAFETY: By the type invariant the device is registered. The end of the work is waited for in
        // `registry::close_link`. The reference is put when `self` is dropped.
        unsafe { bindings::ib_unregister_device_queued(self.as_raw()) };
    }

    /// Tells users that the port became active, or no longer is, if that is so since the last time.
    /// To be called when `netdev`, the network interface of the device, was brought up or down, or its
    /// carrier came or went.
    ///
    /// # Context
    ///
    /// Process; RTNL may be held.
    pub fn report_port_state(&self, netdev: &NetDevice) {
        // SAFETY: By the type invariant the device is registered, and `netdev` is live.
        unsafe { bindings::ib_dispatch_port_state_event(self.as_raw(), netdev.as_raw()) };
    }

    /// Unregisters the device. When this returns, no verb runs any more.
    ///
    /// # Context
    ///
    /// Process, may sleep; RTNL must not be held, and not from within a verb or a [`DeviceRef`] of the
    /// same device.
    pub fn unregister(self) {
        let ib = core::mem::ManuallyDrop::new(self).as_raw();
        // SAFETY: This takes over the reference.
        unsafe { bindings::ib_unregister_device_and_put(ib) };
    }
}

impl<D: Driver> Deref for DeviceRef<D> {
    type Target = Device<D>;

    fn deref(&self) -> &Device<D> {
        // SAFETY: By the type invariant the device is registered, which owns a count.
        unsafe { self.device.as_ref() }
    }
}

impl<D: Driver> Drop for DeviceRef<D> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is owned.
        unsafe { bindings::ib_device_put(self.as_raw()) };
    }
}

/// The thunks for devices.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.query_device`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:setup_device` and `uverbs_cmd.c`: `ib` is a live device of this driver,
    /// `attr` zeroed, `udata` null or valid.
    pub(super) unsafe extern "C" fn query_device(
        ib: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `udata` is null or valid by the safety requirement.
            if unsafe { udata.as_ref() }.is_some_and(|u| u.inlen != 0 || u.outlen != 0) {
                return Err(EINVAL);
            }
            // SAFETY: `ib` is a live device of this driver by the safety requirement.
            let device = unsafe { Device::<D>::from_raw(ib) };
            let mut values = DeviceAttr::default();
            D::query_device(device, &mut values)?;
            // SAFETY: `attr` is valid and exclusive by the safety requirement.
            values.write_to(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// `ib_device_ops.modify_device`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_modify_device`: `ib` is a live device of this driver, `modify` valid.
    pub(super) unsafe extern "C" fn modify_device(
        ib: *mut bindings::ib_device,
        mask: c_int,
        modify: *mut bindings::ib_device_modify,
    ) -> c_int {
        const GUID: u32 = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_SYS_IMAGE_GUID;
        const DESC: u32 = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC;
        // CAST: The mask has the bits of `enum ib_device_modify_flags`.
        let mask = mask as u32;
        if mask & !(GUID | DESC) != 0 {
            return EOPNOTSUPP.to_errno();
        }
        // SAFETY: `ib` is a live device of this driver by the safety requirement.
        let device = unsafe { Device::<D>::from_raw(ib) };
        if mask & GUID != 0 {
            // SAFETY: `modify` is valid by the safety requirement.
            let guid = unsafe { (*modify).sys_image_guid };
            // SAFETY: A field of a live device. C writes it without a lock as well.
            unsafe { (*ib).attrs.sys_image_guid = guid.to_be() };
        }
        if mask & DESC != 0 {
            // SAFETY: `modify` is valid by the safety requirement; an array of 64 bytes.
            let mut desc = unsafe { (*modify).node_desc }.map(|c| c.to_ne_bytes()[0]);
            if let Some(last) = desc.last_mut() {
                *last = 0;
            }
            if let Ok(desc) = CStr::from_bytes_until_nul(&desc) {
                set_node_desc(&device.head, desc);
            }
        }
        0
    }

    /// `ib_device_ops.get_netdev`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_device_get_netdev`: `ib` is a device of this driver in memory, of which
    /// nothing else may be left.
    pub(super) unsafe extern "C" fn get_netdev(
        ib: *mut bindings::ib_device,
        port: u32,
    ) -> *mut bindings::net_device {
        if port != PORT {
            return null_mut();
        }
        // SAFETY: By the safety requirement; all devices have a `Head` at the start (`Device::alloc`).
        let head = unsafe { &*ib.cast::<Head>() };
        let netdev = head.netdev.lock().clone();
        // The reference goes to the caller.
        netdev.map_or(null_mut(), |netdev| ARef::into_raw(netdev).as_ptr().cast())
    }

    /// `ib_device_ops.dealloc_driver`.
    ///
    /// # Safety
    ///
    /// As called by `device.c:ib_dealloc_device`: once for each device that [`Device::register`] has
    /// set the ops of; nothing else is called for it afterwards.
    pub(super) unsafe extern "C" fn dealloc_driver(ib: *mut bindings::ib_device) {
        // SAFETY: The count of the registration is still there.
        let device = unsafe { Device::<D>::from_raw(ib) };
        D::unregistered(device);
        let netdev = device.head.netdev.lock().take();
        drop(netdev);
        registry::mark_dead(&device.head);
        // SAFETY: This gives back the count of the registration, as `Device::alloc` demands.
        unsafe { Device::<D>::dec_ref(NonNull::from(device)) };
    }
}
