# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# Rust tools for the host side: this machine's where they are new enough, else the build root's. Needs root.sh.

# host_cargo: whether this machine has a cargo that the workspace can use (1.85 or later).
host_cargo() {
	local v
	v=$(cargo --version 2>/dev/null) || return 1
	[ "$(printf '%s\n' 1.85 "$(cut -d' ' -f2 <<<"$v")" | sort -V | head -n 1)" = 1.85 ]
}

# in_tools COMMAND...: runs a command in tools/, what it builds going to the cache.
in_tools() {
	local target
	target=$cache/cargo/$(checkout_key)
	if host_cargo; then
		(cd "$top/tools" && CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$target} "$@")
	else
		pinned_tool ro bash -c 'cd tools && "$@"' bash "$@"
	fi
}

# pinned_tool ro|rw COMMAND...: runs a tool whose opinion changes with its version (rustfmt, shellcheck, clippy) in the
# build root, where everybody has the same. The current folder is the checkout, read-only or not.
pinned_tool() {
	local mode=$1 target
	shift
	require_root
	target=$cache/cargo/$(checkout_key)-root
	mkdir -p "$target" "$cache/cargo/home"
	CARGO_HOME=/cargo CARGO_TARGET_DIR=/build in_root -b "$top:/src:$mode" -b "$target:/build" \
		-b "$cache/cargo/home:/cargo" "$root" bash -c 'cd /src && "$@"' bash "$@"
}
