# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# What the build root is made from. The cache key is the hash of this file less its comments, so a change here makes a new root.

suite=trixie
# The kernel: the newest of this series in backports, whatever its patch release; else the newest there is.
series=7.3

# From backports, first of all: they pull newer versions of a few libraries that the rest must agree with.
# $1 = kernel version, e.g. 7.3.4+deb13-amd64.
kernel_packages() {
	local v=$1 s
	s=$(cut -d. -f1,2 <<<"$v")
	echo linux-base libelf-dev "linux-headers-$v" "linux-source-$s" "linux-config-$s" "linux-binary-$v" "linux-modules-$v"
}

# From the suite itself. rustc must be the one that the kernel was built with, so not the backport.
packages=(
	# the kernel tree and the module
	gcc-14 gcc make bc flex bison libssl-dev rustc rust-src bindgen clang lld llvm pahole kmod xz-utils zstd cpio python3
	# formatting, lints, the host tests where the host has no cargo
	rustfmt rust-clippy cargo shellcheck
	# the guest
	qemu-system-x86 busybox-static iproute2 iputils-ping ethtool procps strace file
	# RDMA user space and the tests that use it
	rdma-core ibverbs-utils ibverbs-providers rdmacm-utils perftest qperf python3-pyverbs libibverbs-dev librdmacm-dev
	python3-pytest python3-scapy iperf3 tshark tcpdump bpftrace gnuplot-nox
	# what stands on RDMA: message layers, MPI, storage
	ucx-utils libfabric-bin openmpi-bin python3-mpi4py nvme-cli fio nfs-kernel-server nfs-common
)

# A change of a comment alone makes no new root.
recipe_key() { sed '/^[[:space:]]*#/d' "$top/scripts/lib/recipe.sh" | sha256sum | cut -c1-12; }

# Run inside the new root, with apt's lists up to date. Prints the kernel version to use.
newest_kernel() {
	local all
	all=$(apt-cache search --names-only '^linux-headers-[0-9.]+[+]deb[0-9]+-amd64$' |
		sed -n 's/^linux-headers-\([^ ]*\) .*/\1/p' | sort -V)
	{ grep "^${series//./\\.}\." <<<"$all" || cat <<<"$all"; } | tail -n 1
}

# Run inside the new root. $1 = kernel version.
install_packages() {
	local v=$1
	export DEBIAN_FRONTEND=noninteractive
	local get=(apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0)
	# shellcheck disable=SC2046 # words wanted
	"${get[@]}" -t "$suite-backports" $(kernel_packages "$v")
	grep -qx CONFIG_RUST=y "/usr/src/linux-headers-$v/.config" || {
		echo "kernel $v is built without Rust" >&2
		return 1
	}
	"${get[@]}" "${packages[@]}"
	apt-get clean
}

# Run inside the root, in an empty folder: unpacks and prepares the tree that modules for kernel $1 are built against.
# The headers package has no rust/ folder, the source package has; with the same configuration and compilers the
# exported symbols come out the same to the letter.
prepare_tree() {
	local v=$1 s
	s=$(cut -d. -f1,2 <<<"$v")
	tar xf "/usr/src/linux-source-$s.tar.xz" --strip-components=1
	cp "/usr/src/linux-headers-$v/.config" .config
	local args=(LOCALVERSION="+${v#*+}" CC=gcc-14)
	make "${args[@]}" olddefconfig
	make -j"$(nproc)" "${args[@]}" prepare modules_prepare
	cp "/usr/src/linux-headers-$v/Module.symvers" .
	test -s rust/libkernel.rmeta
	test "$(cat include/config/kernel.release)" = "$v"
}
