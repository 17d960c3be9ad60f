// SPDX-License-Identifier: GPL-2.0
//! What surrounds one queue pair: memory, queues and completions, over plain buffers.
//!
//! It is stricter than a driver would be. Each byte of a receive buffer or of memory that the peer
//! writes may be written once only, so that a request that is executed twice is found; whatever is
//! against the contract of [`Env`] panics.

use roce::{
    cqe::{
        RecvCqe,
        SendCqe, //
    },
    env::{
        Counter,
        CqOverflow,
        Env,
        MemoryError,
        QpEvent,
        Receive,
        RemoteAccess, //
    },
    run::PayloadSource,
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
use std::{
    collections::{
        BTreeMap,
        VecDeque, //
    },
    ops::Range, //
};

/// Memory that is written in pieces, each byte at most once.
#[derive(Clone, Debug, Default)]
pub struct WriteOnce {
    /// The bytes.
    pub bytes: Vec<u8>,
    written: Vec<bool>,
}

impl WriteOnce {
    /// So many bytes, none written.
    pub fn new(length: usize) -> Self {
        Self {
            bytes: vec![0xee; length],
            written: vec![false; length],
        }
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.written.iter().filter(|w| **w).count()
    }

    fn write(&mut self, offset: u64, data: &[u8], once: bool) -> Result<(), MemoryError> {
        let start = usize::try_from(offset).map_err(|_| MemoryError::Access)?;
        let end = start.checked_add(data.len()).ok_or(MemoryError::Access)?;
        let bytes = self.bytes.get_mut(start..end).ok_or(MemoryError::Access)?;
        bytes.copy_from_slice(data);
        for (i, written) in self.written[start..end].iter_mut().enumerate() {
            assert!(!once || !*written, "byte {} written twice", start + i);
            *written = true;
        }
        Ok(())
    }
}

/// Memory that the peer may name by key.
#[derive(Clone, Debug)]
pub struct Region {
    /// Virtual address of the first byte.
    pub va: u64,
    /// The bytes.
    pub memory: WriteOnce,
    /// The shared receive queue in whose protection domain it is; 0: that of the QP.
    pub srq: Srqn,
    /// The peer may read.
    pub read: bool,
    /// The peer may write.
    pub write: bool,
    /// The peer may carry out atomic operations.
    pub atomic: bool,
    /// The peer may invalidate the key.
    pub invalidate: bool,
    /// Accesses fail although they are allowed.
    pub broken: bool,
}

impl Region {
    /// A region for READs.
    pub fn readable(va: u64, bytes: Vec<u8>) -> Self {
        let written = vec![false; bytes.len()];
        Self {
            va,
            memory: WriteOnce { bytes, written },
            srq: Srqn::default(),
            read: true,
            write: false,
            atomic: false,
            invalidate: false,
            broken: false,
        }
    }

    /// A region for WRITEs, which can also be read.
    pub fn writable(va: u64, length: usize) -> Self {
        Self {
            va,
            memory: WriteOnce::new(length),
            srq: Srqn::default(),
            read: true,
            write: true,
            atomic: false,
            invalidate: false,
            broken: false,
        }
    }

    /// A region of 64-bit words for atomic operations, all 0.
    pub fn words(va: u64, count: usize) -> Self {
        Self {
            read: false,
            write: false,
            atomic: true,
            ..Self::readable(va, vec![0; count * 8])
        }
    }

    /// A key that is there to be invalidated.
    pub fn window() -> Self {
        Self {
            invalidate: true,
            ..Self::writable(0, 0)
        }
    }

    fn offset(&self, va: u64, length: usize) -> Result<u64, MemoryError> {
        let offset = va.checked_sub(self.va).ok_or(MemoryError::Access)?;
        let end = offset
            .checked_add(length as u64)
            .ok_or(MemoryError::Access)?;
        if end > self.memory.bytes.len() as u64 {
            return Err(MemoryError::Access);
        }
        Ok(offset)
    }
}

/// A receive WQE and its buffer.
#[derive(Clone, Debug)]
pub struct PostedReceive {
    /// Identifier.
    pub wr_id: u64,
    /// Buffer.
    pub memory: WriteOnce,
    /// The WQE does not pass validation.
    pub invalid: bool,
}

/// A completed receive and its buffer.
#[derive(Clone, Debug)]
pub struct Received {
    /// What the CQE says.
    pub cqe: RecvCqe,
    /// The shared receive queue that it came from, if an XRCETH named it.
    pub srq: Srqn,
    /// What is in the buffer.
    pub memory: WriteOnce,
}

/// What the driver keeps of a send WQE.
#[derive(Clone, Debug)]
pub struct SlotData {
    /// Payload to send, or room for the response of a READ.
    pub bytes: Vec<u8>,
    /// Accesses fail.
    pub broken: bool,
    /// It is a READ.
    pub read: bool,
}

/// The surroundings of one QP.
#[derive(Debug, Default)]
pub struct World {
    /// Memory by key.
    pub regions: BTreeMap<u32, Region>,
    /// Receive queue.
    pub receives: VecDeque<PostedReceive>,
    /// Shared receive queues that an XRCETH may name.
    pub srqs: BTreeMap<u32, VecDeque<PostedReceive>>,
    /// The one that the packet at hand named; 0: the receive queue of the QP.
    pub selected: Srqn,
    /// The receive WQE that is being filled.
    pub current: Option<PostedReceive>,
    /// By slot, from post to retirement.
    pub slots: Vec<Option<SlotData>>,
    /// Send CQ.
    pub sent: Vec<SendCqe>,
    /// Receive CQ.
    pub received: Vec<Received>,
    /// Asynchronous events.
    pub events: Vec<QpEvent>,
    /// At each FLUSH, the bytes of its region that were written.
    pub flushed: Vec<usize>,
    /// By [`Counter`].
    pub counters: [u64; Counter::COUNT],
    /// Room for completions; none left is an overflow.
    pub cq_room: Option<usize>,
    /// Payload of the packet at hand.
    pub payload: Vec<u8>,
    /// The peer does not keep to the protocol: it may write a byte twice.
    pub lenient: bool,
    /// Buffers of the READs that completed, in order.
    pub read_results: Vec<Vec<u8>>,
    /// Local operations that were carried out, in order.
    pub locals: Vec<LocalOp>,
}

impl World {
    /// How often this was counted.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Copies payload to send out of its source.
    ///
    /// # Errors
    ///
    /// Says why there is none.
    pub fn fetch(
        &self,
        source: PayloadSource,
        offset: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryError> {
        let offset = u64::from(offset);
        let length = length as usize;
        let (bytes, start) = match source {
            PayloadSource::None => {
                assert_eq!(length, 0, "payload without source");
                return Ok(());
            }
            PayloadSource::Wqe {
                slot,
                offset: first,
            } => {
                let data = self.slots[slot as usize]
                    .as_ref()
                    .expect("payload of a retired WQE");
                if data.broken {
                    return Err(MemoryError::Fault);
                }
                (&data.bytes, u64::from(first) + offset)
            }
            PayloadSource::Remote { rkey, va, srq } => {
                if length == 0 {
                    return Ok(());
                }
                let region = self.regions.get(&rkey.0).ok_or(MemoryError::Access)?;
                if region.srq != srq || !region.read || region.broken {
                    return Err(MemoryError::Access);
                }
                let va = va.checked_add(offset).ok_or(MemoryError::Access)?;
                (&region.memory.bytes, region.offset(va, length)?)
            }
        };
        let start = start as usize;
        out.extend_from_slice(
            bytes
                .get(start..start + length)
                .expect("payload beyond the end of the WQE"),
        );
        Ok(())
    }

    fn payload(&self, range: &Range<u32>) -> Vec<u8> {
        self.payload[range.start as usize..range.end as usize].to_vec()
    }

    /// What the key of the peer names in the protection domain at hand.
    fn region(&self, rkey: RKey) -> Result<&Region, MemoryError> {
        let region = self.regions.get(&rkey.0);
        region
            .filter(|region| region.srq == self.selected)
            .ok_or(MemoryError::Access)
    }

    fn region_mut(&mut self, rkey: RKey) -> Result<&mut Region, MemoryError> {
        self.region(rkey)?;
        self.regions.get_mut(&rkey.0).ok_or(MemoryError::Access)
    }

    fn take_cq_room(&mut self) -> Result<(), CqOverflow> {
        match &mut self.cq_room {
            Some(0) => Err(CqOverflow),
            Some(room) => {
                *room -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Env for World {
    fn select_srq(&mut self, srq: Srqn) -> Result<(), MemoryError> {
        if !self.srqs.contains_key(&srq.get()) {
            return Err(MemoryError::Access);
        }
        self.selected = srq;
        Ok(())
    }

    fn take_receive(&mut self) -> Receive {
        assert!(
            self.current.is_none(),
            "receive taken while another one is open"
        );
        let receives = match self.srqs.get_mut(&self.selected.get()) {
            Some(receives) => receives,
            None => &mut self.receives,
        };
        let Some(receive) = receives.pop_front() else {
            return Receive::Empty;
        };
        let wr_id = receive.wr_id;
        let invalid = receive.invalid;
        let length = receive.memory.bytes.len() as u64;
        self.current = Some(receive);
        if invalid {
            Receive::Invalid { wr_id }
        } else {
            Receive::Wqe(RecvWqe { wr_id, length })
        }
    }

    fn write_receive(&mut self, offset: u64, payload: Range<u32>) -> Result<(), MemoryError> {
        let data = self.payload(&payload);
        let current = self.current.as_mut().expect("write without receive");
        current.memory.write(offset, &data, !self.lenient)
    }

    fn write_grh(&mut self) -> Result<(), MemoryError> {
        let current = self.current.as_mut().expect("GRH without receive");
        current.memory.write(0, &[0x67; 40], !self.lenient)
    }

    fn write_send(
        &mut self,
        slot: u32,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        let data = self.payload(&payload);
        let slot = self.slots[slot as usize]
            .as_mut()
            .expect("READ response for a retired WQE");
        if slot.broken {
            return Err(MemoryError::Fault);
        }
        let start = offset as usize;
        slot.bytes[start..start + data.len()].copy_from_slice(&data);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert_ne!(length, 0, "nothing to check");
        let region = self.region(rkey)?;
        let allowed = match access {
            RemoteAccess::Read => region.read,
            RemoteAccess::Write => region.write,
        };
        if !allowed {
            return Err(MemoryError::Access);
        }
        region.offset(va, length as usize)?;
        Ok(())
    }

    fn write_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        let (data, once) = (self.payload(&payload), !self.lenient);
        let region = self.region_mut(rkey)?;
        if !region.write {
            return Err(MemoryError::Access);
        }
        if region.broken {
            return Err(MemoryError::Fault);
        }
        let offset = region.offset(va, data.len())?;
        region.memory.write(offset, &data, once)
    }

    fn write_result(&mut self, slot: u32, original: u64) -> Result<(), MemoryError> {
        let slot = self.slots[slot as usize]
            .as_mut()
            .expect("atomic response for a retired WQE");
        if slot.broken {
            return Err(MemoryError::Fault);
        }
        slot.bytes[..8].copy_from_slice(&original.to_ne_bytes());
        Ok(())
    }

    fn atomic(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let region = self.region_mut(rkey)?;
        if !region.atomic {
            return Err(MemoryError::Access);
        }
        if region.broken {
            return Err(MemoryError::Fault);
        }
        assert_eq!(va % 8, 0, "misaligned atomic operation");
        let offset = region.offset(va, 8)? as usize;
        let word = &mut region.memory.bytes[offset..offset + 8];
        let original = u64::from_ne_bytes((&*word).try_into().expect("8 bytes"));
        let value = match op {
            AtomicOp::FetchAdd(add) => original.wrapping_add(add),
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
        };
        word.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }

    fn atomic_write(
        &mut self,
        rkey: RKey,
        va: u64,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        assert_eq!((va % 8, payload.len()), (0, 8), "no ATOMIC WRITE");
        self.write_remote(rkey, va, payload)
    }

    fn flush(&mut self, rkey: RKey, va: u64, length: u32, feth: Feth) -> Result<(), MemoryError> {
        assert!(feth.global || feth.persistent, "FLUSH for nothing");
        let region = self.region(rkey)?;
        if !region.write || feth.persistent {
            return Err(MemoryError::Access);
        }
        region.offset(va, length as usize)?;
        self.flushed.push(region.memory.written());
        Ok(())
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        match self.regions.get(&rkey.0) {
            Some(region) if region.invalidate => {
                self.regions.remove(&rkey.0);
                Ok(())
            }
            Some(_) | None => Err(MemoryError::Access),
        }
    }

    fn local(&mut self, slot: u32, op: LocalOp) -> Result<(), MemoryError> {
        let data = self.slots[slot as usize].as_ref().expect("retired WQE");
        if data.broken {
            return Err(MemoryError::Access);
        }
        self.locals.push(op);
        Ok(())
    }

    fn complete_send(&mut self, cqe: SendCqe) -> Result<(), CqOverflow> {
        self.take_cq_room()?;
        self.sent.push(cqe);
        Ok(())
    }

    fn complete_receive(&mut self, cqe: RecvCqe) -> Result<(), CqOverflow> {
        let receive = self.current.take().expect("completion without receive");
        assert_eq!(receive.wr_id, cqe.wr_id, "completion of another receive");
        self.take_cq_room()?;
        self.received.push(Received {
            cqe,
            srq: self.selected,
            memory: receive.memory,
        });
        Ok(())
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }
}
