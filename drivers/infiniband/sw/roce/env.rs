// SPDX-License-Identifier: GPL-2.0
//! What a queue pair asks of the world around it while it handles one thing.
//!
//! The driver implements [`Env`] over memory regions, shared rings and the packet at hand; the
//! simulator over plain buffers.

use crate::{
    cqe::{
        RecvCqe,
        SendCqe, //
    },
    types::{
        RKey,
        Srqn, //
    },
    wire::Feth,
    wqe::{
        AtomicOp,
        LocalOp,
        RecvWqe, //
    }, //
};
use core::ops::Range;

/// Answer to [`Env::take_receive`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Receive {
    /// The next receive WQE; it is now the current one.
    Wqe(RecvWqe),
    /// None is posted.
    Empty,
    /// None is posted yet, but one may be soon: the packet at hand is to be handed in again, as if it had not
    /// come; the driver sees to that. Only on reliable connections.
    Soon,
    /// The next one was malformed; it has been taken and must be completed in error.
    Invalid {
        /// Its identifier.
        wr_id: u64,
    },
    /// The queue is broken: nothing can be taken from it any more.
    Broken,
}

/// Why memory could not be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryError {
    /// No such key, wrong protection domain, out of bounds, or not allowed.
    Access,
    /// The memory was there but could not be read or written.
    Fault,
    /// The memory is not there yet: pages are on their way. Whatever wanted it is to be done again
    /// when they have come, as if it had not been begun; the driver sees to that.
    NotResident,
}

/// The completion queue is full: the completion is lost and the QP must go into error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CqOverflow;

/// Rights that a remote request needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
}

/// Asynchronous events of a QP (`enum ib_event_type`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpEvent {
    /// First packet arrived in RTR.
    CommEst,
    /// The send queue is drained (SQD).
    SqDrained,
    /// Invalid request at the responder.
    ReqErr,
    /// Access violation at the responder.
    AccessErr,
    /// The QP failed in a way that no completion tells.
    Fatal,
    /// The QP is in ERR and takes nothing any more from the receive queue that it shares.
    LastWqe,
}

/// What is counted. The driver maps each to a named port counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum Counter {
    /// A request that had been carried out came again.
    DuplicateRequest,
    /// A request came too early: a packet is missing.
    OutOfSequence,
    /// An RNR NAK came in.
    RnrReceived,
    /// An RNR NAK went out.
    RnrSent,
    /// A sequence-error NAK came in.
    SeqNakReceived,
    /// Retries were used up.
    RetryExceeded,
    /// RNR retries were used up.
    RnrRetryExceeded,
    /// The requester went back (timer, NAK or gap).
    Retry,
    /// The local ACK timer fired.
    AckTimeout,
    /// A gap in READ responses was seen and asked for again at once.
    ImpliedNak,
    /// SEND messages completed as requester.
    Sends,
    /// SEND messages completed as responder.
    Receives,
    /// A response that belongs to nothing outstanding was dropped.
    DropStrayResponse,
    /// A packet that the QP cannot take in its state was dropped.
    DropState,
    /// A packet of another transport than the QP's was dropped.
    DropTransport,
    /// A packet was dropped while waiting for the missing one.
    DropSequence,
    /// A datagram with a wrong Q_Key was dropped.
    DropQKey,
    /// A datagram found no receive WQE, or one that is too small.
    DropNoReceive,
    /// A request was refused as invalid.
    InvalidRequest,
    /// A request was refused for lack of rights.
    AccessViolation,
    /// A packet of another partition was dropped.
    DropPKey,
    /// The egress refused packets, and transmission paused.
    Congested,
}

impl Counter {
    /// How many there are.
    pub const COUNT: usize = Self::Congested as usize + 1;
}

/// The world around a QP. `payload` is always a range of the payload of the packet at hand; of several
/// that are handled at once, of their payloads one behind the other.
pub trait Env {
    /// From now on, until the packet at hand is done with, receive WQEs come from the shared receive queue
    /// that its XRCETH names, and the keys in it belong to that queue's protection domain.
    ///
    /// Asked for each request to the target of an Extended Reliable Connection, and of nobody else.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Access`] if there is no such queue in the XRC domain of the QP.
    fn select_srq(&mut self, srq: Srqn) -> Result<(), MemoryError>;

    /// Takes the next receive WQE off the queue; it becomes the current one.
    fn take_receive(&mut self) -> Receive;

    /// Writes to the buffers of the current receive WQE, `offset` bytes into them.
    fn write_receive(&mut self, offset: u64, payload: Range<u32>) -> Result<(), MemoryError>;

    /// Writes the 40 bytes of GRH of the datagram at hand to the current receive WQE.
    fn write_grh(&mut self) -> Result<(), MemoryError>;

    /// Writes a READ response to the scatter list of the send WQE in `slot`.
    fn write_send(
        &mut self,
        slot: u32,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), MemoryError>;

    /// Writes what an atomic operation found to the scatter list of the send WQE in `slot`, as 8
    /// bytes in the order of the CPU.
    fn write_result(&mut self, slot: u32, original: u64) -> Result<(), MemoryError>;

    /// Checks that a remote request may use `length` bytes at `va`. Not called for length 0.
    fn check_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), MemoryError>;

    /// Writes to memory for an RDMA WRITE; checks again.
    fn write_remote(&mut self, rkey: RKey, va: u64, payload: Range<u32>)
        -> Result<(), MemoryError>;

    /// Carries out an atomic operation of the peer on the 8 bytes at `va`, a multiple of 8, and
    /// returns what was there before. Checks the rights. It is atomic towards whatever else
    /// accesses this memory, the CPUs included.
    fn atomic(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemoryError>;

    /// Writes 8 bytes of payload to `va`, a multiple of 8, for ATOMIC WRITE. Checks the rights.
    /// Nobody sees a part of them, nor sees them before what was written earlier.
    fn atomic_write(&mut self, rkey: RKey, va: u64, payload: Range<u32>)
        -> Result<(), MemoryError>;

    /// Makes what was written to memory visible or persistent, for FLUSH. Checks the rights.
    fn flush(&mut self, rkey: RKey, va: u64, length: u32, feth: Feth) -> Result<(), MemoryError>;

    /// Invalidates a key of ours for SEND with invalidate.
    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError>;

    /// Carries out the local operation in `slot`. It is asked for once.
    fn local(&mut self, slot: u32, op: LocalOp) -> Result<(), MemoryError>;

    /// So many send WQEs are retired since RESET, modulo 2^32. Comes before the completion of the last
    /// of them: whoever sees that may post into its place.
    fn retired(&mut self, count: u32) {
        let _ = count;
    }

    /// Puts a completion on the send CQ.
    fn complete_send(&mut self, cqe: SendCqe) -> Result<(), CqOverflow>;

    /// Puts a completion on the receive CQ.
    fn complete_receive(&mut self, cqe: RecvCqe) -> Result<(), CqOverflow>;

    /// Reports an asynchronous event.
    fn event(&mut self, event: QpEvent);

    /// Counts one occurrence.
    fn count(&mut self, counter: Counter);
}
