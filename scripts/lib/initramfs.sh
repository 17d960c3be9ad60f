# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# The guests' initramfs: busybox, the modules that mounting the root needs, initramfs-init. Needs root.sh.

# initramfs: prints the path of the image for $kver, making it when it is missing.
initramfs() {
	local key img
	key=$(cat "$top"/scripts/lib/initramfs* | sha256sum | cut -c1-12)
	img=$cache/initramfs-$key-$kver
	if [ ! -e "$img" ]; then
		in_root -b "$top:/src:ro" "$root" bash -c "set -euo pipefail; $(declare -f pack_initramfs); pack_initramfs $kver" \
			>"$img.$$" || die "could not make the initramfs"
		mv "$img.$$" "$img"
	fi
	echo "$img"
}

# Run inside the root: writes the image to standard output.
pack_initramfs() {
	local d m n
	d=$(mktemp -d)
	mkdir -p "$d"/{bin,modules,proc,sys,dev,lower,over,root}
	cp /usr/bin/busybox "$d/bin/"
	cp /src/scripts/lib/initramfs-init "$d/init"
	chmod +x "$d/init"
	modprobe -S "$1" --show-depends -a 9p 9pnet_virtio virtio_pci overlay |
		awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$d/list"
	while read -r m; do
		n=$(basename "$m")
		case $m in
		*.xz) n=${n%.xz}; xz -dc "$m" >"$d/modules/$n" ;;
		*.zst) n=${n%.zst}; zstd -dcq "$m" >"$d/modules/$n" ;;
		*) cp "$m" "$d/modules/$n" ;;
		esac
		echo "$n"
	done <"$d/list" >"$d/modules/order"
	rm "$d/list"
	cd "$d" || return
	find . | cpio -o -H newc --quiet | gzip -1
}
