// SPDX-License-Identifier: GPL-2.0
/* Inline functions and macros of the kernel's headers, for Rust. One line each; no logic. */
#include "helpers/net.c"
#include "helpers/sync.c"
#include "helpers/verbs.c"
