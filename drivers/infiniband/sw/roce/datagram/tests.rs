// SPDX-License-Identifier: GPL-2.0
//! Datagram QPs.

use crate::{
    cqe::{
        RecvData,
        WcStatus, //
    },
    env::{
        Counter,
        MemoryError,
        QpEvent, //
    },
    qp::{
        attr::GSI_QKEY,
        state::{
            AttrMask,
            QpKind,
            QpState, //
        }, //
    },
    testing::{
        attributes,
        packet,
        Node, //
    },
    types::{
        Mtu,
        QKey,
        Qpn, //
    },
    wire::{
        Deth,
        Opcode,
        Packet, //
    },
    wqe::SendOp,
};
use Opcode::*;

const QKEY: QKey = QKey(0x1234);

fn node(kind: QpKind) -> Node {
    let mut attr = attributes();
    attr.qkey = match kind {
        QpKind::Gsi => GSI_QKEY,
        QpKind::Ud | QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => QKEY,
    };
    Node::with(kind, &attr)
}

/// What was handed out is sent, and whatever comes next as well.
fn transmitted(node: &mut Node) -> usize {
    node.qp.transmitted(&mut node.world);
    let sent = node.sent().len();
    node.qp.transmitted(&mut node.world);
    sent
}

fn datagram(qkey: QKey) -> SendOp {
    SendOp::Datagram {
        dest: Qpn::new(0x33),
        qkey,
        imm: None,
    }
}

fn incoming(qkey: QKey, payload: u32) -> Packet {
    let mut packet = packet(UdSendOnlyImm, 5, payload);
    packet.deth = Some(Deth {
        qkey,
        src_qp: Qpn::new(0x44),
    });
    packet
}

#[test]
fn a_datagram_completes_when_it_is_sent() {
    let mut node = node(QpKind::Ud);
    node.post(1, datagram(QKEY), 50);
    node.post(2, datagram(QKey(0x8000_0000)), 50);
    let run = node.poll(64).unwrap();
    assert_eq!((run.count, run.slot, run.dest_qp.get()), (1, Some(0), 0x33));
    assert!(node.statuses().is_empty());
    let sent = node.sent();
    assert_eq!(sent.len(), 1);
    let deth = sent[0].deth.unwrap();
    // The top bit in the WQE stands for the QP's own Q_Key.
    assert_eq!((deth.qkey, deth.src_qp.get()), (QKEY, 0x11));
    assert_eq!(sent[0].bth.psn.get(), 101);
    assert!(node.statuses().is_empty());
    transmitted(&mut node);
    assert_eq!(
        node.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(node.qp.retired(), 2);
}

#[test]
fn errors_lead_into_sqe_and_out_again() {
    let mut node = node(QpKind::Ud);
    node.qp.set_port_mtu(Mtu::M1024);
    node.post(1, datagram(QKEY), 1024);
    node.post(2, datagram(QKEY), 1025);
    node.post(3, datagram(QKEY), 5);
    assert_eq!(node.sent().len(), 1);
    assert_eq!(node.qp.state(), QpState::Rts, "the first one comes first");
    transmitted(&mut node);
    assert_eq!(node.qp.state(), QpState::Sqe);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(
        node.statuses(),
        [
            (1, WcStatus::Success),
            (2, WcStatus::LocLenErr),
            (3, WcStatus::WrFlushErr)
        ]
    );
    // The receive side goes on.
    node.world.receive(1, 100);
    node.handle(incoming(QKEY, 5));
    assert_eq!(node.world.recvs[0].status, WcStatus::Success);
    node.go(&attributes(), QpState::Rts);
    node.post(4, datagram(QKEY), 5);
    assert_eq!(node.sent().len(), 1);
}

#[test]
fn gsi_goes_on_after_an_error() {
    let mut node = node(QpKind::Gsi);
    node.post(1, datagram(GSI_QKEY), 5000);
    node.post(2, SendOp::Invalid(WcStatus::LocQpOpErr), 0);
    node.post(3, datagram(GSI_QKEY), 256);
    let sent = node.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].deth.unwrap().qkey, GSI_QKEY);
    assert_eq!(transmitted(&mut node), 0);
    assert_eq!(node.qp.state(), QpState::Rts);
    assert_eq!(
        node.statuses(),
        [
            (1, WcStatus::LocLenErr),
            (2, WcStatus::LocQpOpErr),
            (3, WcStatus::Success)
        ]
    );
}

#[test]
fn unreadable_and_refused_datagrams() {
    let mut node = node(QpKind::Ud);
    node.post(1, datagram(QKEY), 5);
    node.post(2, datagram(QKEY), 5);
    let run = node.poll(64).unwrap();
    node.qp.congested(node.now, &run, 0);
    assert!(node.poll(64).is_none());
    assert!(node.statuses().is_empty());
    node.timeout();
    let run = node.poll(64).unwrap();
    assert_eq!(run.psn.get(), 100);
    let run = node.poll(64).unwrap();
    node.qp
        .payload_failed(&run, 0, MemoryError::Fault, &mut node.world);
    assert_eq!(
        node.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]
    );
    assert_eq!(node.qp.state(), QpState::Sqe);
}

#[test]
fn placement_of_datagrams() {
    let mut node = node(QpKind::Ud);
    node.world.receive(1, 45);
    node.handle(incoming(QKEY, 5));
    let cqe = node.world.recvs[0];
    assert_eq!((cqe.byte_len, cqe.src_qp.get()), (45, 0x44));
    assert_eq!(cqe.data, RecvData::Imm([1, 2, 3, 4]));
    assert_eq!(node.world.grhs, 1);
    assert_eq!(node.world.received, [(40, 5)]);
}

#[test]
fn datagrams_that_do_not_fit_are_dropped() {
    let mut node = node(QpKind::Ud);
    node.handle(incoming(QKEY, 5));
    assert_eq!(node.world.counted(Counter::DropNoReceive), 1);
    node.world.receive(1, 44);
    node.handle(incoming(QKEY, 5));
    assert_eq!(node.world.counted(Counter::DropNoReceive), 2);
    node.handle(incoming(QKey(0x1235), 4));
    assert_eq!(node.world.counted(Counter::DropQKey), 1);
    node.handle(incoming(QKEY, 4));
    assert_eq!(node.world.recvs.len(), 1);
    assert_eq!(node.qp.state(), QpState::Rts);
    assert!(node.world.events.is_empty());
}

#[test]
fn gsi_has_a_qkey_of_its_own() {
    let mut node = node(QpKind::Gsi);
    node.world.receive(1, 300);
    node.handle(incoming(QKEY, 5));
    assert_eq!(node.world.counted(Counter::DropQKey), 1);
    node.handle(incoming(GSI_QKEY, 5));
    assert_eq!(node.world.recvs.len(), 1);
}

#[test]
fn a_bad_receive_list_is_an_error() {
    let mut node = node(QpKind::Ud);
    node.world.receive(1, 300);
    node.world.deny_receive = Some(MemoryError::Access);
    node.handle(incoming(QKEY, 5));
    assert_eq!(node.world.recvs[0].status, WcStatus::LocProtErr);
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn draining() {
    let mut node = node(QpKind::Ud);
    node.post(1, datagram(QKEY), 5);
    node.poll(64).unwrap();
    node.post(2, datagram(QKEY), 5);
    let mut attr = attributes();
    attr.state = QpState::Sqd;
    attr.en_sqd_async_notify = true;
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    node.qp
        .modify(node.now, &attr, mask, &mut node.world)
        .unwrap();
    assert!(node.qp.is_draining());
    assert!(node.poll(64).is_none());
    assert!(node.world.events.is_empty());
    transmitted(&mut node);
    assert_eq!(node.world.events, [QpEvent::SqDrained]);
    assert_eq!(node.statuses(), [(1, WcStatus::Success)]);
    node.go(&attributes(), QpState::Rts);
    assert_eq!(node.sent().len(), 1);
}
