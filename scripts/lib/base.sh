# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# Sourced by every script here: where things lie, and how steps and failures are told.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
# Everything that is downloaded or built once; `make distclean-cache` removes it.
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/ferroce

# Mounts are described as FROM:TO.
case $top$cache in *:*) echo "error: the checkout's and the cache's paths must have no colon" >&2; exit 1 ;; esac

# Steps announce themselves with the time since the outermost script began.
: "${FERROCE_T0:=$EPOCHREALTIME}"
export FERROCE_T0

# now_ms: milliseconds since the epoch, without starting a program.
now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# seconds_since MS: "12.3" seconds since a value of now_ms.
seconds_since() {
	local d=$(($(now_ms) - $1))
	printf '%d.%d' $((d / 1000)) $((d % 1000 / 100))
}

# elapsed: seconds since the outermost script began.
elapsed() { local t=${FERROCE_T0/[.,]/}; seconds_since $((t / 1000)); }

step() { printf '[%6ss] %s\n' "$(elapsed)" "$*" >&2; }
note() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# checkout_key: a short name for this checkout; what belongs to one checkout is kept under it.
checkout_key() { printf '%s' "$top" | sha256sum | cut -c1-12; }
