# shellcheck shell=bash disable=SC2154 # variables of the scripts that source this
# SPDX-License-Identifier: GPL-2.0
# Two virtio-net interfaces that are joined, for one guest or for two. Needs root.sh, and a network namespace of the
# caller's own (unshare --net): nothing here touches the machine's interfaces.
#
#   offloads   tap devices on a bridge: checksums and segments, those of UDP too, are left to the other side
#   plain      a connection between the two QEMUs, which knows of no offloads

# join_nics: makes what the interfaces are joined by. Fails where the machine's kernel has no tap devices or no bridges:
# then there is `plain` alone.
join_nics() {
	in_root "$root" ip link set lo up
	in_root "$root" bash -ec '
		ip link add nics mtu 4200 type bridge mcast_snooping 0
		for i in 1 2; do
			ip tuntap add nic$i mode tap vnet_hdr
			ip link set nic$i mtu 4200 master nics up
		done
		ip link set nics up'
}

# nic LINK N: QEMU's arguments for the first or second interface of a link. Its address ends with 01:0N or 02:0N.
nic() {
	local backend mac=01
	case $1-$2 in
	offloads-*) backend=tap,ifname=nic$2,script=no,downscript=no,vnet_hdr=on mac=02 ;;
	plain-1) backend=stream,server=on ;;
	plain-2) backend=stream,server=off,reconnect-ms=100 ;;
	esac
	[ "$1" != plain ] || backend+=,addr.type=inet,addr.host=127.0.0.1,addr.port=4791
	echo "-netdev $backend,id=$1$2 -device virtio-net-pci,netdev=$1$2,mac=52:54:00:00:$mac:0$2,romfile="
}
