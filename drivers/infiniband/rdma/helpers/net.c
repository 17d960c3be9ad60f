// SPDX-License-Identifier: GPL-2.0
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/l3mdev.h>
#include <net/route.h>
#include <net/sock.h>

/* struct net_device */

void rust_helper_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

void rust_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

struct net *rust_helper_dev_net_rcu(const struct net_device *dev)
{
	return dev_net_rcu(dev);
}

bool rust_helper_is_vlan_dev(const struct net_device *dev)
{
	return is_vlan_dev(dev);
}

bool rust_helper_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

bool rust_helper_netif_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

/* struct sk_buff */

struct sk_buff *rust_helper_alloc_skb(unsigned int size)
{
	return alloc_skb(size, GFP_ATOMIC | __GFP_NOWARN);
}

void rust_helper_kfree_skb(struct sk_buff *skb)
{
	kfree_skb(skb);
}

void rust_helper_skb_reserve(struct sk_buff *skb, int len)
{
	skb_reserve(skb, len);
}

void rust_helper_skb_reset_network_header(struct sk_buff *skb)
{
	skb_reset_network_header(skb);
}

void rust_helper_skb_set_transport_header(struct sk_buff *skb, int offset)
{
	skb_set_transport_header(skb, offset);
}

void rust_helper_skb_set_protocol(struct sk_buff *skb, u16 protocol)
{
	skb->protocol = htons(protocol);
}

void rust_helper_skb_set_priority(struct sk_buff *skb, u32 priority)
{
	skb->priority = priority;
}

u32 rust_helper_skb_get_priority(const struct sk_buff *skb)
{
	return skb->priority;
}

void rust_helper_skb_set_sw_hash(struct sk_buff *skb, u32 hash)
{
	__skb_set_sw_hash(skb, hash, true);
}

void rust_helper_skb_set_next(struct sk_buff *skb, struct sk_buff *next)
{
	skb->next = next;
}

struct sk_buff *rust_helper_skb_get_next(const struct sk_buff *skb)
{
	return skb->next;
}

void rust_helper_skb_dst_set_noref(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set_noref(skb, dst);
}

int rust_helper_skb_linearize(struct sk_buff *skb)
{
	return skb_linearize(skb);
}

unsigned char *rust_helper_skb_network_header(const struct sk_buff *skb)
{
	return skb_network_header(skb);
}

unsigned char *rust_helper_skb_mac_header(const struct sk_buff *skb)
{
	return skb_mac_header(skb);
}

bool rust_helper_skb_mac_header_was_set(const struct sk_buff *skb)
{
	return skb_mac_header_was_set(skb);
}

struct net_device *rust_helper_skb_dev(const struct sk_buff *skb)
{
	return skb->dev;
}

void rust_helper_skb_clear_dev(struct sk_buff *skb)
{
	skb->dev = NULL;
}

void rust_helper_skb_orphan(struct sk_buff *skb)
{
	skb_orphan(skb);
}

void rust_helper_skb_dst_drop(struct sk_buff *skb)
{
	skb_dst_drop(skb);
}

void rust_helper_skb_ext_reset(struct sk_buff *skb)
{
	skb_ext_reset(skb);
}

int rust_helper_inet_iif(const struct sk_buff *skb)
{
	return inet_iif(skb);
}

int rust_helper_inet6_iif(const struct sk_buff *skb)
{
	return inet6_iif(skb);
}

/* struct sock */

void *rust_helper_rcu_dereference_sk_user_data(struct sock *sk)
{
	return rcu_dereference_sk_user_data(sk);
}

struct sock *rust_helper_socket_sk(const struct socket *sock)
{
	return sock->sk;
}

/* Routes */

struct dst_entry *rust_helper_rt_dst(struct rtable *rt)
{
	return &rt->dst;
}

struct dst_entry *rust_helper_dst_check(struct dst_entry *dst, u32 cookie)
{
	return dst_check(dst, cookie);
}

u32 rust_helper_dst_mtu(const struct dst_entry *dst)
{
	return dst_mtu(dst);
}

struct net_device *rust_helper_dst_dev_rcu(const struct dst_entry *dst)
{
	return dst_dev_rcu(dst);
}

unsigned int rust_helper_dst_header_len(const struct dst_entry *dst)
{
	return dst->header_len;
}

u32 rust_helper_rt6_get_cookie(const struct dst_entry *dst)
{
	return rt6_get_cookie(dst_rt6_info(dst));
}

unsigned int rust_helper_LL_RESERVED_SPACE(const struct net_device *dev)
{
	return LL_RESERVED_SPACE(dev);
}

u8 rust_helper_rt_tos2priority(u8 tos)
{
	return rt_tos2priority(tos);
}

int rust_helper_l3mdev_master_ifindex_rcu(const struct net_device *dev)
{
	return l3mdev_master_ifindex_rcu(dev);
}
