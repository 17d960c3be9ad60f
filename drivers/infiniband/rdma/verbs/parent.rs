// SPDX-License-Identifier: GPL-2.0

//! The sysfs attribute `parent` of devices: the name of the network interface.
//!
//! C header: [`include/linux/device.h`](srctree/include/linux/device.h) (`struct device_attribute`).
//! In the tree this file would be `rust/kernel/rdma/parent.rs`.
//!
//! udev's `rdma-description.rules` go by it.

use super::port::PORT;
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::prelude::*;

/// A static that C has a pointer to.
#[repr(transparent)]
pub(super) struct Static<T>(UnsafeCell<T>);

// SAFETY: Only C has access, and synchronises it.
unsafe impl<T> Sync for Static<T> {}

impl<T> Static<T> {
    pub(super) const fn get(&'static self) -> *mut T {
        self.0.get()
    }
}

#[allow(clippy::needless_update, reason = "with lockdep there are more fields")]
static PARENT: Static<bindings::device_attribute> =
    Static(UnsafeCell::new(bindings::device_attribute {
        attr: bindings::attribute {
            name: c"parent".to_bytes_with_nul().as_ptr(),
            mode: 0o444,
            ..pin_init::zeroed()
        },
        __bindgen_anon_1: bindings::device_attribute__bindgen_ty_1 { show: Some(show) },
        ..pin_init::zeroed()
    }));

static ATTRS: Static<[*mut bindings::attribute; 2]> = Static(UnsafeCell::new([
    PARENT.get().cast(),
    core::ptr::null_mut(),
]));

/// The group with that attribute.
pub(super) static GROUP: Static<bindings::attribute_group> =
    Static(UnsafeCell::new(bindings::attribute_group {
        __bindgen_anon_2: bindings::attribute_group__bindgen_ty_2 {
            attrs: ATTRS.get().cast(),
        },
        ..pin_init::zeroed()
    }));

/// Shows the name.
///
/// # Safety
///
/// As called by `drivers/base/core.c:dev_attr_show` for a device of the RDMA core: `dev` is live, and
/// `buf` is a page.
unsafe extern "C" fn show(
    dev: *mut bindings::device,
    _attr: *mut bindings::device_attribute,
    buf: *mut kernel::ffi::c_char,
) -> isize {
    // SAFETY: `dev` belongs to a device of the RDMA core by the safety requirement.
    let ib = unsafe { bindings::rdma_device_to_ibdev(dev) };
    // SAFETY: `ib` is live as long as `dev`.
    let netdev = unsafe { bindings::ib_device_get_netdev(ib, PORT) };
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
