/* SPDX-License-Identifier: GPL-2.0 */
/* What bindgen reads; sorted by half, see scripts/bindgen. */
#include <linux/hrtimer_types.h>

/* verbs */
#include <linux/dma-buf.h>
#include <linux/hmm.h>
#include <linux/mmu_notifier.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

/* net, sync */
#include <linux/crc32.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/skbuff.h>
#include <net/ip6_checksum.h>
#include <net/ip6_route.h>
#include <net/udp_tunnel.h>
