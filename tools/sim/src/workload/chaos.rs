// SPDX-License-Identifier: GPL-2.0
//! Worlds in which things go wrong that no connection survives: what remains true all the same.
//!
//! Whatever happens, and whatever the peer does, each end keeps its word to its own consumer:
//!
//! - Sends complete in order, each once; after the first failure all are flushed.
//! - So do receives; those of a shared queue that were not taken stay there, and an event tells.
//! - Nothing hangs: in the end everything is complete, or the QP is in ERR and all is flushed.
//!
//! As long as the peer is honest, what has completed with success has arrived besides.

use crate::{
    pair::{
        End,
        Pair, //
    },
    workload::{
        act,
        make,
        Message,
        Stream,
        NO_KEY,
        READABLE,
        TIME_LIMIT,
        WINDOWS,
        WRITABLE,
        WRITABLE_VA, //
    }, //
};
use fastrand::Rng;
use roce::{
    cqe::WcStatus,
    env::QpEvent,
    qp::state::QpState,
    types::RKey,
    wqe::SendOp, //
};
use std::collections::BTreeMap;

/// How the ends came out.
pub type Tally = BTreeMap<&'static str, u64>;

/// Something that goes wrong at some time.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// A consumer puts its QP into ERR.
    GivesUp,
    /// The link is cut.
    Cut,
    /// The memory that the peer uses fails.
    Breaks(RKey),
    /// The payload of what is posted now cannot be read or written.
    Unreadable,
    /// The completion queue has so little room left.
    Overflow(usize),
}

/// One world. With `forgery`, both ends are hostile: so many of 1000 packets are forged.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64, forgery: u32) -> Tally {
    let mut rng = Rng::with_seed(seed ^ 0xc4a0);
    let rng = &mut rng;
    let honest = forgery == 0;
    // A hostile peer can use up our receives: then nobody may wait for ever.
    let rnr_retry = if honest { rng.u8(4..=7) } else { rng.u8(0..=6) };
    let (mut pair, mut streams, gap) = make(seed, rnr_retry, rng);
    for end in End::BOTH {
        let host = pair.host(end);
        host.forgery = forgery;
        host.world.lenient = !honest;
        if rng.u32(0..4) == 0 {
            host.share_receives();
        }
    }
    for stream in &mut streams {
        if honest && rng.bool() {
            sabotage(stream, rng);
        }
    }
    let mut mishap = (honest && rng.bool()).then(|| {
        let mishap = match rng.u32(0..6) {
            0 => Mishap::GivesUp,
            1 => Mishap::Cut,
            2 => Mishap::Breaks(WRITABLE),
            3 => Mishap::Breaks(READABLE),
            4 => Mishap::Unreadable,
            _ => Mishap::Overflow(rng.usize(0..3)),
        };
        let when = pair.now.after(rng.u64(0..3_000_000));
        (when, *rng.choice(&End::BOTH).unwrap(), mishap)
    });

    let limit = pair.now.after(TIME_LIMIT);
    loop {
        if let Some((when, end, what)) = mishap {
            if when <= pair.now {
                happen(&mut pair, end, what);
                mishap = None;
            }
        }
        if act(&mut pair, &mut streams, gap, rng) {
            // There is more to post.
        } else if pair.next_event().is_none() {
            break;
        } else {
            let until = mishap.map_or(limit, |(when, _, _)| when);
            pair.step(until.max(pair.now));
        }
        assert!(pair.now < limit, "stuck: time is up");
    }

    let mut tally = Tally::new();
    for (stream, other) in [(&streams[0], &streams[1]), (&streams[1], &streams[0])] {
        let alive = check_consumer(stream, other, &mut pair, &mut tally);
        if honest {
            check_arrival(stream, &mut pair);
        }
        // With an honest peer that is alive too, nothing is left undone.
        if honest && alive && pair.host(stream.from.other()).qp.state() == QpState::Rts {
            let retired = pair.host(stream.from).qp.retired() as usize;
            assert_eq!(retired, stream.messages.len(), "{}: undone", stream.from);
        }
    }
    tally
}

/// Makes one message go wrong.
fn sabotage(stream: &mut Stream, rng: &mut Rng) {
    let index = rng.usize(0..stream.messages.len());
    let number = stream.messages[..index]
        .iter()
        .filter(|m| m.takes_receive())
        .count();
    let message = &mut stream.messages[index];
    let wqe = &mut message.wqe;
    if rng.u32(0..8) == 0 {
        // The message still takes its receive in the count of `Stream`, which is then left over.
        wqe.op = SendOp::Invalid(WcStatus::LocQpOpErr);
        return;
    }
    let beyond = WRITABLE_VA + stream.written.len() as u64 + 1;
    match &mut wqe.op {
        SendOp::Send | SendOp::SendImm(_) => {
            let receive = &mut stream.receives[number];
            *receive = (wqe.length as usize).saturating_sub(rng.usize(1..300));
        }
        SendOp::SendInv(rkey) => *rkey = RKey(WINDOWS - 1),
        SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } => match rng.bool() {
            true => *rkey = NO_KEY,
            false => *va = beyond,
        },
        SendOp::Read { va, rkey } => match rng.bool() {
            true => *rkey = NO_KEY,
            false => *va = u64::MAX - 3,
        },
        SendOp::Atomic { va, rkey, .. } => match rng.bool() {
            true => *rkey = NO_KEY,
            false => *va += 1,
        },
        SendOp::AtomicWrite { rkey, .. } | SendOp::Flush { rkey, .. } => *rkey = NO_KEY,
        SendOp::Datagram { .. } | SendOp::Local(_) | SendOp::Invalid(_) => {}
    }
}

fn happen(pair: &mut Pair, end: End, mishap: Mishap) {
    match mishap {
        Mishap::GivesUp => pair.to_error(end),
        Mishap::Cut => {
            for link in [&mut pair.from_a, &mut pair.from_b] {
                link.fate = crate::link::lose(|_| true);
            }
        }
        Mishap::Breaks(rkey) => {
            if let Some(region) = pair.host(end).world.regions.get_mut(&rkey.0) {
                region.broken = true;
            }
        }
        Mishap::Unreadable => {
            for data in pair.host(end).world.slots.iter_mut().flatten() {
                data.broken = true;
            }
        }
        Mishap::Overflow(room) => pair.host(end).world.cq_room = Some(room),
    }
}

/// What an end owes its own consumer, whatever the peer does. Returns whether it is alive.
///
/// `stream` is what it sent, `other` what it was sent.
fn check_consumer(stream: &Stream, other: &Stream, pair: &mut Pair, tally: &mut Tally) -> bool {
    let host = pair.host(stream.from);
    let state = host.qp.state();
    let world = &host.world;
    let dead = match state {
        QpState::Err => true,
        QpState::Rts => false,
        _ => panic!("{}: {state:?}", stream.from),
    };
    // With a full CQ completions are lost, and nothing more can be said of them.
    if world.cq_room == Some(0) {
        *tally.entry("overflow").or_default() += 1;
        return false;
    }

    let posted = stream.messages[..stream.posted].iter();
    let mut sent = world.sent.iter();
    let mut failed = None;
    for message in posted.take(host.qp.retired() as usize) {
        if !message.wqe.signaled && failed.is_none() {
            // It succeeded in silence, or it is the one that failed.
            let failure = sent
                .as_slice()
                .first()
                .filter(|c| c.wr_id == message.wqe.wr_id);
            if let Some(cqe) = failure {
                assert_ne!(cqe.status, WcStatus::Success, "unsignaled");
                failed = Some(cqe.status);
                sent.next();
            }
            continue;
        }
        let cqe = sent.next().expect("completion of a send");
        assert_eq!(cqe.wr_id, message.wqe.wr_id, "out of order");
        match failed {
            Some(_) => assert_eq!(cqe.status, WcStatus::WrFlushErr),
            None if cqe.status != WcStatus::Success => failed = Some(cqe.status),
            None => {}
        }
    }
    assert_eq!(sent.next(), None, "more completions than sends");
    assert!(failed.is_none() || dead, "alive after a failure");

    let mut refused = None;
    for (number, received) in world.received.iter().enumerate() {
        assert_eq!(received.cqe.wr_id, number as u64, "out of order");
        match refused {
            Some(_) => assert_eq!(received.cqe.status, WcStatus::WrFlushErr),
            None if received.cqe.status != WcStatus::Success => {
                refused = Some(received.cqe.status);
            }
            None => {}
        }
    }
    assert!(refused.is_none() || dead, "alive after a failure");

    if dead {
        assert_eq!(host.qp.retired() as usize, stream.posted, "not flushed");
        let left = if host.shared { world.receives.len() } else { 0 };
        let done = world.received.len();
        assert_eq!(done + left, other.posted_receives, "not flushed");
    }
    let last = world.events.iter().filter(|e| **e == QpEvent::LastWqe);
    assert_eq!(last.count(), usize::from(dead && host.shared), "last WQE");
    let outcome = match (failed, refused) {
        (Some(WcStatus::WrFlushErr) | None, Some(status)) if status != WcStatus::WrFlushErr => {
            status
        }
        (Some(status), _) => status,
        (None, _) if dead => WcStatus::WrFlushErr,
        (None, _) => WcStatus::Success,
    };
    *tally.entry(name(outcome)).or_default() += 1;
    !dead
}

/// What has completed with success at the sender has arrived, and nothing has that was not sent.
fn check_arrival(stream: &Stream, pair: &mut Pair) {
    let sender = &pair.host(stream.from).world;
    // The first failure; what is before it succeeded, also in silence.
    let failed = sender.sent.iter().find(|c| c.status != WcStatus::Success);
    let succeeded = match failed {
        Some(cqe) => cqe.wr_id as usize,
        None if sender.cq_room == Some(0) => sender.sent.last().map_or(0, |c| c.wr_id as usize + 1),
        None => pair.host(stream.from).qp.retired() as usize,
    };
    let reads = pair.host(stream.from).world.read_results.clone();
    let mut reads = reads.iter();
    let receiver = &pair.host(stream.from.other()).world;
    let overflow = receiver.cq_room == Some(0);
    let mut received = receiver.received.iter();
    for message in &stream.messages[..succeeded] {
        if message.takes_receive() {
            match received.next() {
                Some(got) => {
                    assert_eq!(got.cqe.status, WcStatus::Success);
                    check_message(message, &got.memory.bytes);
                }
                None => assert!(overflow, "#{} has not arrived", message.wqe.wr_id),
            }
        }
        match message.wqe.op {
            SendOp::Write { va, .. } | SendOp::WriteImm { va, .. } if message.wqe.length != 0 => {
                let start = (va - WRITABLE_VA) as usize;
                let memory = &receiver.regions[&WRITABLE.0].memory.bytes;
                assert!(memory[start..][..message.bytes.len()] == message.bytes);
            }
            SendOp::Read { .. } | SendOp::Atomic { .. } => {
                let found = reads.next().expect("a result");
                assert!(*found == message.bytes, "wrong result");
            }
            _ => {}
        }
    }
    // What else has arrived was sent, although the sender may not know.
    let rest = stream.messages[succeeded..]
        .iter()
        .filter(|m| m.takes_receive());
    for (message, got) in rest.zip(received) {
        if got.cqe.status == WcStatus::Success {
            check_message(message, &got.memory.bytes);
        }
    }
}

fn check_message(message: &Message, buffer: &[u8]) {
    if !matches!(message.wqe.op, SendOp::WriteImm { .. }) {
        let length = message.bytes.len();
        assert!(buffer[..length] == message.bytes, "wrong bytes");
    }
}

fn name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "success",
        WcStatus::LocLenErr => "local length",
        WcStatus::LocQpOpErr => "local operation",
        WcStatus::LocProtErr => "local protection",
        WcStatus::WrFlushErr => "flushed",
        WcStatus::BadRespErr => "bad response",
        WcStatus::LocAccessErr => "local access",
        WcStatus::RemInvReqErr => "remote invalid request",
        WcStatus::RemAccessErr => "remote access",
        WcStatus::RemOpErr => "remote operation",
        WcStatus::RetryExcErr => "retries exceeded",
        WcStatus::RnrRetryExcErr => "RNR retries exceeded",
        WcStatus::MwBindErr => "invalidation",
    }
}
