// SPDX-License-Identifier: GPL-2.0
//! How much the requester has in flight, and in which pieces it asks for READs.
//!
//! What follows a lost packet is sent for nothing, so the more packets get lost or reordered, the
//! less should be in flight:
//!
//! ```text
//!   256 |\                 _/|            growth: 8 PSNs for each window that is acknowledged
//!       | \             _/   |  _/        sequence error: half, at least 8
//!       |  \    _/|  _/      |_/          timeout: 8
//!     8 |   \_/   |_/
//!       +-------------------------------
//! ```
//!
//! A READ is cut into pieces of a power of two of packets, counted from its start, so that the
//! streams of responses stay short and an answer to one can be repeated in part. The size of the
//! pieces follows the window, but changes only for what was never asked for, while no READ request is
//! in flight. A repetition asks for the rest of a piece at once:
//!
//! ```text
//!   | piece 0 | piece 1 | piece 2 |    the second READ request asks again for what is missing
//!                  ^____^______        of piece 1 only; the third asks for piece 2
//! ```

/// The most PSNs in flight.
pub const WINDOW: u32 = 256;

/// The window is never smaller than this: the most harm that a repetition can do.
const MIN_WINDOW: u32 = 8;

/// Growth for each window that is acknowledged, in PSNs.
const GROWTH: u32 = 8;

/// The most packets of a message without one that asks for an ACK, a power of two.
const ACK_INTERVAL: u32 = 32;

/// The most packets of READ response that one READ request asks for; a power of two.
pub const READ_PIECE: u32 = 64;

/// The fewest, but at the end of a piece and of the READ; a power of two.
const MIN_READ_PIECE: u32 = 2;

const _: () = assert!(READ_PIECE.is_power_of_two() && MIN_READ_PIECE.is_power_of_two());
const _: () = assert!(MIN_READ_PIECE <= MIN_WINDOW && READ_PIECE <= WINDOW);

/// The window and the size of READ pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// PSNs that may be in flight.
    size: u32,
    /// PSNs acknowledged that have not yet made the window grow, times [`GROWTH`].
    credit: u32,
    /// Packets of a READ piece, a power of two.
    piece: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            size: WINDOW,
            credit: 0,
            piece: READ_PIECE,
        }
    }
}

impl Window {
    /// PSNs that may still be sent when so many are in flight.
    #[inline]
    pub(crate) fn room(&self, in_flight: u32) -> u32 {
        self.size.saturating_sub(in_flight)
    }

    /// So many PSNs have been acknowledged.
    #[inline]
    pub(crate) fn grow(&mut self, psns: u32) {
        if self.size >= WINDOW {
            return;
        }
        self.credit = self.credit.saturating_add(psns.saturating_mul(GROWTH));
        if let Some(left) = self.credit.checked_sub(self.size) {
            self.credit = left.min(self.size);
            self.size = self.size.saturating_add(1).min(WINDOW);
        }
    }

    /// A packet was lost, or seemed to be.
    pub(crate) fn shrink(&mut self) {
        self.size = (self.size / 2).max(MIN_WINDOW);
        self.credit = 0;
    }

    /// Nothing came back for long.
    pub(crate) fn collapse(&mut self) {
        self.size = MIN_WINDOW;
        self.credit = 0;
    }

    /// The low bits of a PSN that are all ones where a packet in the middle of a message asks for an
    /// ACK: at least four times a window, and each 32 packets.
    #[inline]
    pub(crate) fn ack_mask(&self) -> u32 {
        let log = self.size.checked_ilog2().unwrap_or(0).saturating_sub(2);
        ACK_INTERVAL.min(1u32.wrapping_shl(log)).wrapping_sub(1)
    }

    /// Fits the size of READ pieces to the window, of which up to `requests` may be in flight: with
    /// several of them, the response to one shows that the end of another was lost. No READ
    /// request may be in flight, or lost.
    ///
    /// What is asked for again is asked for in the same pieces, or the rest of one: the peer remembers
    /// only as many requests as may be in flight, and rxe answers no repetition that begins before
    /// another one of the same request did.
    #[inline]
    pub(crate) fn set_piece(&mut self, requests: u8) {
        let parts = match requests {
            0 | 1 => 0,
            2 | 3 => 1,
            _ => 2,
        };
        let log = self.size.checked_ilog2().unwrap_or(0).saturating_sub(parts);
        self.piece = 1u32.wrapping_shl(log).clamp(MIN_READ_PIECE, READ_PIECE);
    }

    /// Packets from `position` in a READ to the end of its piece.
    #[inline]
    pub(crate) fn piece_after(&self, position: u32) -> u32 {
        self.piece
            .wrapping_sub(position & self.piece.wrapping_sub(1))
    }

    /// Whether a piece ends before `position` in a READ.
    #[inline]
    pub(crate) fn is_piece_end(&self, position: u32) -> bool {
        position & self.piece.wrapping_sub(1) == 0
    }

    /// The pieces that have a part between two positions, of which the first is the smaller.
    pub(crate) fn pieces(&self, from: u32, to: u32) -> u32 {
        let log = self.piece.checked_ilog2().unwrap_or(0);
        let before = from.wrapping_shr(log);
        let last = to.wrapping_sub(1).wrapping_shr(log);
        last.wrapping_sub(before).wrapping_add(1)
    }
}

/// Whether pieces of any size may meet at `position` in a READ.
#[inline]
pub(crate) fn may_meet(position: u32) -> bool {
    position & MIN_READ_PIECE.wrapping_sub(1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinks_fast_and_grows_slowly() {
        let mut window = Window::default();
        let mut sizes = std::vec::Vec::new();
        for _ in 0..7 {
            sizes.push(window.room(0));
            window.shrink();
        }
        assert_eq!(sizes, [256, 128, 64, 32, 16, 8, 8]);
        for _ in 0..8 {
            window.grow(1);
        }
        assert_eq!(window.room(0), 14);
        for _ in 0..100_000 {
            window.grow(1);
        }
        assert_eq!(window.room(0), WINDOW);
        assert_eq!(window.ack_mask(), 31);
        window.collapse();
        assert_eq!((window.room(0), window.room(9)), (8, 0));
        assert_eq!(window.ack_mask(), 1);
    }

    #[test]
    fn pieces_of_a_read() {
        let mut window = Window::default();
        assert_eq!(window.piece_after(0), 64);
        assert_eq!(window.piece_after(63), 1);
        assert!(window.is_piece_end(128) && !window.is_piece_end(8));
        assert_eq!(window.pieces(0, 64), 1);
        assert_eq!(window.pieces(63, 65), 2);
        window.shrink();
        window.shrink();
        window.shrink();
        assert_eq!(window.piece_after(0), 64);
        window.set_piece(1);
        assert_eq!(window.piece_after(0), 32);
        window.set_piece(4);
        assert_eq!(window.piece_after(0), 8);
        window.collapse();
        window.set_piece(255);
        assert_eq!(window.piece_after(0), 2);
        window.set_piece(1);
        assert_eq!(window.piece_after(0), 8);
    }
}
