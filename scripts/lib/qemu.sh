# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# QEMU out of the build root: acceleration and kernel image. Needs root.sh and initramfs.sh.

# kernel_binds IMAGE INITRAMFS: sets kernel_binds (for in_root) and kernel_image; IMAGE '' is the stock kernel.
kernel_binds() {
	kernel_binds=(-b "$2:/initramfs:ro")
	kernel_image=/usr/lib/modules/$kver/vmlinuz
	if [ -n "$1" ]; then
		[ -f "$1" ] || die "no kernel image $1"
		kernel_binds+=(-b "$(realpath "$1"):/kernel-image:ro")
		kernel_image=/kernel-image
	fi
}

# run_qemu [-x] [-b BIND]... -- QEMU-ARGS...     (-x and -b as in in_root)
run_qemu() {
	local binds=()
	while [ "$1" != -- ]; do
		binds+=("$1")
		shift
	done
	shift
	in_root "${binds[@]}" "$root" qemu-system-x86_64 -kernel "$kernel_image" -initrd /initramfs \
		-nodefaults -no-user-config -display none -no-reboot "$@"
}

# qemu_acceleration COUNT SMP: prints the arguments that choose how instructions are executed.
qemu_acceleration() {
	local count=$1 smp=$2
	if [ "$count" = 1 ]; then
		# One processor whose clock advances 1 ns for each instruction. Without erms, fsrm and fsrs the kernel copies and
		# clears with loops, not with `rep movsb` and `rep stosb`, which would count as one instruction for each byte.
		echo "-accel tcg,thread=single,tb-size=512 -icount shift=0,sleep=off -smp 1 -cpu max,la57=off,erms=off,fsrm=off,fsrs=off"
	elif kvm_works; then
		echo "-accel kvm -cpu host -smp $smp"
	else
		echo "-accel tcg,thread=multi,tb-size=512 -cpu max,la57=off -smp $smp"
	fi
}

# kvm_works: whether KVM really boots the stock kernel here (the device node alone does not tell). Found out once for
# each boot of this machine.
kvm_works() {
	[ -e /dev/kvm ] || return 1
	local known=$cache/kvm-probe boot result
	boot=$(</proc/sys/kernel/random/boot_id)
	(
		flock 7
		if ! grep -q "^$boot " "$known" 2>/dev/null; then
			result=no
			probe_kvm && result=yes
			echo "$boot $result" >"$known"
		fi
		grep -q "^$boot yes" "$known"
	) 7>"$known.lock"
}

probe_kvm() (
	dir=$(mktemp -d "$cache/tmp-probe.XXXXXX")
	trap 'rm -rf "$dir"' EXIT
	kernel_binds '' "$(initramfs)"
	# A guest that cannot run stops or spins; a good one says so within two seconds.
	export top root kernel_image
	timeout -s KILL 15 setpriv --pdeathsig KILL bash -c "$(declare -f in_root run_qemu die); "'run_qemu "$@"' run_qemu \
		"${kernel_binds[@]}" -b "$dir:/out" -- -accel kvm -cpu host -smp 2 -m 512 -serial file:/out/console \
		-append "console=ttyS0 panic=-1 quiet no_timer_check ferroce.probe" >/dev/null 2>&1 || true # the console tells
	grep -q 'ferroce: probe ok' "$dir/console" 2>/dev/null
)
