// SPDX-License-Identifier: GPL-2.0
//! One end: a queue pair, its world, and the driver's part of the data path.

use crate::{
    ladder::{
        Ladder,
        What, //
    },
    link::Link,
    pair::{
        Config,
        End, //
    },
    world::{
        PostedReceive,
        SlotData,
        World,
        WriteOnce, //
    }, //
};
use fastrand::Rng;
use roce::{
    qp::{
        attr::{
            QpAccess,
            QpAttr, //
        },
        state::{
            self,
            AttrMask,
            QpState, //
        },
        AttrError,
        Qp,
        ReadSlot, //
    },
    run::Run,
    types::{
        Instant,
        Qpn, //
    },
    wire::{
        icrc::{
            self,
            Crc32,
            Flow,
            SoftCrc32, //
        },
        Packet,
        ICRC_LEN,
        UDP_PORT, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    }, //
};

/// IPv4 and UDP.
const IP_UDP: usize = 28;
/// How much of a packet the parser is shown.
const AT_HAND: usize = 64;

/// One end of a pair.
pub struct Host {
    /// Which end.
    pub end: End,
    /// The queue pair.
    pub qp: Qp<Vec<SendWqe>, Vec<ReadSlot>>,
    /// What surrounds it.
    pub world: World,
    /// Chances out of 1000 that the way out is full.
    pub congestion: u32,
    /// The most packets of a run.
    pub max_run: u32,
    /// Chances out of 1000 that a packet comes in with headers forged by a hostile peer, who knows
    /// how to compute an ICRC.
    pub forgery: u32,
    /// Receives come from a queue that others take from as well, see [`Self::share_receives`].
    pub shared: bool,
    retired: u32,
    ip: [u8; 20],
    udp: [u8; 8],
    flow: Flow,
    rng: Rng,
}

impl Host {
    /// A host whose QP is in RESET.
    pub(crate) fn new(end: End, config: &Config, rng: Rng) -> Self {
        let (here, there) = match end {
            End::A => (1, 2),
            End::B => (2, 1),
        };
        let ip = [
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, here, 10, 0, 0, there,
        ];
        let [port_high, port_low] = UDP_PORT.to_be_bytes();
        let udp = [0xc0, here, port_high, port_low, 0, 0, 0, 0];
        Self {
            end,
            qp: Qp::new(
                config.kind(end),
                end.qpn(),
                vec![SendWqe::new(0, SendOp::Send, 0); config.slots],
                vec![ReadSlot::default(); usize::from(config.reads)],
            ),
            world: World {
                slots: vec![None; config.slots],
                ..World::default()
            },
            congestion: 0,
            max_run: config.max_run,
            forgery: 0,
            shared: false,
            retired: 0,
            ip,
            udp,
            flow: Flow::v4::<SoftCrc32>(&ip, &udp),
            rng,
        }
    }

    /// Makes the receive queue one that others might take from: in ERR it is not flushed.
    pub fn share_receives(&mut self) {
        self.shared = true;
        self.qp.share_receives();
    }

    /// Brings the QP from RESET to RTS.
    pub(crate) fn connect(&mut self, now: Instant, config: &Config) {
        let mut attr = QpAttr::new();
        attr.access = QpAccess {
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            flush_global: true,
            flush_persistent: false,
        };
        attr.path_mtu = config.mtu;
        self.qp.set_port_mtu(config.mtu);
        attr.qkey = config.qkey();
        attr.dest_qpn = self.end.other().qpn().get();
        attr.sq_psn = config.psn(self.end).get();
        attr.rq_psn = config.psn(self.end.other()).get();
        attr.max_rd_atomic = config.reads;
        attr.max_dest_rd_atomic = config.reads;
        attr.min_rnr_timer = config.min_rnr_timer;
        attr.timeout = config.timeout;
        attr.retry_cnt = config.retry_cnt;
        attr.rnr_retry = config.rnr_retry;
        for (from, state) in [
            (QpState::Reset, QpState::Init),
            (QpState::Init, QpState::Rtr),
            (QpState::Rtr, QpState::Rts),
        ] {
            let rule =
                state::transition(config.kind(self.end), from, state).expect("on the way to RTS");
            attr.state = state;
            self.qp
                .modify(now, &attr, AttrMask::STATE | rule.required, &mut self.world)
                .expect("to RTS");
        }
    }

    /// Posts a send WQE with the payload `bytes`, or with so much room for the response of a READ.
    /// Returns whether there was a free slot.
    pub fn post_send(
        &mut self,
        now: Instant,
        ladder: &mut Ladder,
        wqe: SendWqe,
        bytes: Vec<u8>,
    ) -> bool {
        assert_eq!(bytes.len(), wqe.length as usize);
        let Some(slot) = self.qp.next_slot() else {
            return false;
        };
        let op = match wqe.op {
            SendOp::Send => "SEND",
            SendOp::SendImm(_) => "SEND_IMM",
            SendOp::SendInv(_) => "SEND_INV",
            SendOp::Write { .. } => "WRITE",
            SendOp::WriteImm { .. } => "WRITE_IMM",
            SendOp::Read { .. } => "READ",
            SendOp::Atomic { .. } => "atomic",
            SendOp::AtomicWrite { .. } => "ATOMIC_WRITE",
            SendOp::Flush { .. } => "FLUSH",
            SendOp::Datagram { .. } => "datagram",
            SendOp::Local(_) => "local",
            SendOp::Invalid(_) => "invalid",
        };
        let (wr_id, length) = (wqe.wr_id, wqe.length);
        ladder.push(now, self.end, What::Posted { wr_id, op, length });
        let entry = &mut self.world.slots[slot as usize];
        assert!(entry.is_none(), "slot {slot} is still in use");
        *entry = Some(SlotData {
            bytes,
            broken: false,
            read: matches!(wqe.op, SendOp::Read { .. } | SendOp::Atomic { .. }),
        });
        assert_eq!(self.qp.post(wqe), Ok(slot));
        true
    }

    /// Posts a receive with a buffer of `length` bytes.
    pub fn post_receive(&mut self, now: Instant, ladder: &mut Ladder, wr_id: u64, length: usize) {
        ladder.push(now, self.end, What::PostedReceive(wr_id));
        self.world.receives.push_back(PostedReceive {
            wr_id,
            memory: WriteOnce::new(length),
            invalid: false,
        });
    }

    /// Takes in what came from the link.
    pub(crate) fn receive(&mut self, now: Instant, ladder: &mut Ladder, frame: &[u8]) {
        let Some((packet, payload)) = check(frame) else {
            ladder.push(now, self.end, What::Damaged);
            return;
        };
        assert_eq!(packet.bth.dest_qp, self.qp.qpn());
        let packet = self.forge(packet, frame);
        ladder.push(now, self.end, What::Arrived(packet));
        self.world.payload.clear();
        self.world.payload.extend_from_slice(payload);
        self.work(now, ladder, |host| {
            // Half of the packets by the way for many at once, which must not make a difference.
            let alone = packet.bth.psn.get() & 1 == 0;
            if alone || !host.qp.handle_middles(now, &packet, 1, &mut host.world) {
                host.qp.handle_packet(now, &packet, &mut host.world);
            }
        });
    }

    /// Changes headers of a packet that came as `frame`, by chance. The payload stays.
    fn forge(&mut self, packet: Packet, frame: &[u8]) -> Packet {
        if self.rng.u32(0..1000) >= self.forgery {
            return packet;
        }
        let mut bytes = [0; AT_HAND];
        let udp_payload = &frame[IP_UDP..];
        let length = udp_payload.len().min(AT_HAND);
        bytes[..length].copy_from_slice(&udp_payload[..length]);
        for _ in 0..self.rng.u32(1..4) {
            match self.rng.u32(0..6) {
                0 => bytes[0] = self.rng.u8(0..0x18),
                // PSN: near, and anywhere.
                1 => bytes[11] = bytes[11].wrapping_add(self.rng.u8(..).leading_zeros() as u8),
                2 => bytes[9..12].fill_with(|| self.rng.u8(..)),
                // The first extension header.
                3 => bytes[self.rng.usize(12..16)] = self.rng.u8(..),
                4 => bytes[self.rng.usize(12..28)] ^= 1 << self.rng.u32(0..8),
                _ => bytes[self.rng.usize(1..12)] = self.rng.u8(..),
            }
        }
        match Packet::parse(&bytes, udp_payload.len()) {
            // The payload that is at hand is that of the packet as it was.
            Ok(forged) if forged.payload_len <= packet.payload_len => forged,
            Ok(_) | Err(_) => packet,
        }
    }

    /// Lets the QP look at its timers.
    pub(crate) fn timeout(&mut self, now: Instant, ladder: &mut Ladder) {
        ladder.push(now, self.end, What::Timeout);
        self.work(now, ladder, |host| {
            host.qp.handle_timeout(now, &mut host.world);
        });
    }

    /// Modifies the QP; not to RESET.
    pub(crate) fn modify(
        &mut self,
        now: Instant,
        ladder: &mut Ladder,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), AttrError> {
        let mut result = Ok(());
        self.work(now, ladder, |host| {
            result = host.qp.modify(now, attr, mask, &mut host.world);
        });
        result
    }

    /// Puts the QP back to RESET and connects it again. Its memory remains.
    pub(crate) fn reconnect(&mut self, now: Instant, config: &Config) {
        let mut attr = QpAttr::new();
        attr.state = QpState::Reset;
        self.qp
            .modify(now, &attr, AttrMask::STATE, &mut self.world)
            .expect("to RESET");
        assert_eq!(self.qp.poll_timeout(), None, "a timer in RESET");
        assert_eq!(self.qp.retired(), 0);
        self.retired = 0;
        self.world.slots.fill(None);
        self.world.receives.clear();
        self.world.current = None;
        self.connect(now, config);
    }

    /// Sends what there is to send, flushes, and frees what is retired.
    pub(crate) fn transmit(&mut self, now: Instant, ladder: &mut Ladder, link: &mut Link) {
        for round in 0.. {
            assert!(round < 100_000, "no end of transmissions");
            let max = self.rng.u32(1..=self.max_run);
            let mut run = None;
            self.work(now, ladder, |host| {
                run = host.qp.poll_transmit(now, max, &mut host.world);
            });
            let Some(run) = run else {
                break;
            };
            assert!(run.count >= 1 && run.count <= max, "run of {}", run.count);
            self.send_run(now, ladder, link, &run);
            self.work(now, ladder, |host| host.qp.transmitted(&mut host.world));
        }
        if matches!(self.qp.state(), QpState::Err | QpState::Sqe) {
            for round in 0.. {
                assert!(round < 100_000, "no end of flushing");
                let max = self.rng.u32(1..=8);
                let mut more = false;
                self.work(now, ladder, |host| {
                    more = host.qp.flush(now, &mut host.world, max);
                });
                if !more {
                    break;
                }
            }
        }
        let retired = self.qp.retired();
        let slots = self.world.slots.len();
        while self.retired != retired {
            let data = self.world.slots[self.retired as usize % slots]
                .take()
                .expect("retired more than was posted");
            if data.read {
                self.world.read_results.push(data.bytes);
            }
            self.retired = self.retired.wrapping_add(1);
        }
    }

    fn send_run(&mut self, now: Instant, ladder: &mut Ladder, link: &mut Link, run: &Run) {
        for index in 0..run.count {
            let tx = run.packet(index).expect("packet of a run");
            if link.is_full(now) || self.rng.u32(0..1000) < self.congestion {
                ladder.push(now, self.end, What::Congested);
                self.qp.congested(now, run, index);
                return;
            }
            assert_eq!((tx.payload_len + u32::from(tx.pad)) % 4, 0);
            assert!(tx.pad < 4 && tx.header_len != 0);
            if index + 1 != run.count {
                assert_eq!(tx.payload_len, run.mtu.bytes(), "short packet inside a run");
            }
            let mut frame = vec![0; IP_UDP];
            frame.extend_from_slice(&tx.header[..tx.header_len]);
            let payload = frame.len();
            let fetched =
                self.world
                    .fetch(run.source, tx.payload_offset, tx.payload_len, &mut frame);
            if let Err(error) = fetched {
                self.work(now, ladder, |host| {
                    host.qp.payload_failed(run, index, error, &mut host.world);
                });
                return;
            }
            assert_eq!(frame.len() - payload, tx.payload_len as usize);
            frame.resize(frame.len() + usize::from(tx.pad), 0);
            self.seal(&mut frame);
            let udp_payload = &frame[IP_UDP..];
            let packet = Packet::parse(&udp_payload[..tx.header_len], udp_payload.len())
                .expect("a packet of ours");
            assert_eq!(packet.payload_len, tx.payload_len);
            assert_eq!(packet.bth.psn, tx.psn);
            assert_eq!(packet.bth.psn, run.psn.add(index));
            assert_eq!(run.as_received(index), Some(packet));
            let fate = link.send(now, &packet, frame);
            ladder.push(now, self.end, What::Sent(packet, fate));
        }
    }

    /// Fills in IP and UDP headers and appends the ICRC.
    fn seal(&self, frame: &mut Vec<u8>) {
        let total = (frame.len() + ICRC_LEN) as u16;
        let udp_len = total - 20;
        let (headers, rest) = frame.split_at_mut(IP_UDP);
        headers[..20].copy_from_slice(&self.ip);
        headers[20..].copy_from_slice(&self.udp);
        headers[2..4].copy_from_slice(&total.to_be_bytes());
        headers[24..26].copy_from_slice(&udp_len.to_be_bytes());
        let (bth, rest) = rest.split_first_chunk().expect("BTH");
        let state = SoftCrc32::update(self.flow.packet(udp_len, 0), &icrc::mask_bth(bth));
        let icrc = icrc::finish(SoftCrc32::update(state, rest));
        frame.extend_from_slice(&icrc);
    }

    /// Does something with the QP and notes the completions that come of it.
    fn work(&mut self, now: Instant, ladder: &mut Ladder, what: impl FnOnce(&mut Self)) {
        let (sent, received) = (self.world.sent.len(), self.world.received.len());
        what(self);
        for cqe in &self.world.sent[sent..] {
            ladder.push(now, self.end, What::SendCqe(*cqe));
        }
        for received in &self.world.received[received..] {
            ladder.push(now, self.end, What::RecvCqe(received.cqe));
        }
    }
}

/// Checks and parses a frame: the receive side of a driver. Returns the packet and its payload.
fn check(frame: &[u8]) -> Option<(Packet, &[u8])> {
    let (ip, rest) = frame.split_first_chunk::<20>()?;
    let (udp, udp_payload) = rest.split_first_chunk::<8>()?;
    let at_hand = udp_payload.get(..AT_HAND).unwrap_or(udp_payload);
    let packet = Packet::parse(at_hand, udp_payload.len()).ok()?;
    let (covered, icrc) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
    let (bth, rest) = covered.split_first_chunk()?;
    let state = icrc::header_v4::<SoftCrc32>(ip, udp, bth);
    if icrc::finish(SoftCrc32::update(state, rest)) != *icrc {
        return None;
    }
    let start = packet.payload_offset as usize;
    let payload = udp_payload.get(start..start + packet.payload_len as usize)?;
    Some((packet, payload))
}

impl End {
    /// The number of the QP.
    pub(crate) fn qpn(self) -> Qpn {
        match self {
            Self::A => Qpn::new(0x11),
            Self::B => Qpn::new(0x22),
        }
    }
}
