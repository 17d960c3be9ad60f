// SPDX-License-Identifier: GPL-2.0
//! The packet ladder: what happened, in order of time, one line each.

use crate::{
    link::Fate,
    pair::End, //
};
use roce::{
    cqe::{
        RecvCqe,
        SendCqe, //
    },
    types::Instant,
    wire::Packet, //
};
use std::fmt;

/// Something that happened at one end.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A packet went out.
    Sent(Packet, Fate),
    /// A packet came in.
    Arrived(Packet),
    /// Something came in that is no packet, or whose ICRC is wrong.
    Damaged,
    /// A send WQE was posted.
    Posted {
        /// Its identifier.
        wr_id: u64,
        /// What it does.
        op: &'static str,
        /// Bytes.
        length: u32,
    },
    /// A receive WQE was posted.
    PostedReceive(u64),
    /// The way out was full.
    Congested,
    /// The timer of the QP fired.
    Timeout,
    /// A send WQE completed.
    SendCqe(SendCqe),
    /// A receive WQE completed.
    RecvCqe(RecvCqe),
}

/// All that happened.
#[derive(Debug, Default)]
pub struct Ladder {
    entries: Vec<(Instant, End, What)>,
}

impl Ladder {
    /// Adds an entry.
    pub fn push(&mut self, now: Instant, end: End, what: What) {
        self.entries.push((now, end, what));
    }

    /// What happened, in order.
    pub fn entries(&self) -> &[(Instant, End, What)] {
        &self.entries
    }

    /// The packets that went out at one end, with when and what became of them.
    pub fn sent(&self, end: End) -> impl Iterator<Item = (Instant, Packet, Fate)> + '_ {
        self.entries
            .iter()
            .filter_map(move |(now, at, what)| match what {
                What::Sent(packet, fate) if *at == end => Some((*now, *packet, *fate)),
                _ => None,
            })
    }

    /// The last `lines` of it, as text.
    pub fn tail(&self, lines: usize) -> String {
        let skipped = self.entries.len().saturating_sub(lines);
        let mut text = String::new();
        if skipped != 0 {
            text += &format!("  ... {skipped} lines before ...\n");
        }
        for (now, end, what) in &self.entries[skipped..] {
            let us = now.0 / 1000;
            let ns = now.0 % 1000;
            text += &format!("{us:>9}.{ns:03} us  {end}  {what}\n");
        }
        text
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(packet, fate) => write!(f, "--> {packet}{fate}"),
            Self::Arrived(packet) => write!(f, "<-- {packet}"),
            Self::Damaged => write!(f, "<-- (damaged, dropped)"),
            Self::Posted { wr_id, op, length } => write!(f, "post {op} #{wr_id} len {length}"),
            Self::PostedReceive(wr_id) => write!(f, "post receive #{wr_id}"),
            Self::Congested => write!(f, "congested"),
            Self::Timeout => write!(f, "timer"),
            Self::SendCqe(c) => write!(f, "send #{} {:?} len {}", c.wr_id, c.status, c.byte_len),
            Self::RecvCqe(c) => write!(
                f,
                "receive #{} {:?} len {} {:?}",
                c.wr_id, c.status, c.byte_len, c.data
            ),
        }
    }
}
