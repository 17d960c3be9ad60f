// SPDX-License-Identifier: GPL-2.0

//! The Ethernet CRC-32.
