// SPDX-License-Identifier: GPL-2.0
/* ferroce_kunit.ko: the abstractions with their tests, which KUnit runs when it is loaded. See Kbuild. */
#include "helpers.c"

#include <linux/module.h>

MODULE_DESCRIPTION("Tests of the abstractions over the kernel's RDMA and network stacks");
MODULE_LICENSE("GPL");
