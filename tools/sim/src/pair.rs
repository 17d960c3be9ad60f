// SPDX-License-Identifier: GPL-2.0
//! Two hosts, the links between them, and time.

use crate::{
    host::Host,
    ladder::Ladder,
    link::Link, //
};
use fastrand::Rng;
use roce::{
    cqe::WcStatus,
    qp::{
        attr::{
            QpAttr,
            GSI_QKEY, //
        },
        state::{
            AttrMask,
            QpKind,
            QpState, //
        },
        AttrError, //
    },
    types::{
        Instant,
        Mtu,
        Psn,
        QKey, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    }, //
};
use std::fmt;

/// One of the two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The first.
    A,
    /// The second.
    B,
}

impl End {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The peer.
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two columns, so that the eye can follow each end.
        f.write_str(match self {
            Self::A => "A  ",
            Self::B => "  B",
        })
    }
}

/// Attributes of the two queue pairs. The defaults are a clean, fast link.
#[derive(Clone, Debug)]
pub struct Config {
    /// Transport service; [`QpKind::XrcIni`]: A is the initiator and B the target.
    pub kind: QpKind,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN of requests from A.
    pub psn_a: Psn,
    /// First PSN of requests from B.
    pub psn_b: Psn,
    /// Length of the send queues.
    pub slots: usize,
    /// READs outstanding, and pending.
    pub reads: u8,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries after RNR.
    pub rnr_retry: u8,
    /// Code of the RNR timer.
    pub min_rnr_timer: u8,
    /// Propagation delay, one way.
    pub delay_ns: u64,
    /// The most packets of a run.
    pub max_run: u32,
}

impl Config {
    /// What the QP of this end is.
    pub fn kind(&self, end: End) -> QpKind {
        match (self.kind, end) {
            (QpKind::XrcIni, End::B) => QpKind::XrcTgt,
            (kind, _) => kind,
        }
    }

    /// Queue key of both ends, if they are datagram QPs.
    pub fn qkey(&self) -> QKey {
        match self.kind {
            QpKind::Gsi => GSI_QKEY,
            _ => QKey(0x1234_5678),
        }
    }

    /// First PSN of requests from this end.
    pub fn psn(&self, end: End) -> Psn {
        match end {
            End::A => self.psn_a,
            End::B => self.psn_b,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: QpKind::Rc,
            mtu: Mtu::M1024,
            psn_a: Psn::new(0x000100),
            psn_b: Psn::new(0x800000),
            slots: 16,
            reads: 4,
            // 1 ms.
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.01 ms.
            min_rnr_timer: 1,
            delay_ns: 5_000,
            max_run: 16,
        }
    }
}

/// Two hosts, the links between them, and time.
pub struct Pair {
    /// The seed of all chance, for the report.
    pub seed: u64,
    /// Virtual time.
    pub now: Instant,
    /// One end.
    pub a: Host,
    /// The other end.
    pub b: Host,
    /// Packets from A.
    pub from_a: Link,
    /// Packets from B.
    pub from_b: Link,
    /// What happened.
    pub ladder: Ladder,
    /// The most packets that a host takes in before it sends.
    pub batch: usize,
    /// Lines of the ladder to print when a test fails.
    pub report_lines: usize,
    /// Steps taken without time going on.
    standstill: u32,
}

impl Pair {
    /// Two connected QPs in RTS. `seed` seeds the lengths of runs and the damage done.
    pub fn new(config: &Config, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let now = Instant(1_000);
        let mut a = Host::new(End::A, config, rng.fork());
        let mut b = Host::new(End::B, config, rng.fork());
        a.connect(now, config);
        b.connect(now, config);
        Self {
            seed,
            now,
            a,
            b,
            from_a: Link::new(config.delay_ns, rng.fork()),
            from_b: Link::new(config.delay_ns, rng.fork()),
            ladder: Ladder::default(),
            batch: 4,
            report_lines: 150,
            standstill: 0,
        }
    }

    /// One of the hosts.
    pub fn host(&mut self, end: End) -> &mut Host {
        match end {
            End::A => &mut self.a,
            End::B => &mut self.b,
        }
    }

    /// Posts a send WQE and rings the doorbell. Returns whether there was a free slot.
    pub fn post_send(&mut self, end: End, wqe: SendWqe, bytes: Vec<u8>) -> bool {
        let now = self.now;
        let (host, link, ladder) = self.parts(end);
        let posted = host.post_send(now, ladder, wqe, bytes);
        if posted {
            host.transmit(now, ladder, link);
        }
        posted
    }

    /// Posts a signaled send WQE with these bytes as payload.
    ///
    /// # Panics
    ///
    /// If there is no free slot.
    pub fn send(&mut self, end: End, wr_id: u64, op: SendOp, bytes: &[u8]) {
        let wqe = SendWqe::new(wr_id, op, bytes.len() as u32);
        assert!(self.post_send(end, wqe, bytes.to_vec()), "no free slot");
    }

    /// Posts a receive with a buffer of `length` bytes. The QP does not hear of it until it asks,
    /// except in ERR, where it is flushed.
    pub fn receive(&mut self, end: End, wr_id: u64, length: usize) {
        let now = self.now;
        let (host, link, ladder) = self.parts(end);
        host.post_receive(now, ladder, wr_id, length);
        if host.qp.state() == QpState::Err {
            host.transmit(now, ladder, link);
        }
    }

    /// The statuses of the completions of sends at one end, with their identifiers, in order.
    pub fn sent(&mut self, end: End) -> Vec<(u64, WcStatus)> {
        let sent = &self.host(end).world.sent;
        sent.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// The statuses of the completions of receives at one end, with their identifiers, in order.
    pub fn received(&mut self, end: End) -> Vec<(u64, WcStatus)> {
        let received = &self.host(end).world.received;
        received
            .iter()
            .map(|r| (r.cqe.wr_id, r.cqe.status))
            .collect()
    }

    /// Puts the QP of one end into ERR.
    pub fn to_error(&mut self, end: End) {
        self.to_state(end, QpState::Err).expect("to ERR");
    }

    /// Puts the QP of one end into a state that takes no attributes.
    ///
    /// # Errors
    ///
    /// If there is no such transition.
    pub fn to_state(&mut self, end: End, state: QpState) -> Result<(), AttrError> {
        let attr = QpAttr {
            state,
            ..QpAttr::new()
        };
        self.modify(end, &attr, AttrMask::STATE)
    }

    /// Modifies the QP of one end; not to RESET.
    ///
    /// # Errors
    ///
    /// As [`roce::qp::Qp::modify`].
    pub fn modify(&mut self, end: End, attr: &QpAttr, mask: AttrMask) -> Result<(), AttrError> {
        let now = self.now;
        let (host, link, ladder) = self.parts(end);
        let result = host.modify(now, ladder, attr, mask);
        host.transmit(now, ladder, link);
        result
    }

    /// Puts the QP of one end back to RESET and connects it again. What was posted is forgotten,
    /// memory and completions remain.
    pub fn reconnect(&mut self, end: End, config: &Config) {
        let now = self.now;
        self.host(end).reconnect(now, config);
    }

    /// When something happens next, if anything does.
    pub fn next_event(&self) -> Option<Instant> {
        [
            self.from_a.next_arrival(),
            self.from_b.next_arrival(),
            self.a.qp.poll_timeout(),
            self.b.qp.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Lets time go on to what happens next, at most to `until`, and lets it happen. Returns
    /// whether anything did.
    pub fn step(&mut self, until: Instant) -> bool {
        let next = match self.next_event() {
            Some(next) if next <= until => next,
            Some(_) | None => {
                self.now = self.now.max(until);
                return false;
            }
        };
        if next > self.now {
            self.now = next;
            self.standstill = 0;
        }
        self.standstill += 1;
        assert!(self.standstill < 100_000, "time does not go on");
        for end in End::BOTH {
            self.step_end(end);
        }
        true
    }

    /// Lets things happen until nothing more does.
    ///
    /// # Panics
    ///
    /// If that takes more than `ns` nanoseconds of virtual time.
    pub fn run(&mut self, ns: u64) {
        let limit = self.now.after(ns);
        while self.next_event().is_some() {
            assert!(self.step(limit), "still busy after {ns} ns");
        }
    }

    /// Lets things happen for `ns` nanoseconds.
    pub fn run_for(&mut self, ns: u64) {
        let limit = self.now.after(ns);
        while self.step(limit) {}
    }

    fn parts(&mut self, end: End) -> (&mut Host, &mut Link, &mut Ladder) {
        match end {
            End::A => (&mut self.a, &mut self.from_a, &mut self.ladder),
            End::B => (&mut self.b, &mut self.from_b, &mut self.ladder),
        }
    }

    fn step_end(&mut self, end: End) {
        let now = self.now;
        let batch = self.batch;
        let (host, out, into, ladder) = match end {
            End::A => (
                &mut self.a,
                &mut self.from_a,
                &mut self.from_b,
                &mut self.ladder,
            ),
            End::B => (
                &mut self.b,
                &mut self.from_b,
                &mut self.from_a,
                &mut self.ladder,
            ),
        };
        let mut busy = false;
        for _ in 0..batch {
            let Some(frame) = into.receive(now) else {
                break;
            };
            host.receive(now, ladder, &frame);
            busy = true;
        }
        if host.qp.poll_timeout().is_some_and(|t| t <= now) {
            host.timeout(now, ladder);
            busy = true;
        }
        if busy {
            host.transmit(now, ladder, out);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "\nseed {}, at {} ns; the packet ladder:\n{}",
                self.seed,
                self.now.0,
                self.ladder.tail(self.report_lines)
            );
            for end in [&self.a, &self.b] {
                eprintln!(
                    "{} {:?}: {} receives posted, {} send and {} receive completions, retired {}",
                    end.end,
                    end.qp.state(),
                    end.world.receives.len(),
                    end.world.sent.len(),
                    end.world.received.len(),
                    end.qp.retired(),
                );
            }
        }
    }
}
