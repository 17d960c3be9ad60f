// SPDX-License-Identifier: GPL-2.0
//! Address handles: where a datagram goes.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    sync::SpinLockIrqSave,
    verbs::AddressVector, //
};

/// An address handle. User space names it by the number in the device's table; kernel users hold
/// it directly.
#[pin_data]
pub(crate) struct AddressHandle {
    pd: usize,
    number: u32,
    #[pin]
    vector: SpinLockIrqSave<AddressVector>,
}

impl AddressHandle {
    /// A handle with its `number` in the device's table; 0: not in the table.
    pub(crate) fn new(
        pd: usize,
        number: u32,
        vector: AddressVector,
        flags: kernel::alloc::Flags,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                number,
                vector <- rdma::new_spinlock_irqsave!(vector, "ferroce_ah"),
            }),
            flags,
        )
    }

    pub(crate) fn pd(&self) -> usize {
        self.pd
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn vector(&self) -> AddressVector {
        *self.vector.lock()
    }

    pub(crate) fn set_vector(&self, vector: AddressVector) {
        *self.vector.lock() = vector;
    }
}
