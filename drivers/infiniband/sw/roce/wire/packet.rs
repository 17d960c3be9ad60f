// SPDX-License-Identifier: GPL-2.0
//! One packet as values: the headers, and where the payload stands.

use crate::{
    types::{
        RKey,
        Srqn, //
    },
    wire::{
        atomic,
        ieth,
        imm,
        xrceth,
        Aeth,
        AtomicEth,
        Bth,
        Deth,
        Error,
        Feth,
        Reth,
        ICRC_LEN, //
    }, //
};
use core::fmt;

/// The headers of one packet and the place of its payload.
///
/// Of a parsed packet, exactly those extension headers are there that the opcode has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Packet {
    /// Base Transport Header.
    pub bth: Bth,
    /// Datagram Extended Transport Header.
    pub deth: Option<Deth>,
    /// XRC Extended Transport Header: the shared receive queue that a request names.
    pub xrceth: Option<Srqn>,
    /// FLUSH Extended Transport Header.
    pub feth: Option<Feth>,
    /// RDMA Extended Transport Header.
    pub reth: Option<Reth>,
    /// Atomic Extended Transport Header.
    pub atomic: Option<AtomicEth>,
    /// ACK Extended Transport Header.
    pub aeth: Option<Aeth>,
    /// Atomic ACK Extended Transport Header: the value before the operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data, in network order.
    pub imm: Option<[u8; 4]>,
    /// Invalidate Extended Transport Header.
    pub ieth: Option<RKey>,
    /// Where the payload starts, in bytes from the start of the BTH.
    pub payload_offset: u32,
    /// Bytes of payload, without padding and ICRC.
    pub payload_len: u32,
}

impl Packet {
    /// A packet with this BTH, no extension headers and no payload.
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            payload_offset: bth.opcode.header_len() as u32,
            payload_len: 0,
        }
    }

    /// Reads a packet.
    ///
    /// `header` are the first bytes of the UDP payload: at least the headers, or the whole of it.
    /// `udp_payload_len` is the length of the UDP payload with padding and ICRC. Neither the
    /// payload nor the ICRC is looked at.
    ///
    /// # Errors
    ///
    /// Says why the packet is to be dropped.
    pub fn parse(header: &[u8], udp_payload_len: usize) -> Result<Self, Error> {
        let mut packet = None;
        Self::parse_into(&mut packet, header, udp_payload_len).copied()
    }

    /// As [`Self::parse`], to the place where the packet is to be: it is large, and not moved about.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    #[inline]
    pub fn parse_into<'a>(
        place: &'a mut Option<Self>,
        header: &[u8],
        udp_payload_len: usize,
    ) -> Result<&'a Self, Error> {
        if udp_payload_len < Bth::LEN + ICRC_LEN || udp_payload_len % 4 != 0 {
            return Err(Error::Length);
        }
        let packet = place.insert(Self::new(Bth::parse(header)?));
        packet.read_headers(header, udp_payload_len)?;
        Ok(packet)
    }

    /// Reads the headers behind the BTH, which is known.
    #[inline]
    fn read_headers(&mut self, header: &[u8], udp_payload_len: usize) -> Result<(), Error> {
        let opcode = self.bth.opcode;

        //= IBA 9.6.1
        let padded = udp_payload_len
            .checked_sub(ICRC_LEN)
            .and_then(|len| len.checked_sub(opcode.header_len()))
            .and_then(|len| u32::try_from(len).ok())
            .ok_or(Error::Length)?;
        self.payload_len = padded
            .checked_sub(u32::from(self.bth.pad))
            .ok_or(Error::Pad)?;
        if self.payload_len != 0 && !opcode.has_payload() {
            return Err(Error::Payload);
        }

        let mut rest = header.get(Bth::LEN..).ok_or(Error::Truncated)?;
        if opcode.header_len() == Bth::LEN {
            return Ok(());
        }
        if opcode.has_deth() {
            let (deth, after) = Deth::parse(rest)?;
            self.deth = Some(deth);
            rest = after;
        }
        if opcode.has_xrceth() {
            let (srq, after) = xrceth::parse(rest)?;
            self.xrceth = Some(srq);
            rest = after;
        }
        if opcode.has_feth() {
            let (feth, after) = Feth::parse(rest)?;
            self.feth = Some(feth);
            rest = after;
        }
        if opcode.has_reth() {
            let (reth, after) = Reth::parse(rest)?;
            self.reth = Some(reth);
            rest = after;
        }
        if opcode.has_atomic() {
            let (eth, after) = AtomicEth::parse(rest)?;
            self.atomic = Some(eth);
            rest = after;
        }
        if opcode.has_aeth() {
            let (aeth, after) = Aeth::parse(rest)?;
            self.aeth = Some(aeth);
            rest = after;
        }
        if opcode.has_atomic_ack() {
            let (original, after) = atomic::parse_ack(rest)?;
            self.atomic_ack = Some(original);
            rest = after;
        }
        if opcode.has_imm() {
            let (data, after) = imm::parse(rest)?;
            self.imm = Some(data);
            rest = after;
        }
        if opcode.has_ieth() {
            let (rkey, _) = ieth::parse(rest)?;
            self.ieth = Some(rkey);
        }
        Ok(())
    }

    /// Writes the headers that the opcode has, and returns their length in bytes.
    ///
    /// Returns 0 if `bytes` is too short or if a header that the opcode has is not there. Padding
    /// is the caller's matter: [`Bth::pad`] goes out as it is.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        match self.emit_headers(bytes) {
            Some(()) => self.bth.opcode.header_len(),
            None => 0,
        }
    }

    #[inline]
    fn emit_headers(&self, bytes: &mut [u8]) -> Option<()> {
        let opcode = self.bth.opcode;
        let mut rest = self.bth.emit(bytes)?;
        if opcode.header_len() == Bth::LEN {
            return Some(());
        }
        if opcode.has_deth() {
            rest = self.deth?.emit(rest)?;
        }
        if opcode.has_xrceth() {
            rest = xrceth::emit(self.xrceth?, rest)?;
        }
        if opcode.has_feth() {
            rest = self.feth?.emit(rest)?;
        }
        if opcode.has_reth() {
            rest = self.reth?.emit(rest)?;
        }
        if opcode.has_atomic() {
            rest = self.atomic?.emit(rest)?;
        }
        if opcode.has_aeth() {
            rest = self.aeth?.emit(rest)?;
        }
        if opcode.has_atomic_ack() {
            rest = atomic::emit_ack(self.atomic_ack?, rest)?;
        }
        if opcode.has_imm() {
            rest = imm::emit(self.imm?, rest)?;
        }
        if opcode.has_ieth() {
            ieth::emit(self.ieth?, rest)?;
        }
        Some(())
    }
}

/// One line in the manner of tcpdump.
impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bth)?;
        if let Some(deth) = self.deth {
            write!(
                f,
                " from qp {:#x} qkey {:#x}",
                deth.src_qp.get(),
                deth.qkey.0
            )?;
        }
        if let Some(srq) = self.xrceth {
            write!(f, " srq {:#x}", srq.get())?;
        }
        if let Some(feth) = self.feth {
            let types = match (feth.global, feth.persistent) {
                (true, true) => "global persistent",
                (true, false) => "global",
                (false, true) => "persistent",
                (false, false) => "nothing",
            };
            write!(f, " {types} {:?}", feth.selectivity)?;
        }
        if let Some(reth) = self.reth {
            write!(
                f,
                " va {:#x} rkey {:#x} dma {}",
                reth.va, reth.rkey.0, reth.length
            )?;
        }
        if let Some(atomic) = self.atomic {
            write!(
                f,
                " va {:#x} rkey {:#x} swap/add {:#x} compare {:#x}",
                atomic.va, atomic.rkey.0, atomic.swap_add, atomic.compare
            )?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " {} msn {}", aeth.syndrome, aeth.msn.get())?;
        }
        if let Some(original) = self.atomic_ack {
            write!(f, " original {original:#x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {:#010x}", u32::from_be_bytes(imm))?;
        }
        if let Some(rkey) = self.ieth {
            write!(f, " inv {:#x}", rkey.0)?;
        }
        if self.bth.opcode.has_payload() {
            write!(f, " len {}", self.payload_len)?;
        }
        Ok(())
    }
}
