// SPDX-License-Identifier: GPL-2.0
//! A world for unit tests: it remembers what a QP asked of it.

use crate::{
    cqe::{
        RecvCqe,
        SendCqe, //
    },
    env::{
        Counter,
        CqOverflow,
        Env,
        MemoryError,
        QpEvent,
        Receive,
        RemoteAccess, //
    },
    qp::{
        attr::QpAttr,
        state::{
            AttrMask,
            QpKind,
            QpState, //
        },
        Qp,
        ReadSlot, //
    },
    run::{
        Run,
        TxPacket, //
    },
    types::{
        Instant,
        Msn,
        Mtu,
        Psn,
        Qpn,
        RKey,
        Srqn, //
    },
    wire::{
        Aeth,
        AtomicEth,
        Bth,
        Feth,
        Opcode,
        Packet,
        Reth,
        Syndrome,
        ICRC_LEN, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        RecvWqe,
        SendOp,
        SendWqe, //
    },
};
use core::ops::Range;
use std::{
    collections::VecDeque,
    vec,
    vec::Vec, //
};

pub(crate) type TestQp = Qp<Vec<SendWqe>, Vec<ReadSlot>>;

pub(crate) const DEST: u32 = 0x22;
pub(crate) const RKEY: RKey = RKey(0x77);
pub(crate) const BASE: u64 = 0x1_0000;

/// Records, and answers as it is told.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) receives: VecDeque<Receive>,
    /// The shared receive queues that an XRCETH may name.
    pub(crate) srqs: Vec<Srqn>,
    /// Those that were selected.
    pub(crate) selected: Vec<Srqn>,
    /// Placements into receive buffers: offset and length.
    pub(crate) received: Vec<(u64, u32)>,
    pub(crate) grhs: u32,
    /// Placements of READ responses: slot, offset, length.
    pub(crate) read: Vec<(u32, u32, u32)>,
    /// Placements of WRITEs: address and length.
    pub(crate) written: Vec<(u64, u32)>,
    /// Atomic operations: address and what.
    pub(crate) atomics: Vec<(u64, AtomicOp)>,
    /// ATOMIC WRITEs: address.
    pub(crate) atomic_writes: Vec<u64>,
    /// FLUSHes: address, length, what.
    pub(crate) flushes: Vec<(u64, u32, Feth)>,
    /// What atomic operations of ours found: slot and value.
    pub(crate) results: Vec<(u32, u64)>,
    /// Remote accesses that were checked.
    pub(crate) checked: Vec<(u64, u32, RemoteAccess)>,
    pub(crate) invalidated: Vec<RKey>,
    pub(crate) sends: Vec<SendCqe>,
    pub(crate) recvs: Vec<RecvCqe>,
    pub(crate) events: Vec<QpEvent>,
    /// What was last said to be retired.
    pub(crate) retired: u32,
    /// That at each completion of a send.
    pub(crate) retired_at: Vec<u32>,
    pub(crate) counts: [u32; Counter::COUNT],
    pub(crate) deny_receive: Option<MemoryError>,
    pub(crate) deny_send: Option<MemoryError>,
    pub(crate) deny_remote: Option<MemoryError>,
    pub(crate) deny_invalidate: bool,
    pub(crate) local: Vec<(u32, LocalOp)>,
    pub(crate) deny_local: bool,
    /// What the peer writes to is on its way.
    pub(crate) not_resident: bool,
    pub(crate) cq_full: bool,
}

impl World {
    pub(crate) fn receive(&mut self, wr_id: u64, length: u64) {
        self.receives
            .push_back(Receive::Wqe(RecvWqe { wr_id, length }));
    }

    pub(crate) fn counted(&self, counter: Counter) -> u32 {
        self.counts[counter as usize]
    }
}

fn deny(error: Option<MemoryError>) -> Result<(), MemoryError> {
    error.map_or(Ok(()), Err)
}

impl Env for World {
    fn select_srq(&mut self, srq: Srqn) -> Result<(), MemoryError> {
        self.selected.push(srq);
        match self.srqs.contains(&srq) {
            true => Ok(()),
            false => Err(MemoryError::Access),
        }
    }

    fn take_receive(&mut self) -> Receive {
        self.receives.pop_front().unwrap_or(Receive::Empty)
    }

    fn write_receive(&mut self, offset: u64, payload: Range<u32>) -> Result<(), MemoryError> {
        self.received.push((offset, payload.end - payload.start));
        if self.not_resident {
            return Err(MemoryError::NotResident);
        }
        deny(self.deny_receive)
    }

    fn write_grh(&mut self) -> Result<(), MemoryError> {
        self.grhs += 1;
        Ok(())
    }

    fn write_send(&mut self, slot: u32, offset: u32, pay: Range<u32>) -> Result<(), MemoryError> {
        self.read.push((slot, offset, pay.end - pay.start));
        deny(self.deny_send)
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert_ne!(length, 0);
        self.checked.push((va, length, access));
        if rkey != RKEY {
            return Err(MemoryError::Access);
        }
        deny(self.deny_remote)
    }

    fn write_remote(&mut self, rkey: RKey, va: u64, pay: Range<u32>) -> Result<(), MemoryError> {
        self.written.push((va, pay.end - pay.start));
        if self.not_resident {
            return Err(MemoryError::NotResident);
        }
        if rkey != RKEY {
            return Err(MemoryError::Access);
        }
        deny(self.deny_remote)
    }

    fn write_result(&mut self, slot: u32, original: u64) -> Result<(), MemoryError> {
        self.results.push((slot, original));
        deny(self.deny_send)
    }

    /// Finds how many there were before.
    fn atomic(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        if rkey != RKEY {
            return Err(MemoryError::Access);
        }
        deny(self.deny_remote)?;
        self.atomics.push((va, op));
        Ok(self.atomics.len() as u64 - 1)
    }

    fn atomic_write(&mut self, rkey: RKey, va: u64, pay: Range<u32>) -> Result<(), MemoryError> {
        assert_eq!(pay, 0..8);
        if rkey != RKEY {
            return Err(MemoryError::Access);
        }
        self.atomic_writes.push(va);
        deny(self.deny_remote)
    }

    fn flush(&mut self, rkey: RKey, va: u64, length: u32, feth: Feth) -> Result<(), MemoryError> {
        if rkey != RKEY {
            return Err(MemoryError::Access);
        }
        self.flushes.push((va, length, feth));
        deny(self.deny_remote)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.invalidated.push(rkey);
        match self.deny_invalidate {
            true => Err(MemoryError::Access),
            false => Ok(()),
        }
    }

    fn local(&mut self, slot: u32, op: LocalOp) -> Result<(), MemoryError> {
        self.local.push((slot, op));
        match self.deny_local {
            true => Err(MemoryError::Access),
            false => Ok(()),
        }
    }

    fn retired(&mut self, count: u32) {
        self.retired = count;
    }

    fn complete_send(&mut self, cqe: SendCqe) -> Result<(), CqOverflow> {
        self.retired_at.push(self.retired);
        self.sends.push(cqe);
        match self.cq_full {
            true => Err(CqOverflow),
            false => Ok(()),
        }
    }

    fn complete_receive(&mut self, cqe: RecvCqe) -> Result<(), CqOverflow> {
        self.recvs.push(cqe);
        match self.cq_full {
            true => Err(CqOverflow),
            false => Ok(()),
        }
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter) {
        self.counts[counter as usize] += 1;
    }
}

/// A QP and its world. Both PSNs start at 100, the path MTU is 256.
pub(crate) struct Node {
    pub(crate) qp: TestQp,
    pub(crate) world: World,
    pub(crate) now: Instant,
}

pub(crate) const FIRST: u32 = 100;

pub(crate) fn attributes() -> QpAttr {
    let mut attr = QpAttr::new();
    attr.path_mtu = Mtu::M256;
    attr.rq_psn = FIRST;
    attr.sq_psn = FIRST;
    attr.dest_qpn = DEST;
    attr.access.remote_read = true;
    attr.access.remote_write = true;
    attr.access.remote_atomic = true;
    attr.access.flush_global = true;
    attr.max_rd_atomic = 2;
    attr.max_dest_rd_atomic = 2;
    attr.min_rnr_timer = 12;
    attr.timeout = 14;
    attr.retry_cnt = 3;
    attr.rnr_retry = 2;
    attr
}

/// The attributes that a QP needs to get from one state to the next.
pub(crate) fn required(kind: QpKind, from: QpState, to: QpState) -> AttrMask {
    crate::qp::state::transition(kind, from, to)
        .unwrap()
        .required
        | AttrMask::STATE
}

impl Node {
    pub(crate) fn reset(kind: QpKind) -> Self {
        let slots = vec![SendWqe::new(0, SendOp::Send, 0); 64];
        let reads = vec![ReadSlot::default(); 2];
        Self {
            qp: Qp::new(kind, Qpn::new(0x11), slots, reads),
            world: World::default(),
            now: Instant(1_000_000_000),
        }
    }

    pub(crate) fn go(&mut self, attr: &QpAttr, to: QpState) {
        let mut attr = *attr;
        attr.state = to;
        let mask = required(self.qp.kind(), self.qp.state(), to);
        self.qp
            .modify(self.now, &attr, mask, &mut self.world)
            .unwrap();
    }

    pub(crate) fn with(kind: QpKind, attr: &QpAttr) -> Self {
        let mut node = Self::reset(kind);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            node.go(attr, state);
        }
        node
    }

    /// A connected QP in RTS.
    pub(crate) fn rc() -> Self {
        Self::with(QpKind::Rc, &attributes())
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, length: u32) -> u32 {
        self.qp.post(SendWqe::new(wr_id, op, length)).unwrap()
    }

    pub(crate) fn poll(&mut self, max: u32) -> Option<Run> {
        self.qp.poll_transmit(self.now, max, &mut self.world)
    }

    /// Everything that the QP has to send now, parsed as the peer would.
    pub(crate) fn sent(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Some(run) = self.poll(64) {
            for index in 0..run.count {
                let packet = parse(&run.packet(index).unwrap());
                assert_eq!(run.as_received(index), Some(packet));
                packets.push(packet);
            }
            assert!(run.packet(run.count).is_none() && run.as_received(run.count).is_none());
            check_alike(&run);
            check_middles(&run);
        }
        packets
    }

    /// What [`Self::sent`] sent, in short.
    pub(crate) fn ladder(&mut self) -> Vec<(Opcode, u32, u32)> {
        self.sent().iter().map(short).collect()
    }

    pub(crate) fn handle(&mut self, packet: Packet) {
        self.qp.handle_packet(self.now, &packet, &mut self.world);
    }

    pub(crate) fn handle_middles(&mut self, packet: Packet, count: u32) -> bool {
        self.qp
            .handle_middles(self.now, &packet, count, &mut self.world)
    }

    pub(crate) fn later(&mut self, ns: u64) {
        self.now = self.now.after(ns);
    }

    /// Lets the next timer fire. Returns how long it took.
    pub(crate) fn timeout(&mut self) -> u64 {
        let at = self.qp.poll_timeout().unwrap();
        let took = at.0 - self.now.0;
        self.now = at;
        self.qp.handle_timeout(self.now, &mut self.world);
        took
    }

    pub(crate) fn statuses(&self) -> Vec<(u64, crate::cqe::WcStatus)> {
        let cqes = self.world.sends.iter();
        cqes.map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }
}

/// What the run says of packets from the middle of a message is so.
fn check_middles(run: &Run) {
    for index in 0..run.count {
        let rest = (index..run.count).map_while(|index| run.as_received(index));
        let middles = rest.take_while(|packet| packet.bth.opcode.is_middle());
        let (count, asks) = middles.fold((0, false), |(count, asks), packet| {
            (count + 1, asks || packet.bth.ack_req)
        });
        assert_eq!(run.middles(index), (count, asks));
    }
}

/// What the run says of packets that are alike is so.
fn check_alike(run: &Run) {
    let mut index = 0;
    let mut before = None;
    while index < run.count {
        let count = run.alike(index);
        assert!(count >= 1 && index + count <= run.count);
        let first = run.packet(index).unwrap();
        let size = |packet: &TxPacket| (packet.header_len, packet.payload_len, packet.pad);
        for index in index..index + count {
            let packet = run.packet(index).unwrap();
            assert_eq!(size(&packet), size(&first));
            let header = &packet.header[..packet.header_len];
            let bare = run.bare_header(index);
            assert!(bare.is_some() || count == 1);
            assert!(bare.is_none_or(|bare| bare == *header));
        }
        // Those in the middle are not parted.
        let is_middle = parse(&first).bth.opcode.is_middle();
        assert_ne!((before, is_middle), (Some(true), true));
        before = Some(is_middle && count > 1);
        index += count;
    }
}

pub(crate) fn short(packet: &Packet) -> (Opcode, u32, u32) {
    let bth = packet.bth;
    (bth.opcode, bth.psn.get(), packet.payload_len)
}

/// Reads a packet of ours back.
pub(crate) fn parse(tx: &TxPacket) -> Packet {
    let header = &tx.header[..tx.header_len];
    let payload = tx.payload_len as usize + usize::from(tx.pad);
    let packet = Packet::parse(header, tx.header_len + payload + ICRC_LEN).unwrap();
    assert_eq!(packet.payload_len, tx.payload_len);
    assert_eq!(packet.bth.psn, tx.psn);
    packet
}

pub(crate) fn packet(opcode: Opcode, psn: u32, payload: u32) -> Packet {
    let mut packet = Packet::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(psn)));
    packet.payload_len = payload;
    packet.bth.ack_req = opcode.ends_message();
    if opcode.has_aeth() {
        packet.aeth = Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: Msn::new(0),
        });
    }
    if opcode.has_imm() {
        packet.imm = Some([1, 2, 3, 4]);
    }
    if opcode.has_ieth() {
        packet.ieth = Some(RKEY);
    }
    packet
}

pub(crate) fn ack(psn: u32) -> Packet {
    answer(psn, Syndrome::ACK)
}

pub(crate) fn answer(psn: u32, syndrome: Syndrome) -> Packet {
    let mut packet = packet(Opcode::RcAcknowledge, psn, 0);
    packet.aeth = Some(Aeth {
        syndrome,
        msn: Msn::new(0),
    });
    packet
}

pub(crate) fn reth(mut packet: Packet, va: u64, length: u32) -> Packet {
    packet.reth = Some(Reth {
        va,
        rkey: RKEY,
        length,
    });
    packet
}

pub(crate) fn atomic_eth(mut packet: Packet, va: u64, compare: u64, swap_add: u64) -> Packet {
    packet.atomic = Some(AtomicEth {
        va,
        rkey: RKEY,
        swap_add,
        compare,
    });
    packet
}

pub(crate) fn atomic_ack(psn: u32, original: u64) -> Packet {
    let mut packet = packet(Opcode::RcAtomicAcknowledge, psn, 0);
    packet.atomic_ack = Some(original);
    packet
}
