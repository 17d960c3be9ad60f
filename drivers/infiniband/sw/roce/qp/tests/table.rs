// SPDX-License-Identifier: GPL-2.0
//! The table of transitions against the one of the kernel's core (`ib_modify_qp_is_ok`), restated here by
//! attribute: all kinds of QPs, states, goals and single attributes.
//!
//! What differs on purpose, see [`excused`]: a QP that can never be in SQE has no way out of it.

use super::*;
use QpKind::*;
use QpState::*;

const KINDS: [QpKind; 6] = [Rc, Uc, Ud, Gsi, XrcIni, XrcTgt];
const CONNECTED: &[QpKind] = &[Rc, Uc, XrcIni, XrcTgt];
const DATAGRAM: &[QpKind] = &[Ud, Gsi];
/// Those that have a requester, and a responder, that is reliable.
const REQUESTER: &[QpKind] = &[Rc, XrcIni];
const RESPONDER: &[QpKind] = &[Rc, XrcTgt];
const RELIABLE: &[QpKind] = &[Rc, XrcIni, XrcTgt];

/// A step from one state to another.
type Step = (QpState, QpState);

/// The steps that there are, but for those to RESET, from anywhere, and to ERR, from anywhere but RESET.
const STEPS: [Step; 9] = [
    (Reset, Init),
    (Init, Init),
    (Init, Rtr),
    (Rtr, Rts),
    (Rts, Rts),
    (Rts, Sqd),
    (Sqd, Rts),
    (Sqd, Sqd),
    (Sqe, Rts),
];
const TO_RTS: &[Step] = &[(Rtr, Rts), (Rts, Rts), (Sqd, Rts)];

/// A use of an attribute: the kinds and steps for which it has to be, or may be, given.
type Use = (AttrMask, &'static [QpKind], &'static [Step]);

const REQUIRED: &[Use] = &[
    (AttrMask::PKEY_INDEX, &KINDS, &[(Reset, Init)]),
    (AttrMask::PORT, CONNECTED, &[(Reset, Init)]),
    (AttrMask::PORT, &[Ud], &[(Reset, Init)]),
    (AttrMask::ACCESS_FLAGS, CONNECTED, &[(Reset, Init)]),
    (AttrMask::QKEY, DATAGRAM, &[(Reset, Init)]),
    (AttrMask::AV, CONNECTED, &[(Init, Rtr)]),
    (AttrMask::PATH_MTU, CONNECTED, &[(Init, Rtr)]),
    (AttrMask::DEST_QPN, CONNECTED, &[(Init, Rtr)]),
    (AttrMask::RQ_PSN, CONNECTED, &[(Init, Rtr)]),
    (AttrMask::MAX_DEST_RD_ATOMIC, RESPONDER, &[(Init, Rtr)]),
    (AttrMask::MIN_RNR_TIMER, RESPONDER, &[(Init, Rtr)]),
    (AttrMask::SQ_PSN, &KINDS, &[(Rtr, Rts)]),
    (AttrMask::TIMEOUT, RELIABLE, &[(Rtr, Rts)]),
    (AttrMask::RETRY_CNT, REQUESTER, &[(Rtr, Rts)]),
    (AttrMask::RNR_RETRY, REQUESTER, &[(Rtr, Rts)]),
    (AttrMask::MAX_QP_RD_ATOMIC, REQUESTER, &[(Rtr, Rts)]),
];

const OPTIONAL: &[Use] = &[
    (AttrMask::PKEY_INDEX, CONNECTED, MOVES),
    (AttrMask::PKEY_INDEX, DATAGRAM, MOVES),
    (AttrMask::PORT, CONNECTED, &[(Init, Init)]),
    (AttrMask::PORT, &[Ud], &[(Init, Init)]),
    // The core has it for reliable ones only, but adds it to each change of a path.
    (AttrMask::PORT, CONNECTED, &[(Sqd, Sqd)]),
    (AttrMask::ACCESS_FLAGS, CONNECTED, MOVES),
    (AttrMask::ACCESS_FLAGS, CONNECTED, TO_RTS),
    (AttrMask::ACCESS_FLAGS, &[Uc], &[(Sqe, Rts)]),
    (AttrMask::QKEY, DATAGRAM, MOVES),
    (AttrMask::QKEY, DATAGRAM, TO_RTS),
    (AttrMask::QKEY, DATAGRAM, &[(Sqe, Rts)]),
    (AttrMask::CUR_STATE, &KINDS, TO_RTS),
    (AttrMask::CUR_STATE, &[Uc, Ud, Gsi], &[(Sqe, Rts)]),
    (AttrMask::ALT_PATH, CONNECTED, &[(Init, Rtr), (Sqd, Sqd)]),
    (AttrMask::ALT_PATH, CONNECTED, TO_RTS),
    (AttrMask::PATH_MIG_STATE, CONNECTED, &[(Sqd, Sqd)]),
    (AttrMask::PATH_MIG_STATE, CONNECTED, TO_RTS),
    (AttrMask::MIN_RNR_TIMER, RESPONDER, &[(Sqd, Sqd)]),
    (AttrMask::MIN_RNR_TIMER, RESPONDER, TO_RTS),
    (AttrMask::EN_SQD_ASYNC_NOTIFY, &KINDS, &[(Rts, Sqd)]),
    (AttrMask::AV, CONNECTED, &[(Sqd, Sqd)]),
    (AttrMask::TIMEOUT, RELIABLE, &[(Sqd, Sqd)]),
    (AttrMask::RETRY_CNT, REQUESTER, &[(Sqd, Sqd)]),
    (AttrMask::RNR_RETRY, REQUESTER, &[(Sqd, Sqd)]),
    (AttrMask::MAX_QP_RD_ATOMIC, REQUESTER, &[(Sqd, Sqd)]),
    (AttrMask::MAX_DEST_RD_ATOMIC, RESPONDER, &[(Sqd, Sqd)]),
];
const MOVES: &[Step] = &[(Init, Init), (Init, Rtr), (Sqd, Sqd)];

fn mask_of(uses: &[Use], kind: QpKind, step: Step) -> AttrMask {
    let of_step = uses
        .iter()
        .filter(|(_, kinds, steps)| kinds.contains(&kind) && steps.contains(&step));
    of_step.fold(AttrMask::NONE, |mask, (attr, ..)| mask | *attr)
}

fn is_step(step: Step) -> bool {
    STEPS.contains(&step) || step.1 == Reset || (step.1 == Err && step.0 != Reset)
}

/// What the core would allow, and this crate does not.
fn excused(kind: QpKind, step: Step) -> bool {
    RELIABLE.contains(&kind) && step == (Sqe, Rts)
}

/// All attributes as numbers, but the state.
fn values(attr: &QpAttr) -> [(AttrMask, u64); 15] {
    let access = &attr.access;
    let access = [
        access.remote_read,
        access.remote_write,
        access.remote_atomic,
        access.flush_global,
    ];
    let access = access
        .iter()
        .fold(0, |bits, bit| (bits << 1) | u64::from(*bit));
    [
        (
            AttrMask::EN_SQD_ASYNC_NOTIFY,
            attr.en_sqd_async_notify.into(),
        ),
        (AttrMask::ACCESS_FLAGS, access),
        (AttrMask::PKEY_INDEX, attr.pkey_index.into()),
        (AttrMask::PORT, attr.port.into()),
        (AttrMask::QKEY, attr.qkey.0.into()),
        (AttrMask::PATH_MTU, attr.path_mtu.bytes().into()),
        (AttrMask::TIMEOUT, attr.timeout.into()),
        (AttrMask::RETRY_CNT, attr.retry_cnt.into()),
        (AttrMask::RNR_RETRY, attr.rnr_retry.into()),
        (AttrMask::RQ_PSN, attr.rq_psn.into()),
        (AttrMask::SQ_PSN, attr.sq_psn.into()),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic.into()),
        (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer.into()),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic.into()),
        (AttrMask::DEST_QPN, attr.dest_qpn.into()),
    ]
}

/// Tries a change, and checks that it takes over what `mask` names and nothing else, or nothing at all.
fn modify(
    kind: QpKind,
    from: QpState,
    goal: Option<QpState>,
    mask: AttrMask,
) -> Result<(), AttrError> {
    let mut node = Node::reset(kind);
    node.qp.attr.state = from;
    let before = values(&node.qp.attr());
    let attr = QpAttr {
        state: goal.unwrap_or(Reset),
        cur_state: from,
        qkey: crate::types::QKey(0x5678),
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = goal.map_or(mask, |_| mask | AttrMask::STATE);
    let result = node.qp.modify(node.now, &attr, mask, &mut node.world);
    let to = goal.unwrap_or(from);
    let state = if result.is_ok() { to } else { from };
    assert_eq!(node.qp.state(), state, "{kind:?} {from:?} -> {goal:?}");
    let given = values(&attr);
    for ((now, old), new) in values(&node.qp.attr()).iter().zip(before).zip(given) {
        let taken = result.is_ok() && mask.contains(now.0);
        let wanted = if taken { new } else { old };
        assert_eq!(*now, wanted, "{kind:?} {from:?} -> {goal:?} [{mask}]");
    }
    result
}

#[test]
fn each_attribute_in_each_transition() {
    for kind in KINDS {
        for from in QpState::ALL {
            for goal in QpState::ALL.map(Some).into_iter().chain([None]) {
                let step = (from, goal.unwrap_or(from));
                if !is_step(step) || excused(kind, step) {
                    for bit in 0..22 {
                        let mask = AttrMask((1 << bit) & !1);
                        let result = modify(kind, from, goal, mask);
                        assert_eq!(
                            result,
                            Result::Err(AttrError::Transition),
                            "{kind:?} {step:?}"
                        );
                    }
                    continue;
                }
                let required = mask_of(REQUIRED, kind, step);
                let optional = mask_of(OPTIONAL, kind, step).without(required);
                for mask in [required, required | optional] {
                    assert_eq!(modify(kind, from, goal, mask), Ok(()), "{kind:?} {step:?}");
                }
                for bit in (1..32).map(|n| AttrMask(1 << n)) {
                    let mask = AttrMask(required.0 ^ bit.0);
                    let wanted = if required.contains(bit) {
                        Result::Err(AttrError::Missing(bit))
                    } else if optional.contains(bit) {
                        Ok(())
                    } else {
                        Result::Err(AttrError::NotAllowed(bit))
                    };
                    let result = modify(kind, from, goal, mask);
                    assert_eq!(result, wanted, "{kind:?} {step:?} {bit}");
                }
            }
        }
    }
}
