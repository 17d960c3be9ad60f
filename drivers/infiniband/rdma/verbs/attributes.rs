// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices in sysfs: `parent`, the name of the network interface, and the driver's switches.
//!
//! C header: [`include/linux/device.h`](srctree/include/linux/device.h) (`struct device_attribute`).
//! In the tree this file would be `rust/kernel/rdma/attributes.rs`.
//!
//! udev's `rdma-description.rules` go by the first.

use super::{
    port::PORT,
    Device,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    str::CStr, //
};

/// A switch that a device has as an attribute: 1 or 0.
pub struct Switch<D: Driver> {
    /// The name of the attribute.
    pub name: &'static CStr,
    /// Reads it. Process context, may sleep.
    pub get: fn(&Device<D>) -> bool,
    /// Sets it. Process context, may sleep.
    pub set: fn(&Device<D>, bool),
}

/// The attributes of devices of driver `D`.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    #[allow(clippy::needless_update, reason = "with lockdep there are more fields")]
    const PARENT: &'static bindings::device_attribute = &bindings::device_attribute {
        attr: bindings::attribute {
            name: c"parent".to_bytes_with_nul().as_ptr(),
            mode: 0o444,
            ..pin_init::zeroed()
        },
        __bindgen_anon_1: bindings::device_attribute__bindgen_ty_1 {
            show: Some(Self::show_parent),
        },
        ..pin_init::zeroed()
    };

    const ATTRS: &'static [*mut bindings::attribute; 4] = &[
        // C does not write to attributes.
        core::ptr::from_ref(Self::PARENT).cast_mut().cast(),
        core::ptr::from_ref(SwitchAttribute::<D, 0>::ATTRIBUTE)
            .cast_mut()
            .cast(),
        core::ptr::from_ref(SwitchAttribute::<D, 1>::ATTRIBUTE)
            .cast_mut()
            .cast(),
        core::ptr::null_mut(),
    ];

    /// The group with all of them.
    pub(super) const GROUP: &'static bindings::attribute_group = &bindings::attribute_group {
        __bindgen_anon_2: bindings::attribute_group__bindgen_ty_2 {
            attrs: Self::ATTRS.as_ptr().cast_mut(),
        },
        ..pin_init::zeroed()
    };

    /// Shows the name of the network interface.
    ///
    /// # Safety
    ///
    /// As called by `drivers/base/core.c:dev_attr_show` for a device of the RDMA core of this driver:
    /// `dev` is live, and `buf` is a page.
    unsafe extern "C" fn show_parent(
        dev: *mut bindings::device,
        _attr: *mut bindings::device_attribute,
        buf: *mut kernel::ffi::c_char,
    ) -> isize {
        // SAFETY: By the safety requirement.
        let device = unsafe { Self::device(dev) };
        // SAFETY: The device is live.
        let netdev = unsafe { bindings::ib_device_get_netdev(device.as_raw(), PORT) };
        if netdev.is_null() {
            // CAST: A small number.
            return ENODEV.to_errno() as isize;
        }
        // SAFETY: `netdev` is referenced since `ib_device_get_netdev`.
        let name = unsafe { bindings::rdma_netdev_name(netdev) };
        // SAFETY: `buf` is a page, and the name ends with a nul, which renaming leaves alone.
        let len = unsafe { bindings::sysfs_emit(buf, c"%s\n".to_bytes_with_nul().as_ptr(), name) };
        // SAFETY: This puts the reference of `ib_device_get_netdev`.
        unsafe { bindings::rdma_dev_put(netdev) };
        // CAST: At most a page.
        len as isize
    }

    /// The device that `dev` belongs to.
    ///
    /// # Safety
    ///
    /// `dev` must belong to a registered device of this driver, and stay so as long as the result is
    /// used.
    unsafe fn device<'a>(dev: *mut bindings::device) -> &'a Device<D> {
        // SAFETY: `dev` belongs to a device of the RDMA core by the safety requirement.
        let ib = unsafe { bindings::rdma_device_to_ibdev(dev) };
        // SAFETY: It is one of this driver. Attributes go when it is unregistered, before the driver's
        // part does.
        unsafe { Device::from_raw(ib) }
    }
}

/// The attribute of switch `N` of driver `D`.
struct SwitchAttribute<D: Driver, const N: usize>(PhantomData<D>);

impl<D: Driver, const N: usize> SwitchAttribute<D, N> {
    const SWITCH: &'static Switch<D> = &D::SWITCHES[N];

    #[allow(clippy::needless_update, reason = "with lockdep there are more fields")]
    const ATTRIBUTE: &'static bindings::device_attribute = &bindings::device_attribute {
        attr: bindings::attribute {
            name: Self::SWITCH.name.to_bytes_with_nul().as_ptr(),
            mode: 0o644,
            ..pin_init::zeroed()
        },
        __bindgen_anon_1: bindings::device_attribute__bindgen_ty_1 {
            show: Some(Self::show_switch),
        },
        __bindgen_anon_2: bindings::device_attribute__bindgen_ty_2 {
            store: Some(Self::store_switch),
        },
    };

    /// Shows the switch.
    ///
    /// # Safety
    ///
    /// As [`VTable::show_parent`].
    unsafe extern "C" fn show_switch(
        dev: *mut bindings::device,
        _attr: *mut bindings::device_attribute,
        buf: *mut kernel::ffi::c_char,
    ) -> isize {
        // SAFETY: By the safety requirement.
        let device = unsafe { VTable::<D>::device(dev) };
        let value = c_int::from((Self::SWITCH.get)(device));
        // SAFETY: `buf` is a page.
        let len = unsafe { bindings::sysfs_emit(buf, c"%d\n".to_bytes_with_nul().as_ptr(), value) };
        // CAST: At most a page.
        len as isize
    }

    /// Sets the switch.
    ///
    /// # Safety
    ///
    /// As called by `drivers/base/core.c:dev_attr_store` for a device of the RDMA core of this driver:
    /// `dev` is live, and `buf` a string.
    unsafe extern "C" fn store_switch(
        dev: *mut bindings::device,
        _attr: *mut bindings::device_attribute,
        buf: *const kernel::ffi::c_char,
        count: usize,
    ) -> isize {
        let mut on = false;
        // SAFETY: `buf` is a string by the safety requirement.
        let parsed = unsafe { bindings::kstrtobool(buf, &mut on) };
        if parsed != 0 {
            return parsed as isize;
        }
        // SAFETY: By the safety requirement.
        let device = unsafe { VTable::<D>::device(dev) };
        (Self::SWITCH.set)(device, on);
        // CAST: At most a page.
        count as isize
    }
}
