// SPDX-License-Identifier: GPL-2.0

//! What tests need of the network.

use crate::bindings;

/// The initial namespace.
pub(crate) fn init_net() -> *mut bindings::net {
    #[allow(improper_ctypes, reason = "only its address is taken")]
    extern "C" {
        static mut init_net: bindings::net;
    }
    &raw mut init_net
}
