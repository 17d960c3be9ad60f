// SPDX-License-Identifier: GPL-2.0

//! Pinned user memory.
