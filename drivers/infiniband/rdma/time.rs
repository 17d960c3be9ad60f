// SPDX-License-Identifier: GPL-2.0

//! Time and random numbers.
