// SPDX-License-Identifier: GPL-2.0
//! Address handle verbs.

use crate::{
    address::AddressHandle,
    device::Ferroce,
    port::Port,
    uapi::CreateAhResponse, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    net::MulticastAddr,
    udata::Udata,
    verbs::{
        AddressVector,
        Pd, //
    }, //
};

/// Numbers that user space names handles by; 0 means none to the provider.
const NUMBERS: core::ops::Range<u32> = 1..1 << 24;

/// Makes an address handle. That of a user program gets a number and stands in the device's table;
/// kernel users hold theirs directly, and may make them in atomic context.
pub(super) fn create(
    pd: &Pd<Ferroce>,
    av: &AddressVector,
    udata: Option<&Udata>,
    sleepable: bool,
) -> Result<Arc<AddressHandle>> {
    check(av)?;
    let flags = if sleepable { GFP_KERNEL } else { GFP_ATOMIC };
    let Some(udata) = udata else {
        return AddressHandle::new(pd.id(), 0, *av, flags);
    };
    let port = pd.device().drv();
    let number = port.address_numbers.alloc(NUMBERS)?;
    let create = || {
        let handle = AddressHandle::new(pd.id(), number, *av, flags)?;
        // A provider from before there were numbers has no room for one; it names the address
        // in each WQE, which this driver does not take.
        udata.write(&CreateAhResponse {
            ah_num: number,
            reserved: 0,
        })?;
        port.addresses.insert(number, handle.clone())?;
        Ok(handle)
    };
    create().inspect_err(|_: &Error| port.address_numbers.free(number))
}

/// Changes an address handle.
pub(super) fn modify(handle: &AddressHandle, av: &AddressVector) -> Result {
    check(av)?;
    handle.set_vector(*av);
    Ok(())
}

/// Refuses a multicast group of another protocol than the source address: for others the RDMA core
/// has looked the way up.
fn check(av: &AddressVector) -> Result {
    match MulticastAddr::from_mapped(&av.dgid) {
        Some(MulticastAddr::V4(_)) if !av.v4 => Err(EINVAL),
        Some(MulticastAddr::V6(_)) if av.v4 => Err(EINVAL),
        Some(_) | None => Ok(()),
    }
}

/// Ends an address handle. Datagrams that are posted keep theirs.
pub(super) fn destroy(port: &Port, handle: &AddressHandle) {
    let number = handle.number();
    if number != 0 {
        let _ = port.addresses.remove(number);
        port.address_numbers.free(number);
    }
}
