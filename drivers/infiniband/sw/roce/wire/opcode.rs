// SPDX-License-Identifier: GPL-2.0
//! The opcodes of the Base Transport Header: 3 bits of transport, 5 bits of operation.

use core::fmt;

/// Transport service of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// Extended Reliable Connection.
    Xrc,
    /// Congestion notification; belongs to the connection that it names.
    Cnp,
}

/// What a packet does, whatever its place in the message and its extension headers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ Request.
    ReadRequest,
    /// RDMA READ Response.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Acknowledge,
    /// Atomic Acknowledge.
    AtomicAcknowledge,
    /// Compare and Swap.
    CompareSwap,
    /// Fetch and Add.
    FetchAdd,
    /// FLUSH.
    Flush,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// Congestion Notification Packet.
    Cnp,
}

//= IBA 9.2.1
//= IBA A14.3
/// Opcode of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are those of the standard's table")]
pub enum Opcode {
    RcSendFirst = 0x00,
    RcSendMiddle = 0x01,
    RcSendLast = 0x02,
    RcSendLastImm = 0x03,
    RcSendOnly = 0x04,
    RcSendOnlyImm = 0x05,
    RcWriteFirst = 0x06,
    RcWriteMiddle = 0x07,
    RcWriteLast = 0x08,
    RcWriteLastImm = 0x09,
    RcWriteOnly = 0x0a,
    RcWriteOnlyImm = 0x0b,
    RcReadRequest = 0x0c,
    RcReadResponseFirst = 0x0d,
    RcReadResponseMiddle = 0x0e,
    RcReadResponseLast = 0x0f,
    RcReadResponseOnly = 0x10,
    RcAcknowledge = 0x11,
    RcAtomicAcknowledge = 0x12,
    RcCompareSwap = 0x13,
    RcFetchAdd = 0x14,
    RcSendLastInv = 0x16,
    RcSendOnlyInv = 0x17,
    RcFlush = 0x1c,
    RcAtomicWrite = 0x1d,
    UcSendFirst = 0x20,
    UcSendMiddle = 0x21,
    UcSendLast = 0x22,
    UcSendLastImm = 0x23,
    UcSendOnly = 0x24,
    UcSendOnlyImm = 0x25,
    UcWriteFirst = 0x26,
    UcWriteMiddle = 0x27,
    UcWriteLast = 0x28,
    UcWriteLastImm = 0x29,
    UcWriteOnly = 0x2a,
    UcWriteOnlyImm = 0x2b,
    UdSendOnly = 0x64,
    UdSendOnlyImm = 0x65,
    Cnp = 0x81,
    XrcSendFirst = 0xa0,
    XrcSendMiddle = 0xa1,
    XrcSendLast = 0xa2,
    XrcSendLastImm = 0xa3,
    XrcSendOnly = 0xa4,
    XrcSendOnlyImm = 0xa5,
    XrcWriteFirst = 0xa6,
    XrcWriteMiddle = 0xa7,
    XrcWriteLast = 0xa8,
    XrcWriteLastImm = 0xa9,
    XrcWriteOnly = 0xaa,
    XrcWriteOnlyImm = 0xab,
    XrcReadRequest = 0xac,
    XrcReadResponseFirst = 0xad,
    XrcReadResponseMiddle = 0xae,
    XrcReadResponseLast = 0xaf,
    XrcReadResponseOnly = 0xb0,
    XrcAcknowledge = 0xb1,
    XrcAtomicAcknowledge = 0xb2,
    XrcCompareSwap = 0xb3,
    XrcFetchAdd = 0xb4,
    XrcSendLastInv = 0xb6,
    XrcSendOnlyInv = 0xb7,
    XrcFlush = 0xbc,
    XrcAtomicWrite = 0xbd,
}

/// First packet of its message.
const START: u32 = 1 << 0;
/// Last packet of its message.
const END: u32 = 1 << 1;
/// The only packet of its message.
const ONLY: u32 = START | END;
/// Answers a request.
const RESPONSE: u32 = 1 << 2;
/// May carry payload.
const PAYLOAD: u32 = 1 << 3;
const DETH: u32 = 1 << 4;
const RETH: u32 = 1 << 5;
const ATOMIC: u32 = 1 << 6;
const AETH: u32 = 1 << 7;
const ATOMIC_ACK: u32 = 1 << 8;
const IMM: u32 = 1 << 9;
const IETH: u32 = 1 << 10;
const FETH: u32 = 1 << 11;
const XRCETH: u32 = 1 << 12;
/// The bits above the flags hold the length of the headers in words of four bytes.
const HEADER_WORDS_SHIFT: u32 = 16;

impl Opcode {
    /// The opcode with this value, if there is one.
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::RcSendFirst,
            0x01 => Self::RcSendMiddle,
            0x02 => Self::RcSendLast,
            0x03 => Self::RcSendLastImm,
            0x04 => Self::RcSendOnly,
            0x05 => Self::RcSendOnlyImm,
            0x06 => Self::RcWriteFirst,
            0x07 => Self::RcWriteMiddle,
            0x08 => Self::RcWriteLast,
            0x09 => Self::RcWriteLastImm,
            0x0a => Self::RcWriteOnly,
            0x0b => Self::RcWriteOnlyImm,
            0x0c => Self::RcReadRequest,
            0x0d => Self::RcReadResponseFirst,
            0x0e => Self::RcReadResponseMiddle,
            0x0f => Self::RcReadResponseLast,
            0x10 => Self::RcReadResponseOnly,
            0x11 => Self::RcAcknowledge,
            0x12 => Self::RcAtomicAcknowledge,
            0x13 => Self::RcCompareSwap,
            0x14 => Self::RcFetchAdd,
            0x16 => Self::RcSendLastInv,
            0x17 => Self::RcSendOnlyInv,
            0x1c => Self::RcFlush,
            0x1d => Self::RcAtomicWrite,
            0x20 => Self::UcSendFirst,
            0x21 => Self::UcSendMiddle,
            0x22 => Self::UcSendLast,
            0x23 => Self::UcSendLastImm,
            0x24 => Self::UcSendOnly,
            0x25 => Self::UcSendOnlyImm,
            0x26 => Self::UcWriteFirst,
            0x27 => Self::UcWriteMiddle,
            0x28 => Self::UcWriteLast,
            0x29 => Self::UcWriteLastImm,
            0x2a => Self::UcWriteOnly,
            0x2b => Self::UcWriteOnlyImm,
            0x64 => Self::UdSendOnly,
            0x65 => Self::UdSendOnlyImm,
            0x81 => Self::Cnp,
            0xa0 => Self::XrcSendFirst,
            0xa1 => Self::XrcSendMiddle,
            0xa2 => Self::XrcSendLast,
            0xa3 => Self::XrcSendLastImm,
            0xa4 => Self::XrcSendOnly,
            0xa5 => Self::XrcSendOnlyImm,
            0xa6 => Self::XrcWriteFirst,
            0xa7 => Self::XrcWriteMiddle,
            0xa8 => Self::XrcWriteLast,
            0xa9 => Self::XrcWriteLastImm,
            0xaa => Self::XrcWriteOnly,
            0xab => Self::XrcWriteOnlyImm,
            0xac => Self::XrcReadRequest,
            0xad => Self::XrcReadResponseFirst,
            0xae => Self::XrcReadResponseMiddle,
            0xaf => Self::XrcReadResponseLast,
            0xb0 => Self::XrcReadResponseOnly,
            0xb1 => Self::XrcAcknowledge,
            0xb2 => Self::XrcAtomicAcknowledge,
            0xb3 => Self::XrcCompareSwap,
            0xb4 => Self::XrcFetchAdd,
            0xb6 => Self::XrcSendLastInv,
            0xb7 => Self::XrcSendOnlyInv,
            0xbc => Self::XrcFlush,
            0xbd => Self::XrcAtomicWrite,
            _ => return None,
        })
    }

    /// The value on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// The transport service.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self.to_u8() >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            5 => Transport::Xrc,
            _ => Transport::Cnp,
        }
    }

    /// The same packet of an RC connection over another transport service; itself if that service
    /// has none such.
    #[inline]
    pub const fn over(self, transport: Transport) -> Self {
        let base = match transport {
            Transport::Rc => return self,
            Transport::Uc => 0x20,
            Transport::Ud => 0x60,
            Transport::Xrc => 0xa0,
            Transport::Cnp => 0x80,
        };
        match Self::from_u8(base | (self.to_u8() & 0x1f)) {
            Some(opcode) => opcode,
            None => self,
        }
    }

    /// What the packet does.
    #[inline]
    pub const fn operation(self) -> Operation {
        match self {
            Self::RcSendFirst
            | Self::RcSendMiddle
            | Self::RcSendLast
            | Self::RcSendLastImm
            | Self::RcSendOnly
            | Self::RcSendOnlyImm
            | Self::RcSendLastInv
            | Self::RcSendOnlyInv
            | Self::UcSendFirst
            | Self::UcSendMiddle
            | Self::UcSendLast
            | Self::UcSendLastImm
            | Self::UcSendOnly
            | Self::UcSendOnlyImm
            | Self::UdSendOnly
            | Self::UdSendOnlyImm
            | Self::XrcSendFirst
            | Self::XrcSendMiddle
            | Self::XrcSendLast
            | Self::XrcSendLastImm
            | Self::XrcSendOnly
            | Self::XrcSendOnlyImm
            | Self::XrcSendLastInv
            | Self::XrcSendOnlyInv => Operation::Send,
            Self::RcWriteFirst
            | Self::RcWriteMiddle
            | Self::RcWriteLast
            | Self::RcWriteLastImm
            | Self::RcWriteOnly
            | Self::RcWriteOnlyImm
            | Self::UcWriteFirst
            | Self::UcWriteMiddle
            | Self::UcWriteLast
            | Self::UcWriteLastImm
            | Self::UcWriteOnly
            | Self::UcWriteOnlyImm
            | Self::XrcWriteFirst
            | Self::XrcWriteMiddle
            | Self::XrcWriteLast
            | Self::XrcWriteLastImm
            | Self::XrcWriteOnly
            | Self::XrcWriteOnlyImm => Operation::Write,
            Self::RcReadRequest | Self::XrcReadRequest => Operation::ReadRequest,
            Self::RcReadResponseFirst
            | Self::RcReadResponseMiddle
            | Self::RcReadResponseLast
            | Self::RcReadResponseOnly
            | Self::XrcReadResponseFirst
            | Self::XrcReadResponseMiddle
            | Self::XrcReadResponseLast
            | Self::XrcReadResponseOnly => Operation::ReadResponse,
            Self::RcAcknowledge | Self::XrcAcknowledge => Operation::Acknowledge,
            Self::RcAtomicAcknowledge | Self::XrcAtomicAcknowledge => Operation::AtomicAcknowledge,
            Self::RcCompareSwap | Self::XrcCompareSwap => Operation::CompareSwap,
            Self::RcFetchAdd | Self::XrcFetchAdd => Operation::FetchAdd,
            Self::RcFlush | Self::XrcFlush => Operation::Flush,
            Self::RcAtomicWrite | Self::XrcAtomicWrite => Operation::AtomicWrite,
            Self::Cnp => Operation::Cnp,
        }
    }

    /// Whether this is a request: for the responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::Cnp)
    }

    /// Whether this is a response: for the completer.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.has(RESPONSE)
    }

    /// Whether it is a packet in the middle of a message: it has no header but the BTH, and as much
    /// payload as fits.
    #[inline]
    pub const fn is_middle(self) -> bool {
        let has_places = matches!(
            self.operation(),
            Operation::Send | Operation::Write | Operation::ReadResponse
        );
        has_places && !self.starts_message() && !self.ends_message() && !self.has_xrceth()
    }

    /// Whether this is the first or the only packet of its message.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.has(START)
    }

    /// Whether this is the last or the only packet of its message.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.has(END)
    }

    /// Whether payload may follow the headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.has(PAYLOAD)
    }

    /// Whether there is a Datagram Extended Transport Header.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Whether there is an XRC Extended Transport Header.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Whether there is an RDMA Extended Transport Header.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Whether there is an Atomic Extended Transport Header.
    #[inline]
    pub const fn has_atomic(self) -> bool {
        self.has(ATOMIC)
    }

    /// Whether there is an ACK Extended Transport Header.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Whether there is an Atomic ACK Extended Transport Header.
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.has(ATOMIC_ACK)
    }

    /// Whether there is immediate data.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.has(IMM)
    }

    /// Whether there is an Invalidate Extended Transport Header.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.has(IETH)
    }

    /// Whether there is a FLUSH Extended Transport Header.
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.has(FETH)
    }

    /// Length of the BTH and the extension headers, in bytes.
    #[inline]
    pub const fn header_len(self) -> usize {
        ((self.traits() >> HEADER_WORDS_SHIFT) as usize).wrapping_mul(4)
    }

    #[inline]
    const fn has(self, flags: u32) -> bool {
        self.traits() & flags != 0
    }

    /// The flags above, and the header length in words from bit [`HEADER_WORDS_SHIFT`] on.
    #[inline]
    const fn traits(self) -> u32 {
        match TRAITS.split_at_checked(self as usize) {
            Some((_, &[traits, ..])) => traits,
            // The table has an entry for each byte.
            Some((_, &[])) | None => 0,
        }
    }

    //= IBA 9.2.1
    /// The place in the message and the extension headers: the source of [`TRAITS`].
    const fn shape(self) -> u32 {
        match self {
            Self::RcSendFirst | Self::UcSendFirst => START | PAYLOAD,
            Self::RcSendMiddle | Self::UcSendMiddle => PAYLOAD,
            Self::RcSendLast | Self::UcSendLast => END | PAYLOAD,
            Self::RcSendLastImm | Self::UcSendLastImm => END | PAYLOAD | IMM,
            Self::RcSendOnly | Self::UcSendOnly => ONLY | PAYLOAD,
            Self::RcSendOnlyImm | Self::UcSendOnlyImm => ONLY | PAYLOAD | IMM,
            Self::RcSendLastInv => END | PAYLOAD | IETH,
            Self::RcSendOnlyInv => ONLY | PAYLOAD | IETH,
            Self::RcWriteFirst | Self::UcWriteFirst => START | PAYLOAD | RETH,
            Self::RcWriteMiddle | Self::UcWriteMiddle => PAYLOAD,
            Self::RcWriteLast | Self::UcWriteLast => END | PAYLOAD,
            Self::RcWriteLastImm | Self::UcWriteLastImm => END | PAYLOAD | IMM,
            Self::RcWriteOnly | Self::UcWriteOnly => ONLY | PAYLOAD | RETH,
            Self::RcWriteOnlyImm | Self::UcWriteOnlyImm => ONLY | PAYLOAD | RETH | IMM,
            Self::RcReadRequest => ONLY | RETH,
            Self::RcReadResponseFirst => START | PAYLOAD | RESPONSE | AETH,
            Self::RcReadResponseMiddle => PAYLOAD | RESPONSE,
            Self::RcReadResponseLast => END | PAYLOAD | RESPONSE | AETH,
            Self::RcReadResponseOnly => ONLY | PAYLOAD | RESPONSE | AETH,
            Self::RcAcknowledge => ONLY | RESPONSE | AETH,
            Self::RcAtomicAcknowledge => ONLY | RESPONSE | AETH | ATOMIC_ACK,
            Self::RcCompareSwap | Self::RcFetchAdd => ONLY | ATOMIC,
            Self::RcFlush => ONLY | FETH | RETH,
            Self::RcAtomicWrite => ONLY | PAYLOAD | RETH,
            Self::UdSendOnly => ONLY | PAYLOAD | DETH,
            Self::UdSendOnlyImm => ONLY | PAYLOAD | DETH | IMM,
            // Sixteen reserved bytes follow the BTH.
            Self::Cnp => ONLY | PAYLOAD,
            Self::XrcSendFirst
            | Self::XrcSendMiddle
            | Self::XrcSendLast
            | Self::XrcSendLastImm
            | Self::XrcSendOnly
            | Self::XrcSendOnlyImm
            | Self::XrcWriteFirst
            | Self::XrcWriteMiddle
            | Self::XrcWriteLast
            | Self::XrcWriteLastImm
            | Self::XrcWriteOnly
            | Self::XrcWriteOnlyImm
            | Self::XrcReadRequest
            | Self::XrcReadResponseFirst
            | Self::XrcReadResponseMiddle
            | Self::XrcReadResponseLast
            | Self::XrcReadResponseOnly
            | Self::XrcAcknowledge
            | Self::XrcAtomicAcknowledge
            | Self::XrcCompareSwap
            | Self::XrcFetchAdd
            | Self::XrcSendLastInv
            | Self::XrcSendOnlyInv
            | Self::XrcFlush
            | Self::XrcAtomicWrite => self.xrc_shape(),
        }
    }

    //= IBA A14.3
    /// The shape of an XRC packet: that of RC, with an XRCETH in each request.
    const fn xrc_shape(self) -> u32 {
        match Self::from_u8(self.to_u8() & 0x1f) {
            Some(rc) if rc.shape() & RESPONSE != 0 => rc.shape(),
            Some(rc) => rc.shape() | XRCETH,
            None => 0,
        }
    }
}

/// [`Opcode::traits`] by opcode: one load for all that is asked of a packet.
const TRAITS: [u32; 256] = traits();

const fn traits() -> [u32; 256] {
    let mut table = [0; 256];
    let mut rest: &mut [u32] = &mut table;
    let mut value = 0u8;
    while let Some((entry, after)) = rest.split_first_mut() {
        if let Some(opcode) = Opcode::from_u8(value) {
            let shape = opcode.shape();
            let words = 3u32
                .wrapping_add(words_if(shape & DETH, 2))
                .wrapping_add(words_if(shape & RETH, 4))
                .wrapping_add(words_if(shape & ATOMIC, 7))
                .wrapping_add(words_if(shape & AETH, 1))
                .wrapping_add(words_if(shape & ATOMIC_ACK, 2))
                .wrapping_add(words_if(shape & IMM, 1))
                .wrapping_add(words_if(shape & IETH, 1))
                .wrapping_add(words_if(shape & FETH, 1))
                .wrapping_add(words_if(shape & XRCETH, 1));
            *entry = shape | (words << HEADER_WORDS_SHIFT);
        }
        value = value.wrapping_add(1);
        rest = after;
    }
    table
}

/// `words` if any of `flags` is set, else 0.
const fn words_if(flags: u32, words: u32) -> u32 {
    if flags != 0 {
        words
    } else {
        0
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.transport() {
            Transport::Rc => "RC ",
            Transport::Uc => "UC ",
            Transport::Ud => "UD ",
            Transport::Xrc => "XRC ",
            Transport::Cnp => return f.write_str("CNP"),
        })?;
        let (name, place) = match self.operation() {
            Operation::Send => ("SEND", true),
            Operation::Write => ("WRITE", true),
            Operation::ReadRequest => ("READ request", false),
            Operation::ReadResponse => ("READ response", true),
            Operation::Acknowledge => ("ACK", false),
            Operation::AtomicAcknowledge => ("ATOMIC ACK", false),
            Operation::CompareSwap => ("CMP_SWAP", false),
            Operation::FetchAdd => ("FETCH_ADD", false),
            Operation::Flush => ("FLUSH", false),
            Operation::AtomicWrite => ("ATOMIC WRITE", false),
            Operation::Cnp => ("CNP", false),
        };
        f.write_str(name)?;
        if place {
            f.write_str(match (self.starts_message(), self.ends_message()) {
                (true, true) => " only",
                (true, false) => " first",
                (false, true) => " last",
                (false, false) => " middle",
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_an_opcode_or_is_not() {
        let known = (0..=255u8).filter(|&v| match Opcode::from_u8(v) {
            Some(opcode) => {
                assert_eq!(opcode.to_u8(), v);
                true
            }
            None => false,
        });
        assert_eq!(known.count(), 25 + 12 + 2 + 1 + 25);
    }

    #[test]
    fn other_transports() {
        for opcode in (0..=255).filter_map(Opcode::from_u8) {
            assert_eq!(opcode.over(Transport::Rc), opcode);
        }
        for value in 0..0x0c {
            let rc = Opcode::from_u8(value).unwrap();
            let uc = rc.over(Transport::Uc);
            assert_eq!(uc.to_u8(), value | 0x20);
            assert_eq!(uc.transport(), Transport::Uc);
            assert_eq!(uc.header_len(), rc.header_len());
        }
        let read = Opcode::RcReadRequest;
        assert_eq!(read.over(Transport::Uc), read);
    }

    #[test]
    fn a_packet_is_a_request_or_a_response_or_a_notification() {
        for opcode in (0..=255).filter_map(Opcode::from_u8) {
            let kinds = [
                opcode.is_request(),
                opcode.is_response(),
                opcode == Opcode::Cnp,
            ];
            assert_eq!(kinds.iter().filter(|k| **k).count(), 1, "{opcode}");
            assert_eq!(opcode.header_len() % 4, 0);
            assert!(opcode.header_len() <= crate::wire::MAX_HEADER_LEN);
        }
        let with_payload = (0..=255)
            .filter_map(Opcode::from_u8)
            .filter(|opcode| opcode.has_payload());
        let longest = with_payload.map(Opcode::header_len).max();
        assert_eq!(longest, Some(crate::wire::MAX_PAYLOAD_HEADER_LEN));
    }
}
