// SPDX-License-Identifier: GPL-2.0

//! Memory that user space may map.
