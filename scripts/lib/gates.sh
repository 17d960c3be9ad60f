# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# The checks of the sources, each as a test. Needs report.sh and cargo.sh.

# pinned_test NAME COMMAND...: a test that uses a pinned tool, for which one has to be root.
pinned_test() {
	if [ "$(id -u)" = 0 ]; then run_test "$@"; else report skip "$1" "the build root's tools need root"; fi
}

# Those that need no kernel tree.
host_gates() {
	pinned_test "lint: rustfmt" "$top/scripts/rustfmt" --check
	run_test "lint: layers" "$top/scripts/check-layers"
	run_test "lint: file sizes" "$top/scripts/check-filesize"
	run_test "lint: SAFETY comments" "$top/scripts/check-safety"
	run_test "lint: tests named in the documentation" "$top/scripts/check-named-tests"
	pinned_test "lint: shellcheck" check_shell
	pinned_test "lint: clippy, tools" pinned_tool ro bash -c \
		'cd tools && cargo clippy --quiet --workspace --all-targets --locked -- -D warnings'
}

# Those that look at the module as it is built for the guests' kernel. The kernel's lints are in the command line that
# the kernel's build gives to clippy.
kernel_gates() {
	run_test "lint: clippy, module, no warning" "$top/scripts/build" --lint
	run_test "lint: panics" "$top/scripts/check-panics"
}

# check_shell: shellcheck over every shell script, found by its first line.
check_shell() {
	local files
	cd "$top" || return
	mapfile -t files < <(grep -rlE '^#!.*(bash|busybox sh)|^# shellcheck shell=' --exclude-dir=target --exclude-dir=.git scripts tools .ci)
	[ ${#files[@]} -gt 0 ] || return
	pinned_tool ro shellcheck -S warning -x -P /src "${files[@]}"
}
