# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# The build root: where it is, and how to run a command in it. Needs base.sh and recipe.sh.

# The kernel version a recipe was resolved to is remembered, so that a later run asks no network.
kernel_file() { echo "$cache/kernel-$(recipe_key)"; }

# locate_root: sets kver, root, tree from the cache; fails when nothing was set up. KVER=... picks another kernel.
locate_root() {
	local key
	key=$(recipe_key)
	kver=${KVER:-}
	[ -n "$kver" ] || kver=$(cat "$cache/kernel-$key" 2>/dev/null) || return 1
	root=$cache/root-$key-$kver
	tree=$cache/tree-$key-$kver
	# Touched, so that set-up can tell what nobody uses any more.
	[ -d "$root" ] && [ -d "$tree" ] && touch -c "$root" "$tree"
}

# require_root: locate_root, setting it up when it is missing.
require_root() {
	locate_root && return
	"$top/scripts/setup" || exit
	locate_root || die "scripts/setup left no build root in $cache"
}

# in_root [-w] [-x] [-b FROM:TO[:ro]]... ROOT COMMAND [ARG...]
# Runs a command in ROOT. Mounts live in a namespace of its own and processes in another, so that whatever happens to
# this script, neither a mount nor a process is left. ROOT is read-only but for -w; FROM and TO are files or folders
# that exist. -x replaces this shell: in a subshell in the background, so that the script is the direct parent.
in_root() {
	[ "$(id -u)" = 0 ] || die "mounting the build root needs root: run this as root (sudo)"
	local write=0 binds=() replace=()
	while :; do
		case $1 in
		-w) write=1; shift ;;
		-x) replace=(exec); shift ;;
		-b) binds+=("$2"); shift 2 ;;
		*) break ;;
		esac
	done
	# pdeathsig: a SIGKILL of the parent takes the whole namespace along.
	"${replace[@]}" setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child \
		bash "$top/scripts/lib/enter-root" "$write" "${#binds[@]}" "${binds[@]}" "$@"
}
