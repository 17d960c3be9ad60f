// SPDX-License-Identifier: GPL-2.0
#include <linux/etherdevice.h>
#include <linux/hash.h>
#include <linux/if_vlan.h>
#include <linux/igmp.h>
#include <linux/inetdevice.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/l3mdev.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/xfrm.h>

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

/* The address is in network byte order, the RTNL is held. */
int rust_helper_netdev_join_ipv4(struct net_device *dev, u32 group)
{
	struct in_device *in_dev = __in_dev_get_rtnl(dev);
	const struct ip_mc_list *im;

	if (!in_dev)
		return -ENODEV;
	ip_mc_inc_group(in_dev, (__force __be32)group);
	/* It does not tell whether there was memory. */
	for (im = rtnl_dereference(in_dev->mc_list); im; im = rtnl_dereference(im->next_rcu))
		if (im->multiaddr == (__force __be32)group)
			return 0;
	return -ENOMEM;
}

void rust_helper_netdev_leave_ipv4(struct net_device *dev, u32 group)
{
	struct in_device *in_dev = __in_dev_get_rtnl(dev);

	if (in_dev)
		ip_mc_dec_group(in_dev, (__force __be32)group);
}

/* struct sk_buff */

void rust_helper_kfree_skb(struct sk_buff *skb)
{
	kfree_skb(skb);
}

/*
 * An empty packet with room for that many bytes. Short ones come out of this CPU's blocks and reuse what was freed where
 * softirqs cannot interfere: no allocator is asked, nor clears what will be written anyway.
 */
struct sk_buff *rust_helper_alloc_tx_skb(unsigned int size)
{
	unsigned int len = SKB_HEAD_ALIGN(size);

	if (len <= SZ_1K && in_softirq()) {
		void *data = napi_alloc_frag(len);
		struct sk_buff *skb = data ? napi_build_skb(data, len) : NULL;

		if (skb)
			return skb;
		if (data)
			skb_free_frag(data);
	}
	return __alloc_skb(size, GFP_ATOMIC | __GFP_NOWARN, 0, NUMA_NO_NODE);
}

/* Frees a packet that was received, for the next one to reuse it where softirqs cannot interfere. */
void rust_helper_recycle_skb(struct sk_buff *skb)
{
	napi_consume_skb(skb, in_softirq());
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

/* The datagrams of a packet that is to be sent. */
unsigned int rust_helper_skb_datagrams(const struct sk_buff *skb)
{
	return max_t(unsigned int, skb_shinfo(skb)->gso_segs, 1);
}

unsigned int rust_helper_skb_transport_len(const struct sk_buff *skb)
{
	return skb->len - skb_transport_offset(skb);
}

struct skb_shared_info *rust_helper_skb_shinfo(const struct sk_buff *skb)
{
	return skb_shinfo(skb);
}

/* Takes over the caller's reference on the page. */
void rust_helper_skb_append_page(struct sk_buff *skb, struct page *page, unsigned int off, unsigned int len)
{
	int n = skb_shinfo(skb)->nr_frags;

	if (skb_can_coalesce(skb, n, page, off)) {
		skb_frag_size_add(&skb_shinfo(skb)->frags[n - 1], len);
		put_page(page);
	} else {
		skb_fill_page_desc(skb, n, page, off, len);
	}
	skb_len_add(skb, len);
}

/*
 * Whether a packet to this host, with its data at the IP header, is UDP to that port, without options, extension headers
 * or IPsec policies. If so its data is at the UDP header afterwards, and cut to its length.
 */
bool rust_helper_skb_pull_plain_udp(struct sk_buff *skb, const struct nf_hook_state *state, u16 port, bool v4)
{
	unsigned int ip = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	const struct udphdr *udp;

	if (v4 ? ip_hdr(skb)->protocol != IPPROTO_UDP || ip_hdr(skb)->ihl != 5 || ip_is_fragment(ip_hdr(skb)) :
		 ipv6_hdr(skb)->nexthdr != IPPROTO_UDP)
		return false;
	if (!pskb_may_pull(skb, ip + sizeof(*udp)))
		return false;
	udp = (const struct udphdr *)(skb->data + ip);
	if (udp->dest != htons(port) || ntohs(udp->len) < sizeof(*udp) || ntohs(udp->len) > skb->len - ip)
		return false;
#ifdef CONFIG_XFRM
	if (!__xfrm_check_nopolicy(state->net, skb, XFRM_POLICY_IN))
		return false;
#endif
	if (pskb_trim_rcsum(skb, ip + ntohs(udp->len)))
		return false;
	skb_pull(skb, ip);
	skb_reset_transport_header(skb);
	return true;
}

/*
 * Routes of IPv4 packets that came in for this host, for each CPU: that of the next one like it is not looked up, as it is
 * not for those of a TCP connection (tcp_v4_early_demux()). They are used until the routing table changes. Not where more
 * than addresses, TOS, mark and interface may matter: with rules beyond the usual ones (VRFs have some).
 */
struct input_route {
	struct dst_entry *dst;
	__be32 saddr;
	__be32 daddr;
	u32 mark;
	int iif;
	u8 tos;
};

#define INPUT_ROUTES_SHIFT 4

static struct input_route *input_route(void __percpu *routes, const struct iphdr *ip)
{
	struct input_route *of_cpu = this_cpu_ptr((struct input_route __percpu *)routes);

	return of_cpu + hash_32((__force u32)(ip->saddr ^ ip->daddr), INPUT_ROUTES_SHIFT);
}

static bool input_route_is_of(const struct input_route *route, const struct sk_buff *skb, const struct iphdr *ip)
{
	return route->dst && route->saddr == ip->saddr && route->daddr == ip->daddr && route->tos == ip->tos &&
	       route->iif == skb->dev->ifindex && route->mark == skb->mark;
}

void __percpu *rust_helper_alloc_input_routes(void)
{
	return __alloc_percpu(sizeof(struct input_route) << INPUT_ROUTES_SHIFT, __alignof__(struct input_route));
}

/* Nobody uses them any more. */
void rust_helper_free_input_routes(void __percpu *routes)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct input_route *of_cpu = per_cpu_ptr((struct input_route __percpu *)routes, cpu);

		for (int i = 0; i < 1 << INPUT_ROUTES_SHIFT; i++)
			dst_release(of_cpu[i].dst);
	}
	free_percpu(routes);
}

/* Gives a plain UDP packet to that port, with its data at the IP header, the route of those before it if that is known. */
void rust_helper_skb_set_input_route(struct sk_buff *skb, void __percpu *routes, u16 port)
{
	const struct iphdr *ip = ip_hdr(skb);
	struct input_route *route;

	if (skb_dst(skb) || ip->protocol != IPPROTO_UDP || ip->ihl != 5 || ip_is_fragment(ip) ||
	    skb_headlen(skb) < sizeof(*ip) + sizeof(struct udphdr) || udp_hdr(skb)->dest != htons(port))
		return;
	route = input_route(routes, ip);
	if (input_route_is_of(route, skb, ip) && dst_check(route->dst, 0))
		skb_dst_set_noref(skb, route->dst);
}

/* The packet is at the end of its way: what route was it that brought it here? Its data is at the UDP header. */
void rust_helper_skb_keep_input_route(const struct sk_buff *skb, void __percpu *routes)
{
	const struct rtable *rt = skb_rtable(skb);
	const struct iphdr *ip = ip_hdr(skb);
	struct input_route *route = input_route(routes, ip);
	struct dst_entry *old = route->dst;

	if (!rt || (old == skb_dst(skb) && input_route_is_of(route, skb, ip)))
		return;
	if (!rt_is_input_route(rt) || rt->rt_type != RTN_LOCAL || skb_dst(skb)->error || netif_is_l3_slave(skb->dev) ||
	    netif_is_l3_master(skb->dev))
		return;
#ifdef CONFIG_IP_MULTIPLE_TABLES
	if (dev_net_rcu(skb->dev)->ipv4.fib_has_custom_rules)
		return;
#endif
	if (!dst_hold_safe(skb_dst(skb)))
		return;
	*route = (struct input_route) {
		.dst = skb_dst(skb), .saddr = ip->saddr, .daddr = ip->daddr, .mark = skb->mark,
		.iif = skb->dev->ifindex, .tos = ip->tos,
	};
	dst_release(old);
}

/* The payload of each datagram of a packet that came in, 0 if it is a single one. */
unsigned int rust_helper_skb_udp_segment_size(const struct sk_buff *skb)
{
	return skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4 ? skb_shinfo(skb)->gso_size : 0;
}

/*
 * Whether no datagram lies across two pieces of the memory behind the UDP header, and all of it is the kernel's own:
 * pages that user space has shared may change while they are looked at.
 */
bool rust_helper_skb_udp_is_cut(struct sk_buff *skb, unsigned int segment)
{
	const struct skb_shared_info *info = skb_shinfo(skb);

	if (!skb_is_nonlinear(skb))
		return true;
	if (skb_has_frag_list(skb) || skb_has_shared_frag(skb) || skb_zcopy(skb) || !skb_frags_readable(skb))
		return false;
	if (skb_headlen(skb) < sizeof(struct udphdr) || (skb_headlen(skb) - sizeof(struct udphdr)) % segment)
		return false;
	for (int i = 0; i + 1 < info->nr_frags; i++)
		if (skb_frag_size(&info->frags[i]) % segment)
			return false;
	return true;
}

unsigned int rust_helper_skb_fragment_size(const struct sk_buff *skb, unsigned int index)
{
	return skb_frag_size(&skb_shinfo(skb)->frags[index]);
}

void *rust_helper_skb_fragment_address(const struct sk_buff *skb, unsigned int index)
{
	return skb_frag_address(&skb_shinfo(skb)->frags[index]);
}

unsigned int rust_helper_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

/* Pages for them */

void __percpu *rust_helper_alloc_percpu(size_t size, size_t align)
{
	return __alloc_percpu(size, align);
}

void *rust_helper_this_cpu_ptr(void __percpu *ptr)
{
	return this_cpu_ptr(ptr);
}

void *rust_helper_per_cpu_ptr(void __percpu *ptr, u32 cpu)
{
	return per_cpu_ptr(ptr, cpu);
}

void *rust_helper_page_address(const struct page *page)
{
	return page_address(page);
}

void rust_helper_get_page(struct page *page)
{
	get_page(page);
}

void rust_helper_put_page(struct page *page)
{
	put_page(page);
}

/* The longest packet of UDP segmentation offload that a device without hardware takes, 0 if none. */
unsigned int rust_helper_virtual_dev_udp_gso(const struct net_device *dev)
{
	if (dev->dev.parent || !(dev->features & NETIF_F_GSO_UDP_L4) || !(dev->features & NETIF_F_SG))
		return 0;
	return min(READ_ONCE(dev->gso_max_size), READ_ONCE(dev->gso_ipv4_max_size));
}

unsigned int rust_helper_dev_gso_max_segs(const struct net_device *dev)
{
	return READ_ONCE(dev->gso_max_segs);
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

/* For a route to an address of this host: the device that has it. What inet_iif() and IP6CB()->iif say on reception. */
int rust_helper_dst_owner_ifindex(const struct dst_entry *dst, bool v4)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (!v4) {
		const struct inet6_dev *idev = dst_rt6_info(dst)->rt6i_idev;

		return idev ? idev->dev->ifindex : 0;
	}
#endif
	return v4 ? dst_rtable(dst)->rt_iif : 0;
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
