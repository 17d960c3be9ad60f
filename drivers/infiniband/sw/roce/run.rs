// SPDX-License-Identifier: GPL-2.0
//! A run: consecutive packets of one message, described once.
//!
//! The driver turns a run into as few buffers as the path allows; on the wire each packet is a
//! plain RoCEv2 packet. A run of one is the simple case. All packets of a run but the last carry a
//! full path MTU of payload, so their buffers are of equal size.
//!
//! ```text
//!  message   | FIRST | MIDDLE | MIDDLE | MIDDLE | LAST |
//!                     \______ one run _________/          position 1, count 3
//! ```

mod place;

use crate::{
    types::{
        Mtu,
        Psn,
        QKey,
        Qpn,
        RKey,
        Srqn, //
    },
    wire::{
        self,
        Aeth,
        AtomicEth,
        Bth,
        Deth,
        Opcode,
        Packet,
        Reth,
        Transport, //
    },
    wqe::{
        AtomicOp,
        SendOp, //
    }, //
};

use place::{
    request_opcode,
    Place, //
};

/// The most bytes of BTH and extension headers that one of our packets carries.
pub const MAX_HEADER: usize = wire::MAX_HEADER_LEN;

/// Where the payload of a run comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadSource {
    /// No payload.
    None,
    /// The gather list or inline data of the send WQE in `slot`, from `offset` bytes on.
    Wqe {
        /// Slot of the WQE.
        slot: u32,
        /// Bytes into its payload.
        offset: u32,
    },
    /// Memory of ours that the peer reads.
    Remote {
        /// The key that the peer gave.
        rkey: RKey,
        /// Virtual address.
        va: u64,
        /// The shared receive queue whose protection domain it is, if an XRCETH named one.
        srq: Srqn,
    },
}

/// Which half of the QP sends a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Requests.
    Requester,
    /// ACKs, NAKs and READ responses.
    Responder,
}

/// What the packets of a run are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Packets of a SEND or WRITE of `packets` packets and `length` bytes, or one other request with
    /// so many bytes of payload.
    Message {
        op: SendOp,
        /// Number of the run's first packet in the message.
        position: u32,
        packets: u32,
        length: u32,
        solicited: bool,
        /// A packet on the way asks for an ACK when these bits of its PSN are all ones.
        ack_mask: u32,
        /// The last packet asks for one whatever its PSN is.
        ack_end: bool,
    },
    /// One READ request.
    ReadRequest { reth: Reth },
    /// Packets of a READ response.
    ReadResponse {
        position: u32,
        packets: u32,
        length: u32,
        aeth: Aeth,
        /// It repeats an earlier one.
        repeated: bool,
    },
    /// The response to an atomic operation.
    AtomicAcknowledge {
        aeth: Aeth,
        /// What was there before.
        original: u64,
    },
    /// One ACK or NAK.
    Acknowledge { aeth: Aeth },
    /// One datagram.
    Datagram {
        qkey: QKey,
        src_qp: Qpn,
        imm: Option<[u8; 4]>,
        length: u32,
        solicited: bool,
    },
}

/// Consecutive packets to send, in order, see [`crate::qp::Qp::poll_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// PSN of the first packet.
    pub psn: Psn,
    /// Number of packets, at least 1.
    pub count: u32,
    /// Slot of the send WQE of a requester's run. The address vector of a datagram is the one that
    /// the driver keeps under it.
    pub slot: Option<u32>,
    /// Who sends.
    pub role: Role,
    /// Where the payload of the first packet starts.
    pub source: PayloadSource,
    /// Payload bytes of a full packet: that of all packets but the last.
    pub mtu: Mtu,
    /// QP of the peer.
    pub dest_qp: Qpn,
    /// What the XRCETH of a request names.
    pub(crate) srq: Srqn,
    /// Transport service.
    pub(crate) transport: Transport,
    pub(crate) form: Form,
    /// Free-running number of the WQE.
    pub(crate) wqe: u32,
    /// First PSN that had never been sent before this run.
    pub(crate) sent_before: Psn,
    /// Life of the QP that it belongs to: after RESET it means nothing.
    pub(crate) epoch: u32,
}

/// BTH and extension headers of one packet, ready for the wire, and what follows them.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket {
    /// Header bytes; the first [`Self::header_len`] are valid.
    pub header: [u8; MAX_HEADER],
    /// Valid bytes of `header`.
    pub header_len: usize,
    /// Payload bytes after the header.
    pub payload_len: u32,
    /// Offset of the payload from the start of the run's payload source, in bytes.
    pub payload_offset: u32,
    /// Zero bytes after the payload, to a multiple of four.
    pub pad: u8,
    /// PSN, for messages and error reports.
    pub psn: Psn,
}

impl Run {
    /// Whether this is requester's work.
    #[inline]
    pub const fn is_requester(&self) -> bool {
        matches!(self.role, Role::Requester)
    }

    /// Payload bytes of all packets together.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        match self.form {
            Form::Message {
                position, length, ..
            }
            | Form::ReadResponse {
                position, length, ..
            } => {
                let rest = length.saturating_sub(self.mtu.span(position));
                rest.min(self.count.saturating_mul(self.mtu.bytes()))
            }
            Form::Datagram { length, .. } => length,
            Form::ReadRequest { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. } => 0,
        }
    }

    /// The headers of packet `index`; `None` if the run has no such packet.
    #[inline]
    pub fn packet(&self, index: u32) -> Option<TxPacket> {
        if index >= self.count {
            return None;
        }
        let psn = self.psn.add(index);
        let mut packet = self.start(index);
        self.complete(index, &mut packet);
        let pad = packet.bth.pad;
        let mut header = [0; MAX_HEADER];
        let header_len = packet.emit(&mut header);
        Some(TxPacket {
            header,
            header_len,
            payload_len: packet.payload_len,
            payload_offset: self.mtu.span(index),
            pad,
            psn,
        })
    }

    /// Packet `index`, of those that the run has, as values, but for what [`Self::complete`] adds: a packet is
    /// large, and not moved about. What is to be written of it are those headers that the opcode has.
    #[inline]
    pub fn start(&self, index: u32) -> Packet {
        let opcode = self.opcode(self.place(index)).over(self.transport);
        Packet::new(Bth::new(opcode, self.dest_qp, self.psn.add(index)))
    }

    /// Packet `index` as its receiver reads it, for a way on which it has no bytes; `None` if the run
    /// has no such packet.
    #[inline]
    pub fn as_received(&self, index: u32) -> Option<Packet> {
        if index >= self.count {
            return None;
        }
        let mut packet = self.start(index);
        self.complete(index, &mut packet);
        // Of what the message has, each packet carries only some.
        let opcode = packet.bth.opcode;
        packet.reth = packet.reth.filter(|_| opcode.has_reth());
        packet.aeth = packet.aeth.filter(|_| opcode.has_aeth());
        packet.imm = packet.imm.filter(|_| opcode.has_imm());
        packet.ieth = packet.ieth.filter(|_| opcode.has_ieth());
        Some(packet)
    }

    /// How many packets from `index` on are from the middle of a message and have no headers but the BTH,
    /// and whether one of them asks for an ACK.
    #[inline]
    pub fn middles(&self, index: u32) -> (u32, bool) {
        let (position, packets) = match self.form {
            Form::Message {
                position, packets, ..
            }
            | Form::ReadResponse {
                position, packets, ..
            } => (position, packets),
            Form::ReadRequest { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Datagram { .. } => return (0, false),
        };
        let number = position.wrapping_add(index);
        let names_queue = matches!(self.transport, Transport::Xrc);
        if names_queue || !matches!(Place::of(number, packets), Place::Middle) {
            return (0, false);
        }
        let last = packets.wrapping_sub(1);
        let left = self.count.saturating_sub(index);
        let count = last.saturating_sub(number).min(left);
        let end = index.saturating_add(count);
        let asks = |index| self.flags(self.psn.add(index), Place::Middle).0;
        (count, (index..end).any(asks))
    }

    /// How many packets from `index` on are alike: with headers of one length, and a full payload.
    /// At least 1, whatever that one is like.
    #[inline]
    pub fn alike(&self, index: u32) -> u32 {
        let (position, packets, length) = match self.form {
            Form::Message {
                position,
                packets,
                length,
                ..
            }
            | Form::ReadResponse {
                position,
                packets,
                length,
                ..
            } => (position, packets, length),
            Form::ReadRequest { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Datagram { .. } => return 1,
        };
        let number = position.wrapping_add(index);
        let is_bare = |number| self.is_bare(Place::of(number, packets));
        if !is_bare(number) {
            return 1;
        }
        // Only the last one may be short, or have more headers than those before it.
        let full = length.checked_div(self.mtu.bytes()).unwrap_or(0);
        let end = match is_bare(packets.wrapping_sub(1)) {
            true => full,
            false => full.min(packets.wrapping_sub(1)),
        };
        let left = self.count.saturating_sub(index);
        end.saturating_sub(number).min(left).max(1)
    }

    /// Whether a packet at this place of a message has no headers but the BTH.
    #[inline]
    const fn is_bare(&self, place: Place) -> bool {
        match (self.form, place) {
            // Each has an XRCETH.
            (Form::Message { .. }, _) if matches!(self.transport, Transport::Xrc) => false,
            (Form::Message { op, .. }, place) => match (op, place) {
                (SendOp::Send, _)
                | (SendOp::SendImm(_) | SendOp::SendInv(_), Place::First | Place::Middle)
                | (SendOp::Write { .. }, Place::Middle | Place::Last)
                | (SendOp::WriteImm { .. }, Place::Middle) => true,
                (_, _) => false,
            },
            (Form::ReadResponse { .. }, Place::Middle) => true,
            (_, _) => false,
        }
    }

    /// The header of packet `index`, if it has none but the BTH.
    #[inline]
    pub fn bare_header(&self, index: u32) -> Option<[u8; Bth::LEN]> {
        let (position, packets, length, op) = match self.form {
            Form::Message {
                op,
                position,
                packets,
                length,
                ..
            } => (position, packets, length, Some(op)),
            Form::ReadResponse {
                position,
                packets,
                length,
                ..
            } => (position, packets, length, None),
            Form::ReadRequest { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Datagram { .. } => return None,
        };
        let number = position.wrapping_add(index);
        let place = Place::of(number, packets);
        if !self.is_bare(place) {
            return None;
        }
        let opcode = match op {
            Some(op) => request_opcode(op, place),
            None => Opcode::RcReadResponseMiddle,
        };
        let psn = self.psn.add(index);
        let mut bth = Bth::new(opcode.over(self.transport), self.dest_qp, psn);
        (bth.ack_req, bth.solicited) = self.flags(psn, place);
        bth.pad = pad(self.share(length, number));
        let mut header = [0; Bth::LEN];
        bth.emit(&mut header)?;
        Some(header)
    }

    /// Whether a packet of a message asks for an ACK, and whether it raises a solicited event.
    #[inline]
    fn flags(&self, psn: Psn, place: Place) -> (bool, bool) {
        match self.form {
            Form::Message {
                solicited,
                ack_mask,
                ack_end,
                ..
            } => {
                let asks = ack_end && place.ends() || psn.get() & ack_mask == ack_mask;
                let acknowledged = self.transport != Transport::Uc;
                (acknowledged && asks, solicited && place.ends())
            }
            Form::ReadRequest { .. }
            | Form::ReadResponse { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Datagram { .. } => (false, false),
        }
    }

    /// Adds what [`Self::start`] has left out.
    #[inline]
    pub fn complete(&self, index: u32, packet: &mut Packet) {
        let psn = packet.bth.psn;
        match self.form {
            Form::Message {
                op,
                position,
                length,
                ..
            } => {
                packet.payload_len = self.share(length, position.wrapping_add(index));
                (packet.bth.ack_req, packet.bth.solicited) = self.flags(psn, self.place(index));
                match op {
                    SendOp::SendImm(imm) => packet.imm = Some(imm),
                    SendOp::SendInv(rkey) => packet.ieth = Some(rkey),
                    SendOp::Write { va, rkey } => packet.reth = Some(Reth { va, rkey, length }),
                    SendOp::WriteImm { va, rkey, imm } => {
                        packet.reth = Some(Reth { va, rkey, length });
                        packet.imm = Some(imm);
                    }
                    SendOp::Atomic { va, rkey, op } => {
                        packet.atomic = Some(atomic_eth(va, rkey, op));
                    }
                    SendOp::AtomicWrite { va, rkey } => {
                        packet.reth = Some(Reth { va, rkey, length });
                    }
                    SendOp::Flush {
                        va,
                        rkey,
                        length,
                        feth,
                    } => {
                        packet.feth = Some(feth);
                        packet.reth = Some(Reth { va, rkey, length });
                    }
                    SendOp::Send
                    | SendOp::Read { .. }
                    | SendOp::Datagram { .. }
                    | SendOp::Local(_)
                    | SendOp::Invalid(_) => {}
                }
            }
            Form::ReadRequest { reth } => {
                packet.reth = Some(reth);
                packet.bth.ack_req = true;
            }
            Form::ReadResponse {
                position,
                length,
                aeth,
                ..
            } => {
                packet.payload_len = self.share(length, position.wrapping_add(index));
                packet.aeth = Some(aeth);
            }
            Form::AtomicAcknowledge { aeth, original } => {
                packet.aeth = Some(aeth);
                packet.atomic_ack = Some(original);
            }
            Form::Acknowledge { aeth } => packet.aeth = Some(aeth),
            Form::Datagram {
                qkey,
                src_qp,
                imm,
                length,
                solicited,
            } => {
                packet.deth = Some(Deth { qkey, src_qp });
                packet.imm = imm;
                packet.payload_len = length;
                packet.bth.solicited = solicited;
            }
        }
        if packet.bth.opcode.has_xrceth() {
            packet.xrceth = Some(self.srq);
        }
        packet.bth.pad = pad(packet.payload_len);
    }

    /// The place of packet `index` in its message.
    #[inline]
    const fn place(&self, index: u32) -> Place {
        match self.form {
            Form::Message {
                position, packets, ..
            }
            | Form::ReadResponse {
                position, packets, ..
            } => Place::of(position.wrapping_add(index), packets),
            Form::ReadRequest { .. }
            | Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Datagram { .. } => Place::Only,
        }
    }

    /// The opcode of a packet at this place of its message, over RC.
    #[inline]
    const fn opcode(&self, place: Place) -> Opcode {
        match self.form {
            Form::Message { op, .. } => request_opcode(op, place),
            Form::ReadRequest { .. } => Opcode::RcReadRequest,
            Form::ReadResponse { .. } => match place {
                Place::First => Opcode::RcReadResponseFirst,
                Place::Middle => Opcode::RcReadResponseMiddle,
                Place::Last => Opcode::RcReadResponseLast,
                Place::Only => Opcode::RcReadResponseOnly,
            },
            Form::AtomicAcknowledge { .. } => Opcode::RcAtomicAcknowledge,
            Form::Acknowledge { .. } => Opcode::RcAcknowledge,
            Form::Datagram { imm: Some(_), .. } => Opcode::UdSendOnlyImm,
            Form::Datagram { imm: None, .. } => Opcode::UdSendOnly,
        }
    }

    /// Payload bytes of packet `number` of a message of `length` bytes.
    #[inline]
    fn share(&self, length: u32, number: u32) -> u32 {
        length
            .saturating_sub(self.mtu.span(number))
            .min(self.mtu.bytes())
    }
}

/// Zero bytes after a payload of `length` bytes.
#[inline]
fn pad(length: u32) -> u8 {
    match length & 3 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

/// The header of an atomic operation.
#[inline]
fn atomic_eth(va: u64, rkey: RKey, op: AtomicOp) -> AtomicEth {
    let (swap_add, compare) = match op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd(add) => (add, 0),
    };
    AtomicEth {
        va,
        rkey,
        swap_add,
        compare,
    }
}
