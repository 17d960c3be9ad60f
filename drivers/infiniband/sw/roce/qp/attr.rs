// SPDX-License-Identifier: GPL-2.0
//! Attributes of a queue pair and their ranges.

use crate::{
    qp::state::{
        AttrMask,
        QpState, //
    },
    types::{
        Mtu,
        Psn,
        QKey,
        Qpn, //
    }, //
};

/// The most outstanding READs and atomics as requester, and the most pending ones as responder, that a QP may
/// be configured for.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Q_Key of every GSI QP.
pub const GSI_QKEY: QKey = QKey(0x8001_0000);

/// What the peer may do to our memory through this QP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QpAccess {
    /// RDMA READ.
    pub remote_read: bool,
    /// RDMA WRITE.
    pub remote_write: bool,
    /// Atomic operations.
    pub remote_atomic: bool,
    /// FLUSH for global visibility.
    pub flush_global: bool,
    /// FLUSH for persistence.
    pub flush_persistent: bool,
}

/// The protocol's attributes of a QP. Address vectors are the driver's.
///
/// Numbers stand as the consumer gave them: [`crate::qp::Qp::modify`] checks those that its mask
/// names before it takes any of them over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// What the consumer believes the state to be; checked, not stored.
    pub cur_state: QpState,
    /// Payload bytes of a full packet. A datagram QP takes its port's, see
    /// [`crate::qp::Qp::set_port_mtu`].
    pub path_mtu: Mtu,
    /// Queue key of a datagram QP.
    pub qkey: QKey,
    /// First PSN expected from the peer, 24 bits.
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// QP of the peer, 24 bits.
    pub dest_qpn: u32,
    /// Rights of the peer.
    pub access: QpAccess,
    /// Index into the P_Key table, which has one entry.
    pub pkey_index: u16,
    /// Port, 1.
    pub port: u32,
    /// READs and atomics that may be outstanding as requester, at most [`MAX_RD_ATOMIC`].
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that may be pending, at most [`MAX_RD_ATOMIC`] and the read slots given.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that the peer is to wait after an RNR NAK, 0 to 31.
    pub min_rnr_timer: u8,
    /// Code of the local ACK timeout, 0 to 31: 4.096 us * 2^n; 0: none.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 6; 7: without end.
    pub rnr_retry: u8,
    /// Report when the send queue is drained.
    pub en_sqd_async_notify: bool,
}

impl QpAttr {
    /// The attributes of a new QP.
    pub const fn new() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::M1024,
            qkey: QKey(0),
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: QpAccess {
                remote_read: false,
                remote_write: false,
                remote_atomic: false,
                flush_global: false,
                flush_persistent: false,
            },
            pkey_index: 0,
            port: 1,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            en_sqd_async_notify: false,
        }
    }

    /// The attributes among `mask` whose values are out of range.
    ///
    /// `read_slots` is the room for READs of the peer.
    pub(super) fn out_of_range(&self, mask: AttrMask, read_slots: usize) -> AttrMask {
        let checks = [
            (AttrMask::PKEY_INDEX, self.pkey_index == 0),
            (AttrMask::PORT, self.port == 1),
            (AttrMask::TIMEOUT, self.timeout <= 31),
            (AttrMask::RETRY_CNT, self.retry_cnt <= 7),
            (AttrMask::RNR_RETRY, self.rnr_retry <= 7),
            (AttrMask::RQ_PSN, self.rq_psn <= Psn::MASK),
            (AttrMask::SQ_PSN, self.sq_psn <= Psn::MASK),
            (
                AttrMask::DEST_QPN,
                Qpn::new(self.dest_qpn).get() == self.dest_qpn,
            ),
            (AttrMask::MIN_RNR_TIMER, self.min_rnr_timer <= 31),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                self.max_rd_atomic <= MAX_RD_ATOMIC,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                self.max_dest_rd_atomic <= MAX_RD_ATOMIC
                    && usize::from(self.max_dest_rd_atomic) <= read_slots,
            ),
        ];
        let mut bad = AttrMask::NONE;
        for (attr, good) in checks {
            if mask.contains(attr) && !good {
                bad = bad | attr;
            }
        }
        bad
    }

    /// Takes over the attributes of `from` that `mask` names, except the state.
    pub(super) fn merge(&mut self, from: &Self, mask: AttrMask) {
        let has = |attr| mask.contains(attr);
        if has(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            self.en_sqd_async_notify = from.en_sqd_async_notify;
        }
        if has(AttrMask::ACCESS_FLAGS) {
            self.access = from.access;
        }
        if has(AttrMask::PKEY_INDEX) {
            self.pkey_index = from.pkey_index;
        }
        if has(AttrMask::PORT) {
            self.port = from.port;
        }
        if has(AttrMask::QKEY) {
            self.qkey = from.qkey;
        }
        if has(AttrMask::PATH_MTU) {
            self.path_mtu = from.path_mtu;
        }
        if has(AttrMask::TIMEOUT) {
            self.timeout = from.timeout;
        }
        if has(AttrMask::RETRY_CNT) {
            self.retry_cnt = from.retry_cnt;
        }
        if has(AttrMask::RNR_RETRY) {
            self.rnr_retry = from.rnr_retry;
        }
        if has(AttrMask::RQ_PSN) {
            self.rq_psn = from.rq_psn;
        }
        if has(AttrMask::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = from.max_rd_atomic;
        }
        if has(AttrMask::MIN_RNR_TIMER) {
            self.min_rnr_timer = from.min_rnr_timer;
        }
        if has(AttrMask::SQ_PSN) {
            self.sq_psn = from.sq_psn;
        }
        if has(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = from.max_dest_rd_atomic;
        }
        if has(AttrMask::DEST_QPN) {
            self.dest_qpn = from.dest_qpn;
        }
    }
}

impl Default for QpAttr {
    fn default() -> Self {
        Self::new()
    }
}
