// SPDX-License-Identifier: GPL-2.0

//! Locks, tables, timers and work.
