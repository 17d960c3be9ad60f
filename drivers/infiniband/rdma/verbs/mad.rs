// SPDX-License-Identifier: GPL-2.0

//! Management datagrams that the device answers itself: those of performance management.
//!
//! C headers: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h),
//! [`include/rdma/ib_pma.h`](srctree/include/rdma/ib_pma.h).
//! In the tree this file would be `rust/kernel/rdma/mad.rs`.
//!
//! The core asks for the counters in sysfs (`ports/1/counters`) with them, and peers may ask by queue
//! pair 1. Everything else goes on to the agents of the core.
//!
//! ```text
//!   0                 24                64
//!   +-----------------+-----------------+---------------------------------+
//!   | common header   | reserved        | attribute                       |  256 bytes
//!   +-----------------+-----------------+---------------------------------+
//! ```

use super::{
    port::PORT,
    Device,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::prelude::*;

/// What a port has counted, for performance management. Errors that a counter here does not name do
/// not exist on a port like this.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortStatistics {
    /// Bytes that were sent, transport headers included.
    pub xmit_bytes: u64,
    /// Bytes that were received.
    pub rcv_bytes: u64,
    /// Packets that were sent.
    pub xmit_packets: u64,
    /// Packets that were received.
    pub rcv_packets: u64,
    /// Those among `xmit_packets` that went to a multicast address.
    pub multicast_xmit_packets: u64,
    /// Those among `rcv_packets` that came to a multicast address.
    pub multicast_rcv_packets: u64,
    /// How often the link went down.
    pub link_downed: u64,
    /// Packets that were received damaged or malformed.
    pub rcv_errors: u64,
    /// Packets of another partition.
    pub rcv_constraint_errors: u64,
    /// Packets that could not be sent.
    pub xmit_discards: u64,
}

/// Size of a management datagram.
const MAD_LEN: usize = 256;

/// Where the attribute of performance management starts.
const DATA: usize = 64;

/// A datagram as bytes.
type Mad = [u8; MAD_LEN];

/// Fields of the common header (IBTA 13.4.2).
const BASE_VERSION: usize = 0;
const MGMT_CLASS: usize = 1;
const CLASS_VERSION: usize = 2;
const METHOD: usize = 3;
const STATUS: usize = 4;
const ATTRIBUTE: usize = 16;
const COMMON_HEADER: usize = 24;

/// Class of performance management (`IB_MGMT_CLASS_PERF_MGMT`).
const PERF_MGMT: u8 = 0x04;

/// Methods (`IB_MGMT_METHOD_*`).
const GET: u8 = 0x01;
const SET: u8 = 0x02;
const GET_RESP: u8 = 0x81;

/// Attributes (`IB_PMA_*`).
const CLASS_PORT_INFO: u16 = 0x0001;
const PORT_COUNTERS: u16 = 0x0012;
const PORT_COUNTERS_EXT: u16 = 0x001d;

/// Statuses (`IB_MGMT_MAD_STATUS_*`).
const BAD_VERSION: u16 = 0x0004;
const UNSUPPORTED_METHOD_ATTRIB: u16 = 0x000c;
const INVALID_ATTRIB_VALUE: u16 = 0x001c;

/// There are 64-bit counters, of unicast and multicast too (`IB_PMA_CLASS_CAP_EXT_WIDTH`).
const CAP_EXT_WIDTH: u16 = 0x0200;

/// `port_select` for all ports.
const ALL_PORTS: u8 = 0xff;

/// The answer to `request`; `None` if it is none of ours.
fn answer(request: &Mad, statistics: impl FnOnce() -> PortStatistics) -> Option<Mad> {
    if request[MGMT_CLASS] != PERF_MGMT || !matches!(request[METHOD], GET | SET) {
        return None;
    }
    let mut reply = [0; MAD_LEN];
    reply[..COMMON_HEADER].copy_from_slice(&request[..COMMON_HEADER]);
    reply[METHOD] = GET_RESP;
    let status = fill(request, &mut reply, statistics).err().unwrap_or(0);
    reply[STATUS..STATUS + 2].copy_from_slice(&status.to_be_bytes());
    Some(reply)
}

/// Fills in the attribute; the error is a status.
fn fill(
    request: &Mad,
    reply: &mut Mad,
    statistics: impl FnOnce() -> PortStatistics,
) -> Result<(), u16> {
    if request[BASE_VERSION] != 1 || request[CLASS_VERSION] != 1 {
        return Err(BAD_VERSION);
    }
    let attribute = u16::from_be_bytes([request[ATTRIBUTE], request[ATTRIBUTE + 1]]);
    let known = matches!(
        attribute,
        CLASS_PORT_INFO | PORT_COUNTERS | PORT_COUNTERS_EXT
    );
    // Counters cannot be set back: others read them as well.
    if !known || request[METHOD] != GET {
        return Err(UNSUPPORTED_METHOD_ATTRIB);
    }
    let mut out = Writer {
        mad: reply,
        at: DATA,
    };
    if attribute == CLASS_PORT_INFO {
        out.put([1, 1]);
        out.put(CAP_EXT_WIDTH.to_be_bytes());
        return Ok(());
    }
    let select = request[DATA + 1];
    if u32::from(select) != PORT && select != ALL_PORTS {
        return Err(INVALID_ATTRIB_VALUE);
    }
    // Which of the counters are to be set is echoed, and means nothing here.
    out.put([0, select, request[DATA + 2], request[DATA + 3]]);
    if attribute == PORT_COUNTERS {
        put_counters(&mut out, &statistics());
    } else {
        put_counters_ext(&mut out, &statistics());
    }
    Ok(())
}

/// `struct ib_pma_portcounters` behind its first four bytes. These stop at their largest value
/// (IBTA 16.1.3.5).
fn put_counters(out: &mut Writer<'_>, s: &PortStatistics) {
    let byte = |value: u64| [value.min(0xff) as u8];
    let half = |value: u64| (value.min(0xffff) as u16).to_be_bytes();
    let word = |value: u64| (value.min(0xffff_ffff) as u32).to_be_bytes();
    out.put(half(0)); // symbol errors
    out.put(byte(0)); // link error recovery
    out.put(byte(s.link_downed));
    out.put(half(s.rcv_errors));
    out.put(half(0)); // remote physical errors
    out.put(half(0)); // switch relay errors
    out.put(half(s.xmit_discards));
    out.put(byte(0)); // transmit constraint errors
    out.put(byte(s.rcv_constraint_errors));
    out.put([0; 4]); // link integrity, buffer overruns
    out.put(half(0)); // VL15 dropped
    out.put(word(s.xmit_bytes / 4));
    out.put(word(s.rcv_bytes / 4));
    out.put(word(s.xmit_packets));
    out.put(word(s.rcv_packets));
}

/// `struct ib_pma_portcounters_ext` behind its first four bytes.
fn put_counters_ext(out: &mut Writer<'_>, s: &PortStatistics) {
    out.put([0; 4]);
    // Data is counted in units of four bytes (IBTA 16.1.3.5).
    for value in [
        s.xmit_bytes / 4,
        s.rcv_bytes / 4,
        s.xmit_packets,
        s.rcv_packets,
        s.xmit_packets.wrapping_sub(s.multicast_xmit_packets),
        s.rcv_packets.wrapping_sub(s.multicast_rcv_packets),
        s.multicast_xmit_packets,
        s.multicast_rcv_packets,
    ] {
        out.put(value.to_be_bytes());
    }
}

/// Writes fields one after the other.
struct Writer<'a> {
    mad: &'a mut Mad,
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        let end = self.at.wrapping_add(N);
        if let Some(to) = self.mad.get_mut(self.at..end) {
            to.copy_from_slice(&field);
        }
        self.at = end;
    }
}

/// The thunks for management datagrams.
pub(super) struct VTable<D: Driver>(PhantomData<D>);

impl<D: Driver> VTable<D> {
    /// `ib_device_ops.process_mad`.
    ///
    /// # Safety
    ///
    /// As called by `mad.c:ib_mad_recv_done` and `sysfs.c:get_perf_mad`: `ib` is a live device of this
    /// driver; `request` and `reply` are valid, of 256 bytes each, and different.
    pub(super) unsafe extern "C" fn process(
        ib: *mut bindings::ib_device,
        _flags: c_int,
        port: u32,
        _wc: *const bindings::ib_wc,
        _grh: *const bindings::ib_grh,
        request: *const bindings::ib_mad,
        reply: *mut bindings::ib_mad,
        _reply_len: *mut usize,
        _pkey_index: *mut u16,
    ) -> c_int {
        if port != PORT {
            return bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;
        }
        // SAFETY: `ib` is a live device of this driver by the safety requirement.
        let device = unsafe { Device::<D>::from_raw(ib) };
        // SAFETY: `request` is valid, of this size, by the safety requirement.
        let request = unsafe { &*request.cast::<Mad>() };
        let mut result = bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS;
        if let Some(mad) = answer(request, || D::port_statistics(device)) {
            // SAFETY: `reply` is valid, of this size, by the safety requirement.
            unsafe { reply.cast::<Mad>().write(mad) };
            result |= bindings::ib_mad_result_IB_MAD_RESULT_REPLY;
        }
        // CAST: Two bits.
        result as c_int
    }
}
