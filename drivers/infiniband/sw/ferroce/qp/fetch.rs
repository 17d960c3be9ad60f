// SPDX-License-Identifier: GPL-2.0
//! From posted to validated: the only place where a send WQE is read.
//!
//! User space posts into a ring that it can write at any time. Each WQE is copied out once, the
//! copy is checked, and what passes becomes a [`roce::wqe::SendWqe`], which has no way to express
//! what did not. A WQE that fails is not dropped: it completes in its turn, with the status that
//! says why.

use super::{
    sends::Payload,
    world::World,
    Core, //
};
use crate::{
    address::AddressHandle,
    posted::Posted,
    queue::Consumer,
    region::{
        Bind,
        Operands, //
    },
    uapi::{
        self,
        send_flags,
        wr_opcode,
        Sge, //
    }, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use rdma::verbs::QpCaps;
use roce::{
    cqe::WcStatus,
    qp::state::{
        QpKind,
        QpState, //
    },
    types::{
        QKey,
        Qpn,
        RKey,
        Srqn, //
    },
    wire::{
        Feth,
        Selectivity, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe,
        ATOMIC_LENGTH, //
    }, //
};
use zerocopy::{
    FromBytes,
    FromZeros,
    IntoBytes, //
};

/// The longest message (IBTA 9.7.7: 2^31 bytes).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The most send WQEs that are in flight at once; more wait in the ring.
const MAX_IN_FLIGHT: u32 = 256;

/// There is room for so many when a QP is made.
const FIRST_IN_FLIGHT: u32 = 16;

/// How many send WQEs of a QP are in flight at most.
pub(super) fn most_in_flight(caps: &QpCaps) -> u32 {
    caps.max_send_wr.clamp(1, MAX_IN_FLIGHT).next_power_of_two()
}

/// How many there is room for at first.
pub(super) fn first_in_flight(caps: &QpCaps) -> u32 {
    most_in_flight(caps).min(FIRST_IN_FLIGHT)
}

/// Room for so many send WQEs.
pub(super) fn send_slots(count: u32, flags: Flags) -> Result<KVVec<SendWqe>> {
    let none = SendWqe::new(0, SendOp::Send, 0);
    Ok(KVVec::from_elem(none, count as usize, flags)?)
}

/// A send of a kernel user: the WQE, for a datagram its address, and where its payload is.
pub(crate) type KernelSend = (SendWqe, Option<Arc<AddressHandle>>, Payload);

/// Where send WQEs come from.
pub(crate) enum SendSource {
    /// A ring shared with user space.
    User(UserSends),
    /// A queue filled by a kernel user.
    Kernel(Arc<Posted<KernelSend>>),
}

/// The send ring of a user QP.
pub(crate) struct UserSends {
    ring: Consumer,
    /// Most bytes of inline data in a slot.
    max_inline: u32,
    /// Ring index up to which slots were given back, and the count of retired WQEs at that point.
    released: (u32, u32),
}

impl UserSends {
    pub(crate) fn new(ring: Consumer, max_inline: u32) -> Self {
        Self {
            ring,
            max_inline,
            released: (0, 0),
        }
    }
}

impl SendSource {
    /// The queue of a kernel user.
    pub(crate) fn kernel(&self) -> Option<Arc<Posted<KernelSend>>> {
        match self {
            Self::User(_) => None,
            Self::Kernel(queue) => Some(queue.clone()),
        }
    }

    /// Entries that the list of a send may fill: inline data of a kernel user is kept in their place.
    pub(crate) fn list_entries(&self, caps: &QpCaps) -> u32 {
        match self {
            Self::User(_) => caps.max_send_sge,
            Self::Kernel(_) => kernel_list_entries(caps),
        }
    }

    /// Whether nothing is posted that has not been fetched.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::User(user) => user.ring.peek().is_none(),
            Self::Kernel(queue) => queue.is_empty(),
        }
    }

    /// How many are posted that have not been fetched; of a kernel user, whether any is.
    pub(crate) fn waiting(&self) -> u32 {
        match self {
            Self::User(user) => user.ring.waiting(),
            Self::Kernel(queue) => u32::from(!queue.is_empty()),
        }
    }

    /// Gives the slots of retired WQEs back to user space; `retired` counts them all.
    pub(crate) fn release(&mut self, retired: u32) {
        if let Self::User(user) = self {
            let (index, count) = user.released;
            if retired != count {
                let index = index.wrapping_add(retired.wrapping_sub(count));
                user.ring.release(index);
                user.released = (index, retired);
            }
        }
    }

    /// Throws away what is posted; `retired` is the present count.
    pub(crate) fn discard(&mut self, retired: u32) {
        match self {
            Self::User(user) => user.released = (user.ring.discard(), retired),
            Self::Kernel(queue) => queue.clear(),
        }
    }

    /// Copies `buf.len()` bytes of inline data from `offset` on out of the slot `index`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is not inside the slot.
    pub(crate) fn read_inline(&self, index: u32, offset: u32, buf: &mut [u8]) -> Result {
        match self {
            Self::User(user) => {
                let at = size_of::<uapi::SendWqe>()
                    .checked_add(offset as usize)
                    .ok_or(EINVAL)?;
                user.ring.ring().read(index, at, buf)
            }
            Self::Kernel(_) => Err(EINVAL),
        }
    }
}

/// Entries in the slot of a kernel user's send, for its list or its inline data.
pub(crate) fn kernel_list_entries(caps: &QpCaps) -> u32 {
    let inline = caps.max_inline_data.div_ceil(size_of::<Sge>() as u32);
    caps.max_send_sge.max(inline)
}

impl World<'_> {
    /// Whether a send could be fetched now.
    pub(super) fn can_fetch(&self, core: &Core) -> bool {
        self.takes_sends(core) && core.next_slot().is_some() && !self.io.sends.is_empty()
    }

    /// Whether sends are taken off the queue. Whatever ring a target may have: it sends nothing.
    #[inline]
    fn takes_sends(&self, core: &Core) -> bool {
        self.qp.kind != QpKind::XrcTgt && takes_sends(core.state())
    }

    /// Moves posted sends into free slots of the QP, as far as there are any.
    pub(super) fn fetch(&mut self, core: &mut Core) {
        while self.takes_sends(core) {
            let Some(slot) = core.next_slot() else {
                // Also if nothing is posted now: what is posted next is only looked at where there is room.
                if self.grow(core).is_err() {
                    return;
                }
                continue;
            };
            let Some(wqe) = self.fetch_into(slot) else {
                return;
            };
            if core.post(wqe).is_err() {
                return;
            }
        }
    }

    /// More room for sends in flight: most QPs never need all that they may have. Without memory
    /// for it there are just less in flight.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is all the room that a QP may have, `ENOMEM`.
    fn grow(&mut self, core: &mut Core) -> Result {
        let count = core.send_slots();
        if count >= most_in_flight(&self.qp.caps) {
            return Err(ENOSPC);
        }
        let wqes = send_slots(count.saturating_mul(2), GFP_NOWAIT | __GFP_NOWARN)?;
        self.io.slots = self.io.slots.doubled()?;
        core.set_send_slots(wqes);
        Ok(())
    }

    /// Takes the next posted send; its list goes to `slot`.
    fn fetch_into(&mut self, slot: u32) -> Option<SendWqe> {
        let io = &mut *self.io;
        match &mut io.sends {
            SendSource::Kernel(queue) => {
                let ((wqe, address, payload), count) = queue.pop(io.slots.list_mut(slot)?)?;
                io.slots.set(slot, payload, count as u32, address);
                Some(wqe)
            }
            SendSource::User(user) => {
                let index = user.ring.peek()?;
                let mut raw = uapi::SendWqe::new_zeroed();
                user.ring.ring().read(index, 0, raw.as_mut_bytes()).ok()?;
                let mut wqe = SendWqe::new(raw.wr_id, SendOp::Send, raw.dma.length);
                wqe.signaled = self.qp.signal_all || raw.send_flags & send_flags::SIGNALED != 0;
                wqe.solicited = raw.send_flags & send_flags::SOLICITED != 0;
                wqe.fence = raw.send_flags & send_flags::FENCE != 0;
                if let Some((op, operands)) = local_op(self.qp.kind, &raw) {
                    wqe.op = SendOp::Local(op);
                    wqe.length = 0;
                    user.ring.advance();
                    io.slots.set(slot, Payload::Local(operands), 0, None);
                    return Some(wqe);
                }
                let mut address = None;
                wqe.op = match self.qp.kind {
                    QpKind::Rc | QpKind::Uc => connected_op(&raw),
                    QpKind::XrcIni => match remote_srq(&raw) {
                        Some(srq) => {
                            wqe.srq = srq;
                            connected_op(&raw)
                        }
                        None => None,
                    },
                    // Nobody can post to it.
                    QpKind::XrcTgt => None,
                    QpKind::Ud | QpKind::Gsi => {
                        let op = self.datagram_op(&raw);
                        address = op.as_ref().map(|(_, address)| address.clone());
                        op.map(|(op, _)| op)
                    }
                }
                .unwrap_or(SendOp::Invalid(WcStatus::LocQpOpErr));
                match self.fetch_payload(slot, index, &raw, address) {
                    Ok(length) => wqe.length = length,
                    Err(status) => wqe.op = SendOp::Invalid(status),
                }
                if let SendSource::User(user) = &mut self.io.sends {
                    user.ring.advance();
                }
                Some(wqe)
            }
        }
    }

    /// Copies the list of the WQE at ring index `index` to `slot` and checks its length. Returns
    /// the length that the operation works with.
    fn fetch_payload(
        &mut self,
        slot: u32,
        index: u32,
        raw: &uapi::SendWqe,
        address: Option<Arc<AddressHandle>>,
    ) -> Result<u32, WcStatus> {
        let io = &mut *self.io;
        let SendSource::User(user) = &io.sends else {
            return Err(WcStatus::LocQpOpErr);
        };
        if raw.dma.length > MAX_MESSAGE {
            return Err(WcStatus::LocLenErr);
        }
        match raw.opcode {
            // The length is that of the range at the peer; there is nothing here.
            wr_opcode::FLUSH => {
                io.slots.set(slot, Payload::List, 0, address);
                return Ok(0);
            }
            // The 8 bytes stand where inline data does, whatever the flags say.
            wr_opcode::ATOMIC_WRITE if raw.dma.num_sge == 0 => {
                io.slots.set(slot, Payload::Inline(index), 0, address);
                return Ok(raw.dma.length);
            }
            _ => {}
        }
        if raw.send_flags & send_flags::INLINE != 0 {
            let receives = is_atomic(raw.opcode) || raw.opcode == wr_opcode::RDMA_READ;
            if raw.dma.length > user.max_inline || receives {
                return Err(WcStatus::LocQpOpErr);
            }
            io.slots.set(slot, Payload::Inline(index), 0, address);
            return Ok(raw.dma.length);
        }
        let count = raw.dma.num_sge as usize;
        let list = io
            .slots
            .list_mut(slot)
            .and_then(|list| list.get_mut(..count))
            .ok_or(WcStatus::LocQpOpErr)?;
        user.ring
            .ring()
            .read(index, size_of::<uapi::SendWqe>(), list.as_mut_bytes())
            .map_err(|_| WcStatus::LocQpOpErr)?;
        // The length that user space summed up is 32 bits wide; the list is what counts.
        let total = list
            .iter()
            .fold(0u64, |sum, sge| sum.saturating_add(u64::from(sge.length)));
        if total != u64::from(raw.dma.length) {
            return Err(WcStatus::LocLenErr);
        }
        io.slots.set(slot, Payload::List, raw.dma.num_sge, address);
        if is_atomic(raw.opcode) && raw.dma.length > ATOMIC_LENGTH {
            // There is more room than needed.
            return Ok(ATOMIC_LENGTH);
        }
        Ok(raw.dma.length)
    }

    /// The operation of a WQE on a datagram QP, with its address.
    fn datagram_op(&self, raw: &uapi::SendWqe) -> Option<(SendOp, Arc<AddressHandle>)> {
        let imm = match raw.opcode {
            wr_opcode::SEND => None,
            wr_opcode::SEND_WITH_IMM => Some(raw.ex),
            _ => return None,
        };
        let (ud, _) = uapi::UdOperands::read_from_prefix(&raw.operands).ok()?;
        let address = self.qp.port.addresses.get(self.rcu, ud.ah_num)?;
        if address.pd() != self.qp.accessor.pd {
            return None;
        }
        let op = SendOp::Datagram {
            dest: Qpn::new(ud.remote_qpn),
            qkey: QKey(ud.remote_qkey),
            imm,
        };
        Some((op, address.into()))
    }
}

/// Whether a QP in `state` takes sends off its queue.
fn takes_sends(state: QpState) -> bool {
    match state {
        QpState::Reset | QpState::Init | QpState::Rtr => false,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => true,
    }
}

fn is_atomic(opcode: u32) -> bool {
    matches!(
        opcode,
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD
    )
}

/// The local operation that a WQE of user space asks for.
fn local_op(kind: QpKind, raw: &uapi::SendWqe) -> Option<(LocalOp, Operands)> {
    match kind {
        QpKind::Rc | QpKind::Uc | QpKind::XrcIni => {}
        QpKind::Ud | QpKind::Gsi | QpKind::XrcTgt => return None,
    }
    match raw.opcode {
        wr_opcode::LOCAL_INV => {
            let key = u32::from_ne_bytes(raw.ex);
            Some((LocalOp::Invalidate, Operands::Invalidate(key)))
        }
        wr_opcode::BIND_MW => {
            let (mw, _) = uapi::BindOperands::read_from_prefix(&raw.operands).ok()?;
            let bind = Bind {
                window: mw.mw_rkey,
                key: mw.rkey,
                parent: mw.mr_lkey,
                va: mw.addr,
                length: mw.length,
                access: mw.access,
            };
            Some((LocalOp::Bind, Operands::Bind(bind)))
        }
        _ => None,
    }
}

/// The shared receive queue at the peer that a WQE names; `None` for what is none.
fn remote_srq(raw: &uapi::SendWqe) -> Option<Srqn> {
    let (xrc, _) = uapi::XrcOperands::read_from_prefix(&raw.operands).ok()?;
    let srq = Srqn::new(xrc.srq_num);
    (srq.get() == xrc.srq_num).then_some(srq)
}

/// The operation of a WQE on a connected QP. `None` for what this transport does not have.
fn connected_op(raw: &uapi::SendWqe) -> Option<SendOp> {
    let (rdma, _) = uapi::RdmaOperands::read_from_prefix(&raw.operands).ok()?;
    let (va, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    Some(match raw.opcode {
        wr_opcode::SEND => SendOp::Send,
        wr_opcode::SEND_WITH_IMM => SendOp::SendImm(raw.ex),
        wr_opcode::SEND_WITH_INV => SendOp::SendInv(RKey(u32::from_ne_bytes(raw.ex))),
        wr_opcode::RDMA_WRITE => SendOp::Write { va, rkey },
        wr_opcode::RDMA_WRITE_WITH_IMM => SendOp::WriteImm {
            va,
            rkey,
            imm: raw.ex,
        },
        wr_opcode::RDMA_READ => SendOp::Read { va, rkey },
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => atomic_op(raw)?,
        wr_opcode::ATOMIC_WRITE => SendOp::AtomicWrite { va, rkey },
        wr_opcode::FLUSH => flush_op(raw)?,
        _ => return None,
    })
}

fn atomic_op(raw: &uapi::SendWqe) -> Option<SendOp> {
    let (atomic, _) = uapi::AtomicOperands::read_from_prefix(&raw.operands).ok()?;
    let op = if raw.opcode == wr_opcode::ATOMIC_CMP_AND_SWP {
        AtomicOp::CompareSwap {
            compare: atomic.compare_add,
            swap: atomic.swap,
        }
    } else {
        AtomicOp::FetchAdd(atomic.compare_add)
    };
    Some(SendOp::Atomic {
        va: atomic.remote_addr,
        rkey: RKey(atomic.rkey),
        op,
    })
}

fn flush_op(raw: &uapi::SendWqe) -> Option<SendOp> {
    let (flush, _) = uapi::FlushOperands::read_from_prefix(&raw.operands).ok()?;
    let known = uapi::flush::GLOBAL | uapi::flush::PERSISTENT;
    let feth = Feth {
        global: flush.types & uapi::flush::GLOBAL != 0,
        persistent: flush.types & uapi::flush::PERSISTENT != 0,
        reserved: flush.types & !known != 0,
        selectivity: match flush.level {
            uapi::flush::RANGE => Selectivity::Range,
            uapi::flush::REGION => Selectivity::Region,
            _ => return None,
        },
    };
    Some(SendOp::Flush {
        va: flush.remote_addr,
        rkey: RKey(flush.rkey),
        length: raw.dma.length,
        feth,
    })
}
