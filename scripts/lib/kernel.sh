# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# Which kernel the module is built for and the guests run: KERNEL=stock (Debian's, the default) or KERNEL=debug (one of
# the same sources with everything on that finds faults). Needs root.sh.

fragment=$top/scripts/config/debug.fragment

# use_kernel: sets, for the kernel that KERNEL names, `release`, `tree` (what the module is built against), `compiler`
# (arguments for make), `build` (where the module goes), `modules` (the kernel's own, as seen in the root) and `slow` (how
# much longer than on the stock kernel things take). Needs require_root; fails when there is no such kernel yet.
use_kernel() {
	build=$cache/build/$(checkout_key)-$kver
	compiler=(CC=gcc-14 FERROCE_KVERBS=1 FERROCE_BENCH=1)
	release=$kver
	modules=/usr/lib/modules/$release
	slow=1
	case ${KERNEL:-stock} in
	stock) ;;
	debug)
		locate_debug_kernel || return
		tree=$debug
		build+=-debug
		compiler=(LLVM=1 FERROCE_KVERBS=1 FERROCE_KUNIT=1)
		release=$(<"$tree/include/config/kernel.release")
		modules=/usr/src/linux/install/lib/modules/$release
		slow=4
		;;
	*) die "KERNEL=$KERNEL: there are 'stock' and 'debug'" ;;
	esac
}

# require_kernel: use_kernel, making the debug kernel when it is missing.
require_kernel() {
	use_kernel && return
	"$top/scripts/debug-kernel" || exit
	use_kernel || die "scripts/debug-kernel left no kernel in $cache"
}

# locate_debug_kernel: sets `debug` to its folder, whether it is there or not; fails when it is not.
locate_debug_kernel() {
	debug=$cache/debug-$(debug_key)-$kver
	# Touched, so that set-up can tell what nobody uses any more.
	[ -d "$debug" ] && touch -c "$debug"
}

# debug_key: what the debug kernel is made from: configuration, recipe, sources and compilers.
debug_key() {
	{
		sed '/^#/d' "$fragment"
		declare -f configure_debug_kernel make_debug_kernel
		awk '$1 == "Package:" { p = $2 } $1 == "Version:" && p ~ /^(linux-source-|rustc$|clang-|bindgen$)/ { print p, $2 }' \
			"$root/var/lib/dpkg/status" | sort
	} | sha256sum | cut -c1-12
}

# Run inside the root, in the folder that the kernel is made in and that has the sources. Runs again where it was
# interrupted.
make_debug_kernel() {
	configure_debug_kernel /src/scripts/config/debug.fragment
	make -j"$(nproc)" LLVM=1 bzImage modules
	rm -rf install
	make -s LLVM=1 INSTALL_MOD_PATH="$PWD/install" modules_install
	cp arch/x86/boot/bzImage install/
	test -s rust/libkernel.rmeta
	# What was compiled is not needed any more, but for the tools and the Rust crates that modules are built with.
	find . \( -path ./scripts -o -path ./tools -o -path ./install \) -prune -o \
		\( -name '*.[oa]' -o -name vmlinux -o -name vmlinux.unstripped -o -name '*.ko' -o -name '.*.cmd' \) -type f -exec rm -f {} +
}

# configure_debug_kernel FRAGMENT: everything off but for the lines of FRAGMENT, and each of them must hold.
configure_debug_kernel() {
	local line missing=''
	make -s LLVM=1 KCONFIG_ALLCONFIG="$1" allnoconfig
	while IFS= read -r line; do
		case $line in
		CONFIG_*=n) ! grep -q "^${line%=n}=" .config || missing+="$line " ;;
		CONFIG_*) grep -qxF "$line" .config || missing+="$line " ;;
		esac
	done <"$1"
	[ -z "$missing" ] || { echo "this kernel cannot have: $missing" >&2; return 1; }
}
