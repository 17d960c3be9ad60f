// SPDX-License-Identifier: GPL-2.0

//! What bindgen makes of the C headers, on top of what the kernel crate already has.
//!
//! Generated at build time from `include/rdma/ferroce_bindings.h` and `helpers.c`; see `Kbuild`.

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    warnings
)]
mod generated {
    // What is generated here shadows what is only declared, opaque, in the kernel crate.
    pub use kernel::bindings::*;
    use kernel::ffi;
    use pin_init::MaybeZeroable;

    include!(concat!(env!("RDMA_OBJ"), "/bindings_generated.rs"));
}

#[allow(clippy::all, dead_code, improper_ctypes, missing_docs, warnings)]
mod helpers {
    use super::generated::*;
    use kernel::ffi;

    include!(concat!(env!("RDMA_OBJ"), "/bindings_helpers_generated.rs"));
}

#[allow(unused_imports)]
pub(crate) use {
    generated::*,
    helpers::*, //
};
