// SPDX-License-Identifier: GPL-2.0
//! FLUSH Extended Transport Header: 4 bytes, before the RETH of a FLUSH request.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------+---+-------+
//! |                      reserved                     |SEL|  PLT  |
//! +---------------------------------------------------+---+-------+
//! ```

use crate::wire::{
    put,
    take,
    Error, //
};
use zerocopy::network_endian::U32;

/// Placement type: global visibility.
const GLOBAL: u32 = 1 << 0;
/// Placement type: persistence.
const PERSISTENT: u32 = 1 << 1;
/// Placement types that mean nothing yet.
const RESERVED_TYPES: u32 = 3 << 2;
const SELECTIVITY_SHIFT: u32 = 4;

/// What a FLUSH is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Selectivity {
    /// The range that the RETH names.
    Range,
    /// All of the memory region.
    Region,
    /// A reserved value.
    Reserved,
}

//= IBA A19
/// FLUSH Extended Transport Header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Feth {
    /// What was written is to be visible to everybody.
    pub global: bool,
    /// What was written is to survive a loss of power.
    pub persistent: bool,
    /// A reserved placement type is asked for as well.
    pub reserved: bool,
    /// What it is about.
    pub selectivity: Selectivity,
}

impl Feth {
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (raw, rest) = take::<U32>(bytes)?;
        let raw = raw.get();
        let feth = Self {
            global: raw & GLOBAL != 0,
            persistent: raw & PERSISTENT != 0,
            reserved: raw & RESERVED_TYPES != 0,
            selectivity: match raw.wrapping_shr(SELECTIVITY_SHIFT) & 3 {
                0 => Selectivity::Range,
                1 => Selectivity::Region,
                _ => Selectivity::Reserved,
            },
        };
        Ok((feth, rest))
    }

    #[inline]
    pub(super) fn emit(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        let flag = |set, bits| if set { bits } else { 0 };
        let selectivity: u32 = match self.selectivity {
            Selectivity::Range => 0,
            Selectivity::Region => 1,
            Selectivity::Reserved => 3,
        };
        let raw = flag(self.global, GLOBAL)
            | flag(self.persistent, PERSISTENT)
            | flag(self.reserved, RESERVED_TYPES)
            | selectivity.wrapping_shl(SELECTIVITY_SHIFT);
        put(bytes, U32::new(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values() {
        for value in 0..64u8 {
            let bytes = [0xff, 0xff, 0xff, 0xc0 | value];
            let (feth, rest) = Feth::parse(&bytes).unwrap();
            assert!(rest.is_empty());
            assert_eq!(feth.global, value & 1 != 0);
            assert_eq!(feth.persistent, value & 2 != 0);
            assert_eq!(feth.reserved, value & 12 != 0);
            let mut bytes = [0; 4];
            assert!(feth.emit(&mut bytes).is_some());
            assert_eq!(Feth::parse(&bytes).unwrap().0, feth);
            if !feth.reserved && feth.selectivity != Selectivity::Reserved {
                assert_eq!(bytes, [0, 0, 0, value]);
            }
        }
        assert!(Feth::parse(&[0; 3]).is_err());
    }
}
