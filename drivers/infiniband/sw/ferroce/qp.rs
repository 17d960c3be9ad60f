// SPDX-License-Identifier: GPL-2.0
//! Queue pairs.
//!
//! One lock per QP owns its protocol state ([`roce::qp::Qp`]) and its queues. Whatever happens to
//! a QP — a doorbell, a packet, a timer, a verb — happens through [`QueuePair::drive`]: it takes
//! the lock, does the thing, builds what is to be sent, drops the lock, calls handlers, and only
//! then hands packets to the network stack. While one context sends, others leave their packets to
//! it ([`sender`]), so order is kept without holding the lock across the stack.
//!
//! # Teardown
//!
//! The device's table, the timer, the work item and the pager hold counted references. Destroying removes
//! the QP from the table and waits for readers, marks it dead, and shuts the timer and the work item
//! down, which waits for them. The pager gives its reference back; while it waits for a page it holds
//! nothing but the memory. Packets in flight hold nothing of ours.

mod company;
mod direct;
mod drive;
mod fault;
mod fetch;
mod inbound;
mod lane;
mod memory;
mod receive_wait;
mod receiver;
mod sender;
mod sends;
mod transmit;
mod world;

use crate::{
    completion::CompletionQueue,
    crc::LastFlow,
    error::errno,
    port::Port,
    posted::Posted,
    receives::ReceiveQueue,
    region::Accessor, //
};
use company::Company;
use fault::{
    Faults,
    Pager, //
};
use inbound::Inbound;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use lane::{
    Lane,
    Lanes, //
};
use rdma::{
    net::RxPacket,
    sync::{
        Errand,
        SpinLockBh,
        Timer,
        TimerTarget,
        Work,
        WorkTarget, //
    },
    verbs::{
        AddressVector,
        QpCaps,
        QpNotifier, //
    }, //
};
use receive_wait::ReceiveWait;
use receiver::Receiver;
use roce::{
    qp::{
        attr::QpAttr,
        state::{
            AttrMask,
            QpKind,
            QpState, //
        },
        AttrError,
        Qp,
        ReadSlot, //
    },
    types::{
        Instant,
        Qpn, //
    },
    wire::Packet,
    wqe::SendWqe, //
};
use sender::Sender;
use sends::Slots;

pub(crate) use fetch::{
    kernel_list_entries,
    KernelSend,
    SendSource,
    UserSends, //
    MAX_MESSAGE,
};
pub(crate) use sends::Payload;

/// The protocol state with storage from this driver.
pub(crate) type Core = Qp<KVVec<SendWqe>, KVVec<ReadSlot>>;

/// Packets that one call may send before it leaves the rest to the work item: enough for a window
/// and short enough not to starve other softirq work.
const BUDGET_INLINE: u32 = 256;

/// The same in the work item, which can be preempted.
const BUDGET_WORK: u32 = 1024;

/// How often a QP in the error state looks for receives that user space posted since: there is no
/// doorbell for them. Doubles up to the second value while there are none.
const LATE_RECEIVE_NS: u64 = 2_000_000;
const LATE_RECEIVE_MAX_NS: u64 = 256_000_000;

/// What a new QP is made of.
pub(crate) struct QpParts {
    pub(crate) port: Arc<Port>,
    pub(crate) kind: QpKind,
    pub(crate) qpn: Qpn,
    /// 0: it has none.
    pub(crate) pd: usize,
    /// The XRC domain of a target.
    pub(crate) xrcd: Option<usize>,
    pub(crate) notifier: Arc<QpNotifier>,
    pub(crate) send_cq: Option<Arc<CompletionQueue>>,
    pub(crate) recv_cq: Option<Arc<CompletionQueue>>,
    pub(crate) sends: SendSource,
    pub(crate) receives: Arc<ReceiveQueue>,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
}

/// Answer to [`QueuePair::query`].
pub(crate) struct QueriedAttr {
    pub(crate) core: QpAttr,
    pub(crate) av: Option<AddressVector>,
    pub(crate) access_flags: u32,
    pub(crate) draining: bool,
    pub(crate) caps: QpCaps,
}

/// All of a QP but its protocol state: queues, address and who is transmitting.
struct Io {
    sends: SendSource,
    slots: Slots,
    receives: Receiver,
    av: Option<AddressVector>,
    lanes: Lanes,
    /// Until then packets to a QP of this device are built.
    detour: Option<Instant>,
    heard_flow: LastFlow,
    company: Company,
    /// Access flags as they were set, those that mean nothing on the wire included.
    access_flags: u32,
    /// Destroyed; only references are left.
    dead: bool,
    /// Present interval of looking for late receives, in nanoseconds.
    late_interval: u64,
    faults: Faults,
    receive_wait: ReceiveWait,
}

struct State {
    core: Core,
    io: Io,
}

/// A queue pair.
#[pin_data]
pub(crate) struct QueuePair {
    port: Arc<Port>,
    kind: QpKind,
    qpn: Qpn,
    accessor: Accessor,
    xrcd: Option<usize>,
    notifier: Arc<QpNotifier>,
    send_cq: Option<Arc<CompletionQueue>>,
    recv_cq: Option<Arc<CompletionQueue>>,
    caps: QpCaps,
    signal_all: bool,
    /// Sends of a kernel user, posted in any context.
    kernel_sends: Option<Arc<Posted<KernelSend>>>,
    receives: Arc<ReceiveQueue>,
    /// Code of the state, for those who may not take the QP's lock.
    state_code: Atomic<u32>,
    /// Who transmits.
    sender: Sender,
    timer: Timer<QueuePair>,
    work: Work<QueuePair>,
    pager: Arc<Errand<Pager>>,
    #[pin]
    state: SpinLockBh<State>,
}

impl QueuePair {
    /// Makes a QP in RESET. It is in no table yet.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn new(parts: QpParts) -> Result<Arc<Self>> {
        let in_flight = fetch::first_in_flight(&parts.caps);
        let wqes = fetch::send_slots(in_flight, GFP_KERNEL)?;
        let kernel_sends = parts.sends.kernel();
        let list_entries = parts.sends.list_entries(&parts.caps);
        let mut core = Qp::new(parts.kind, parts.qpn, wqes, KVVec::new());
        if parts.receives.is_shared() {
            core.share_receives();
        }
        let state = State {
            core,
            io: Io {
                sends: parts.sends,
                slots: Slots::new(in_flight, list_entries)?,
                receives: Receiver::new(parts.receives.clone())?,
                av: None,
                lanes: Lanes::new(parts.kind.is_datagram())?,
                detour: None,
                heard_flow: LastFlow::default(),
                company: Company::default(),
                access_flags: 0,
                dead: false,
                late_interval: LATE_RECEIVE_NS,
                faults: Faults::default(),
                receive_wait: ReceiveWait::default(),
            },
        };
        let accessor = Accessor {
            pd: parts.pd,
            qp: parts.port.next_serial(),
        };
        let work = Work::new(&parts.port.workqueue)?;
        let pager = Errand::new(&parts.port.pagers, Pager::new())?;
        let qp = Arc::pin_init(
            try_pin_init!(Self {
                port: parts.port,
                kind: parts.kind,
                qpn: parts.qpn,
                accessor,
                xrcd: parts.xrcd,
                notifier: parts.notifier,
                send_cq: parts.send_cq,
                recv_cq: parts.recv_cq,
                caps: parts.caps,
                signal_all: parts.signal_all,
                kernel_sends,
                receives: parts.receives,
                state_code: Atomic::new(QpState::Reset.code()),
                sender: Sender::default(),
                timer: Timer::new()?,
                work,
                pager,
                state <- rdma::new_spinlock_bh!(state, "ferroce_qp"),
            }? Error),
            GFP_KERNEL,
        )?;
        qp.pager.target().attach(qp.clone());
        qp.timer.attach(qp.clone());
        qp.work.attach(qp.clone());
        Ok(qp)
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn kind(&self) -> QpKind {
        self.kind
    }

    /// Whether every send completes with a CQE, whatever its flags say.
    pub(crate) fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// Ends the QP: nothing of it runs after this returns. The caller has taken it out of the
    /// table.
    ///
    /// # Context
    ///
    /// Process context, sleeps until the timer and the work items are done.
    pub(crate) fn shut_down(&self) {
        self.take_leave();
        self.state.lock().io.dead = true;
        self.timer.shutdown();
        self.work.shutdown();
        self.pager.target().dismiss();
        let left = core::mem::take(&mut self.state.lock().io.faults);
        drop(left);
    }

    /// Looks for posted sends and carries them out.
    ///
    /// # Context
    ///
    /// Process or softirq context with interrupts on.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTR is reached and passed, as for any post to a QP that cannot send.
    pub(crate) fn doorbell(&self) -> Result {
        self.drive_steps(BUDGET_INLINE, |steps| match steps.core.state() {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(EINVAL),
            QpState::Rts => {
                steps.gather = self.awaits_company(steps.core, steps.io);
                Ok(())
            }
            QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
        })
        .unwrap_or(Err(EINVAL))
    }

    /// Takes in a packet of which the first datagram is addressed to this QP, as `first` says, up to the
    /// first that is for another one. Returns whether the rest has to wait, see [`Self::put_aside`].
    ///
    /// # Context
    ///
    /// Softirq.
    pub(crate) fn receive(&self, packet: &mut RxPacket, first: &Packet) -> bool {
        let took = self.drive_steps(BUDGET_INLINE, |steps| {
            if steps.io.faults.is_stalled() {
                return (0, true);
            }
            self.take_in(steps, packet, Some(first))
        });
        // If the QP is gone, so is all that is for it.
        let (taken, waits) = took.unwrap_or((1, false));
        packet.skip(taken);
        waits
    }

    /// Takes in a copy of the first datagram of a packet, which is for a group that this QP is attached
    /// to: `bytes`, of which `parsed` was made, with the right ICRC.
    ///
    /// # Context
    ///
    /// Softirq.
    pub(crate) fn receive_copy(&self, packet: &RxPacket, bytes: &[u8], parsed: &Packet) {
        let waits = self.drive_steps(BUDGET_INLINE, |steps| {
            steps.io.company.heard();
            let inbound = Inbound::new(packet, bytes, bytes.len(), packet.first_id(), parsed);
            let (_, world) = steps.next(None);
            let welcome = world.takes_from(&inbound.ip);
            if steps.io.faults.is_stalled() {
                return true;
            }
            let missing = self.handle(steps, &inbound, now(), parsed, welcome);
            missing.is_some_and(|missing| steps.io.faults.stall(missing))
        });
        if waits == Some(true) {
            self.keep(packet.first(1));
        }
    }

    /// Changes attributes; `av` is the new primary address vector if the mask has it,
    /// `access_flags` what the caller gave for [`QpAttr::access`].
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(crate) fn modify(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        av: Option<AddressVector>,
        access_flags: u32,
    ) -> Result {
        // Storage for READs that the peer may have outstanding is made before the lock is taken.
        let mut reads = if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            let count = usize::from(attr.max_dest_rd_atomic).max(1);
            Some(KVVec::from_elem(ReadSlot::default(), count, GFP_KERNEL)?)
        } else {
            None
        };
        let peer = if mask.contains(AttrMask::DEST_QPN) {
            attr.dest_qpn
        } else {
            self.query().core.dest_qpn
        };
        let lane = match &av {
            Some(av) => Some(Lane::new(&self.port, av, self.qpn, Qpn::new(peer))?),
            None => None,
        };
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset) {
            self.take_leave();
        }
        self.drive(BUDGET_INLINE, |core, world| {
            // What is replaced is freed by the caller, outside the lock.
            if let Some(reads) = &mut reads {
                *reads = core.set_read_slots(core::mem::take(reads));
            }
            if let Err(error) = core.modify(now(), attr, mask, world) {
                if let Some(reads) = &mut reads {
                    *reads = core.set_read_slots(core::mem::take(reads));
                }
                return Err(error);
            }
            if let Some(av) = av {
                world.io.av = Some(av);
                world.io.lanes.set_peer(lane);
            }
            if mask.contains(AttrMask::ACCESS_FLAGS) {
                world.io.access_flags = access_flags;
            }
            if mask.contains(AttrMask::STATE) {
                world.io.late_interval = LATE_RECEIVE_NS;
                if attr.state == QpState::Reset {
                    world.io.reset();
                }
            }
            Ok::<(), AttrError>(())
        })
        .ok_or(EINVAL)?
        .map_err(errno)
    }

    /// Says what the peer is still to be told of messages that have arrived.
    fn take_leave(&self) {
        let _ = self.drive(BUDGET_INLINE, |core, _| core.release_ack());
    }

    /// The attributes as they were set.
    pub(crate) fn query(&self) -> QueriedAttr {
        let state = self.state.lock();
        QueriedAttr {
            core: state.core.attr(),
            av: state.io.av,
            access_flags: state.io.access_flags,
            draining: state.core.is_draining(),
            caps: self.caps,
        }
    }

    /// Sends of a kernel user.
    pub(crate) fn kernel_sends(&self) -> Option<&Posted<KernelSend>> {
        self.kernel_sends.as_deref()
    }

    /// Where its receives come from.
    pub(crate) fn receives(&self) -> &ReceiveQueue {
        &self.receives
    }

    /// Makes the QP look at its queues soon.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn kick(&self) {
        self.work.queue();
    }

    /// The state, which may be changing. In [`QpState::Err`] whoever has posted calls
    /// [`Self::kick`].
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.state_code.load(Relaxed)).unwrap_or(QpState::Err)
    }

    /// The sizes that the QP was made with.
    pub(crate) fn caps(&self) -> &QpCaps {
        &self.caps
    }
}

impl TimerTarget for QueuePair {
    fn expired(&self) {
        let found = self.drive_steps(BUDGET_INLINE, |steps| {
            let (core, mut world) = steps.next(None);
            world.io.late_interval = if world.io.receives.is_empty() {
                LATE_RECEIVE_MAX_NS.min(world.io.late_interval.saturating_mul(2))
            } else {
                LATE_RECEIVE_NS
            };
            core.handle_timeout(now(), &mut world);
            steps.gather = self.waits_on(steps.core, steps.io);
            self.looks_for_receives(steps.io)
        });
        if found == Some(true) {
            self.replay();
        }
    }
}

impl WorkTarget for QueuePair {
    fn run(&self) {
        let _ = self.drive(BUDGET_WORK, |_, _| ());
    }
}

/// The time as the protocol crate counts it.
fn now() -> Instant {
    Instant(rdma::time::now_ns())
}

impl Io {
    /// Throws away everything that is posted: the QP was reset.
    fn reset(&mut self) {
        self.access_flags = 0;
        self.sends.discard(0);
        self.receives.discard();
        self.slots.clear();
        self.faults.reset();
    }
}
