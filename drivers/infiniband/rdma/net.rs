// SPDX-License-Identifier: GPL-2.0

//! Network devices and datagrams.
