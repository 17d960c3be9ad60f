// SPDX-License-Identifier: GPL-2.0
//! States of a queue pair and the table of what `modify` may do.
//!
//! ```text
//!             +-------+     +------+     +-----+     +-----+  ack'd all   +-----+
//!  create --> | Reset | --> | Init | --> | Rtr | --> | Rts | <----------> | Sqd |
//!             +-------+     +------+     +-----+     +-----+              +-----+
//!                 ^                                   ^   | send error, UC and UD
//!                 |                                   |   v
//!              any state               any state     +-----+
//!                                          |         | Sqe |
//!                                          v         +-----+
//!                                       +-----+
//!                                       | Err |  also entered by the protocol itself
//!                                       +-----+
//! ```
//!
//! A transition is legal if [`transition`] knows it; the attributes in the mask must then include
//! all those that it requires, and no other than those and the ones that it allows.

use crate::wire::Transport;
use core::fmt;
use core::ops::BitOr;

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpKind {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// General Services Interface: QP1, a datagram QP with a Q_Key of its own.
    Gsi,
    //= IBA A14.3
    /// The initiator of an Extended Reliable Connection: it only sends.
    XrcIni,
    /// The target of an Extended Reliable Connection: it only receives, into the shared receive queues
    /// that the initiator names.
    XrcTgt,
}

impl QpKind {
    /// Whether it sends and receives datagrams.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        match self {
            Self::Rc | Self::Uc | Self::XrcIni | Self::XrcTgt => false,
            Self::Ud | Self::Gsi => true,
        }
    }

    /// Whether the peer answers, and what gets lost is sent again.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        match self {
            Self::Rc | Self::XrcIni | Self::XrcTgt => true,
            Self::Uc | Self::Ud | Self::Gsi => false,
        }
    }

    /// The transport service of its packets.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Gsi => Transport::Ud,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
        }
    }
}

//= IBA 10.3.1
/// State of a QP; the values are those of `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum QpState {
    /// Created, or put back to the beginning: nothing is posted, nothing moves.
    #[default]
    Reset = 0,
    /// Receives may be posted; packets are dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained, or draining: no new WQE is started. The responder works on.
    Sqd = 4,
    /// A send failed on a QP that is not reliable: sends are flushed, receives go on.
    Sqe = 5,
    /// All WQEs are flushed; packets are dropped.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their values.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// From the value of `enum ib_qp_state`.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }

    /// The value of `enum ib_qp_state`.
    pub const fn code(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::Rtr => 2,
            Self::Rts => 3,
            Self::Sqd => 4,
            Self::Sqe => 5,
            Self::Err => 6,
        }
    }

    /// Whether requests from the peer are executed.
    #[inline]
    pub const fn receives(self) -> bool {
        match self {
            Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe => true,
            Self::Reset | Self::Init | Self::Err => false,
        }
    }

    /// Whether requests are sent, or responses to them awaited.
    #[inline]
    pub const fn sends(self) -> bool {
        match self {
            Self::Rts | Self::Sqd => true,
            Self::Reset | Self::Init | Self::Rtr | Self::Sqe | Self::Err => false,
        }
    }

    /// Whether a send WQE may be posted, be it only to be flushed.
    #[inline]
    pub const fn may_post_send(self) -> bool {
        match self {
            Self::Rts | Self::Sqd | Self::Sqe | Self::Err => true,
            Self::Reset | Self::Init | Self::Rtr => false,
        }
    }
}

/// A set of attributes; the bits are those of `enum ib_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AttrMask(pub u32);

#[allow(missing_docs, reason = "the names are those of enum ib_qp_attr_mask")]
impl AttrMask {
    pub const NONE: Self = Self(0);
    pub const STATE: Self = Self(1 << 0);
    pub const CUR_STATE: Self = Self(1 << 1);
    pub const EN_SQD_ASYNC_NOTIFY: Self = Self(1 << 2);
    pub const ACCESS_FLAGS: Self = Self(1 << 3);
    pub const PKEY_INDEX: Self = Self(1 << 4);
    pub const PORT: Self = Self(1 << 5);
    pub const QKEY: Self = Self(1 << 6);
    pub const AV: Self = Self(1 << 7);
    pub const PATH_MTU: Self = Self(1 << 8);
    pub const TIMEOUT: Self = Self(1 << 9);
    pub const RETRY_CNT: Self = Self(1 << 10);
    pub const RNR_RETRY: Self = Self(1 << 11);
    pub const RQ_PSN: Self = Self(1 << 12);
    pub const MAX_QP_RD_ATOMIC: Self = Self(1 << 13);
    pub const ALT_PATH: Self = Self(1 << 14);
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    pub const SQ_PSN: Self = Self(1 << 16);
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    pub const PATH_MIG_STATE: Self = Self(1 << 18);
    pub const CAP: Self = Self(1 << 19);
    pub const DEST_QPN: Self = Self(1 << 20);

    /// The set with these bits of `enum ib_qp_attr_mask`; others are dropped.
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & ((1 << 21) - 1))
    }

    /// Whether all of `other` are in this set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in this set but not in `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether nothing is in this set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for AttrMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

const NAMES: [&str; 21] = [
    "STATE",
    "CUR_STATE",
    "EN_SQD_ASYNC_NOTIFY",
    "ACCESS_FLAGS",
    "PKEY_INDEX",
    "PORT",
    "QKEY",
    "AV",
    "PATH_MTU",
    "TIMEOUT",
    "RETRY_CNT",
    "RNR_RETRY",
    "RQ_PSN",
    "MAX_QP_RD_ATOMIC",
    "ALT_PATH",
    "MIN_RNR_TIMER",
    "SQ_PSN",
    "MAX_DEST_RD_ATOMIC",
    "PATH_MIG_STATE",
    "CAP",
    "DEST_QPN",
];

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut rest = self.0;
        for name in NAMES {
            if rest & 1 != 0 {
                write!(f, "{separator}{name}")?;
                separator = " ";
            }
            rest >>= 1;
        }
        if rest != 0 {
            write!(f, "{separator}+{rest:#x}")?;
        }
        Ok(())
    }
}

/// The attributes of one legal transition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transition {
    /// Those that must be given.
    pub required: AttrMask,
    /// Those that may be given as well.
    pub allowed: AttrMask,
}

type M = AttrMask;

/// Nothing beside the state.
const BARE: Transition = rule(M::NONE, M::NONE);

const fn rule(required: AttrMask, allowed: AttrMask) -> Transition {
    Transition { required, allowed }
}

//= IBA 10.3.1
/// The rule for a change from `from` to `to` of a QP of this kind; `None` if it is not legal.
///
/// Where both are equal, the attributes that may be changed in that state.
pub const fn transition(kind: QpKind, from: QpState, to: QpState) -> Option<Transition> {
    Some(match (from, to) {
        (_, QpState::Reset) => BARE,
        (QpState::Reset, QpState::Init) => match kind {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => {
                rule(M::PKEY_INDEX.and(M::PORT).and(M::ACCESS_FLAGS), M::NONE)
            }
            QpKind::Ud => rule(M::PKEY_INDEX.and(M::PORT).and(M::QKEY), M::NONE),
            QpKind::Gsi => rule(M::PKEY_INDEX.and(M::QKEY), M::NONE),
        },
        (QpState::Init, QpState::Init) => match kind {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => {
                rule(M::NONE, M::PKEY_INDEX.and(M::PORT).and(M::ACCESS_FLAGS))
            }
            QpKind::Ud => rule(M::NONE, M::PKEY_INDEX.and(M::PORT).and(M::QKEY)),
            QpKind::Gsi => rule(M::NONE, M::PKEY_INDEX.and(M::QKEY)),
        },
        (QpState::Init, QpState::Rtr) => match kind {
            QpKind::Rc | QpKind::XrcTgt => rule(
                M::AV
                    .and(M::PATH_MTU)
                    .and(M::DEST_QPN)
                    .and(M::RQ_PSN)
                    .and(RESPONDER),
                M::ALT_PATH.and(M::ACCESS_FLAGS).and(M::PKEY_INDEX),
            ),
            QpKind::Uc | QpKind::XrcIni => rule(
                M::AV.and(M::PATH_MTU).and(M::DEST_QPN).and(M::RQ_PSN),
                M::ALT_PATH.and(M::ACCESS_FLAGS).and(M::PKEY_INDEX),
            ),
            QpKind::Ud | QpKind::Gsi => rule(M::NONE, M::PKEY_INDEX.and(M::QKEY)),
        },
        (QpState::Rtr, QpState::Rts) => match kind {
            QpKind::Rc => rule(M::SQ_PSN.and(REQUESTER), CONNECTED.and(M::MIN_RNR_TIMER)),
            QpKind::XrcIni => rule(M::SQ_PSN.and(REQUESTER), CONNECTED),
            QpKind::XrcTgt => rule(M::TIMEOUT.and(M::SQ_PSN), CONNECTED.and(M::MIN_RNR_TIMER)),
            QpKind::Uc => rule(M::SQ_PSN, CONNECTED),
            QpKind::Ud | QpKind::Gsi => rule(M::SQ_PSN, M::CUR_STATE.and(M::QKEY)),
        },
        (QpState::Rts, QpState::Rts) | (QpState::Sqd, QpState::Rts) => match kind {
            QpKind::Rc | QpKind::XrcTgt => rule(M::NONE, CONNECTED.and(M::MIN_RNR_TIMER)),
            QpKind::Uc | QpKind::XrcIni => rule(M::NONE, CONNECTED),
            QpKind::Ud | QpKind::Gsi => rule(M::NONE, M::CUR_STATE.and(M::QKEY)),
        },
        (QpState::Rts, QpState::Sqd) => rule(M::NONE, M::EN_SQD_ASYNC_NOTIFY),
        (QpState::Sqd, QpState::Sqd) => match kind {
            QpKind::Rc => rule(M::NONE, PATH.and(REQUESTER).and(RESPONDER)),
            QpKind::XrcIni => rule(M::NONE, PATH.and(REQUESTER)),
            QpKind::XrcTgt => rule(M::NONE, PATH.and(M::TIMEOUT).and(RESPONDER)),
            QpKind::Uc => rule(M::NONE, PATH),
            QpKind::Ud | QpKind::Gsi => rule(M::NONE, M::PKEY_INDEX.and(M::QKEY)),
        },
        (QpState::Sqe, QpState::Rts) => match kind {
            QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => return None,
            QpKind::Uc => rule(M::NONE, M::CUR_STATE.and(M::ACCESS_FLAGS)),
            QpKind::Ud | QpKind::Gsi => rule(M::NONE, M::CUR_STATE.and(M::QKEY)),
        },
        (
            QpState::Init
            | QpState::Rtr
            | QpState::Rts
            | QpState::Sqd
            | QpState::Sqe
            | QpState::Err,
            QpState::Err,
        ) => BARE,
        (QpState::Reset, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
        | (QpState::Init, QpState::Rts | QpState::Sqd | QpState::Sqe)
        | (QpState::Rtr, QpState::Init | QpState::Rtr | QpState::Sqd | QpState::Sqe)
        | (QpState::Rts, QpState::Init | QpState::Rtr | QpState::Sqe)
        | (QpState::Sqd, QpState::Init | QpState::Rtr | QpState::Sqe)
        | (QpState::Sqe, QpState::Init | QpState::Rtr | QpState::Sqd | QpState::Sqe)
        | (
            QpState::Err,
            QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe,
        )
        | (QpState::Reset, QpState::Err) => return None,
    })
}

/// What the requester of a reliable connection is told.
const REQUESTER: AttrMask = M::TIMEOUT
    .and(M::RETRY_CNT)
    .and(M::RNR_RETRY)
    .and(M::MAX_QP_RD_ATOMIC);

/// What the responder of a reliable connection is told.
const RESPONDER: AttrMask = M::MAX_DEST_RD_ATOMIC.and(M::MIN_RNR_TIMER);

/// What a connected QP may change of its path while nothing is sent. User programs cannot but name the port with the
/// address (`uverbs_cmd.c:modify_qp`).
const PATH: AttrMask = M::AV
    .and(M::PORT)
    .and(M::ALT_PATH)
    .and(M::ACCESS_FLAGS)
    .and(M::PKEY_INDEX)
    .and(M::PATH_MIG_STATE);

/// What a connected QP may change whenever it is, or becomes, ready to send.
const CONNECTED: AttrMask = M::CUR_STATE
    .and(M::ALT_PATH)
    .and(M::ACCESS_FLAGS)
    .and(M::PATH_MIG_STATE);
