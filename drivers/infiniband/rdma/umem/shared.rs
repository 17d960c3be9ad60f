// SPDX-License-Identifier: GPL-2.0

//! Bytes that somebody else may change while they are copied.
//!
//! In the tree this file would be `rust/kernel/rdma/umem/shared.rs`.

use crate::bindings;
use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::prelude::*;

/// A piece of memory of a program or another device, or plain bytes: nothing can be done with it but
/// copying it. Each byte is read once.
///
/// # Invariants
///
/// `len` bytes at `start` are mapped for `'a`.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl SharedBytes<'_> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// They must be mapped for as long as the result is used.
    #[inline]
    pub(super) unsafe fn new(start: *const u8, len: usize) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            start,
            len,
            life: PhantomData,
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those in `range`, if it is inside.
    #[inline]
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        // INVARIANT: A part of what is mapped.
        Some(Self {
            start: self.start.wrapping_add(range.start),
            len,
            life: PhantomData,
        })
    }

    /// Where they are, for `bindings::copy_opaque` alone.
    #[inline]
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Copies them out.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `out` has another length.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result {
        if out.len() != self.len {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant so many bytes are mapped; `out` is a Rust buffer of this size.
        unsafe { bindings::copy_opaque(out.as_mut_ptr().cast(), self.start.cast(), self.len) };
        Ok(())
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        // INVARIANT: A slice is mapped.
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
            life: PhantomData,
        }
    }
}
