// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a verb's arguments.
