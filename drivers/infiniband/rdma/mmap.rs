// SPDX-License-Identifier: GPL-2.0

//! Memory mapped by user contexts.
