// SPDX-License-Identifier: GPL-2.0
//! Port counters, as `rdma statistic` shows them.
//!
//! Names are those of the C driver where the meaning is the same. Each reason for which a packet
//! is dropped has its own.

use kernel::prelude::*;
use rdma::{
    sync::PerCpuCounters,
    verbs::PortStatistics, //
};
use roce::{
    env::Counter,
    wire::Error, //
};

/// Names of the counters of the protocol crate, in the order of [`Counter`].
const PROTOCOL: [&CStr; Counter::COUNT] = [
    c"duplicate_request",
    c"out_of_seq_request",
    c"rcvd_rnr_err",
    c"send_rnr_err",
    c"rcvd_seq_err",
    c"retry_exceeded_err",
    c"retry_rnr_exceeded_err",
    c"completer_retry_err",
    c"local_ack_timeout_err",
    c"implied_nak_seq_err",
    c"rdma_sends",
    c"rdma_recvs",
    c"drop_stray_response",
    c"drop_qp_state",
    c"drop_qp_type",
    c"drop_sequence",
    c"drop_bad_qkey",
    c"drop_no_receive",
    c"resp_invalid_request",
    c"resp_access_error",
    c"drop_bad_pkey",
    c"send_held",
];

/// Names of the reasons why a packet could not be parsed, in the order of [`Error::ALL`].
const PARSE: [&CStr; Error::COUNT] = [
    c"drop_bad_length",
    c"drop_bad_version",
    c"drop_bad_opcode",
    c"drop_bad_pad",
    c"drop_bad_payload",
    c"drop_bad_syndrome",
    c"drop_truncated",
];

/// What this driver counts itself.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum PortCounter {
    SentPackets,
    ReceivedPackets,
    SentBytes,
    ReceivedBytes,
    SendErrors,
    LinkDowned,
    DropBadIcrc,
    DropNoQp,
    DropNoGroup,
    DropBadAddress,
    DropIpOptions,
    SentMulticast,
    ReceivedMulticast,
    PageFaults,
    DropPageFault,
}

/// Names of the driver's own counters, in the order of [`PortCounter`].
const PORT: [&CStr; PORT_COUNT] = [
    c"sent_pkts",
    c"rcvd_pkts",
    c"sent_bytes",
    c"rcvd_bytes",
    c"send_err",
    c"link_downed",
    c"drop_bad_icrc",
    c"drop_no_qp",
    c"drop_no_group",
    c"drop_bad_address",
    c"drop_ip_options",
    c"sent_mcast_pkts",
    c"rcvd_mcast_pkts",
    c"page_faults",
    c"drop_page_fault",
];

const PORT_COUNT: usize = PortCounter::DropPageFault as usize + 1;
const PARSE_FIRST: usize = PORT_COUNT;
const PROTOCOL_FIRST: usize = PARSE_FIRST + Error::COUNT;
const COUNT: usize = PROTOCOL_FIRST + Counter::COUNT;

/// All names, in the order in which [`Counters::read`] gives the values.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
pub(crate) const NAMES: [&CStr; COUNT] = {
    let mut names = [c""; COUNT];
    let mut i = 0;
    while i < COUNT {
        names[i] = if i < PARSE_FIRST {
            PORT[i]
        } else if i < PROTOCOL_FIRST {
            PARSE[i - PARSE_FIRST]
        } else {
            PROTOCOL[i - PROTOCOL_FIRST]
        };
        i += 1;
    }
    names
};

/// The counters of a port; each CPU has its own copy.
pub(crate) struct Counters(PerCpuCounters<COUNT>);

impl Counters {
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    /// Counts an occurrence that the protocol crate reports.
    #[inline]
    pub(crate) fn protocol(&self, counter: Counter) {
        self.0.add(PROTOCOL_FIRST.wrapping_add(counter as usize), 1);
    }

    /// Counts a packet that could not be parsed.
    pub(crate) fn unparsed(&self, error: Error) {
        self.0.add(PARSE_FIRST.wrapping_add(error as usize), 1);
    }

    /// Adds to one of the driver's own counters.
    #[inline]
    pub(crate) fn add(&self, counter: PortCounter, value: u64) {
        self.0.add(counter as usize, value);
    }

    /// Reads all counters, in the order of [`NAMES`].
    pub(crate) fn read(&self, values: &mut [u64]) {
        for (index, value) in values.iter_mut().enumerate().take(COUNT) {
            *value = self.0.sum(index);
        }
    }
    /// What the counters say in the terms of performance management.
    pub(crate) fn statistics(&self) -> PortStatistics {
        let port = |counter: PortCounter| self.0.sum(counter as usize);
        let protocol = |counter: Counter| self.0.sum(PROTOCOL_FIRST.wrapping_add(counter as usize));
        let malformed = (PARSE_FIRST..PROTOCOL_FIRST)
            .fold(0u64, |sum, index| sum.wrapping_add(self.0.sum(index)));
        PortStatistics {
            xmit_bytes: port(PortCounter::SentBytes),
            rcv_bytes: port(PortCounter::ReceivedBytes),
            xmit_packets: port(PortCounter::SentPackets),
            rcv_packets: port(PortCounter::ReceivedPackets),
            multicast_xmit_packets: port(PortCounter::SentMulticast),
            multicast_rcv_packets: port(PortCounter::ReceivedMulticast),
            link_downed: port(PortCounter::LinkDowned),
            rcv_errors: port(PortCounter::DropBadIcrc).wrapping_add(malformed),
            rcv_constraint_errors: protocol(Counter::DropPKey),
            xmit_discards: port(PortCounter::SendErrors),
        }
    }
}
