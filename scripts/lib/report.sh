# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source this, and theirs
# SPDX-License-Identifier: GPL-2.0
# One line for each test, and the last line `N passed, N failed`. Needs base.sh.

# report_begin: starts a count; the tests that follow may run in sub-shells and in other scripts.
report_begin() {
	[ -z "${FERROCE_TALLY:-}" ] || return 0
	mkdir -p "$cache"
	FERROCE_TALLY=$(mktemp "$cache/tmp-tally.XXXXXX")
	export FERROCE_TALLY
	report_owner=1
	trap 'rm -f "$FERROCE_TALLY"' EXIT
}

# report ok|FAIL|skip NAME [SECONDS|REASON]
report() {
	echo "$1" >>"$FERROCE_TALLY"
	printf '%-4s %s%s\n' "$1" "$2" "${3:+ ($3)}"
}

# run_test NAME COMMAND...: a test that is a command. What it prints is shown when it fails.
run_test() {
	local name=$1 t0 out
	shift
	t0=$(now_ms)
	if out=$("$@" 2>&1 </dev/null); then
		report ok "$name" "$(seconds_since "$t0") s"
	else
		report FAIL "$name" "$(seconds_since "$t0") s"
		tail -n 60 <<<"$out" | sed 's/^/    /'
	fi
}

# report_end: the closing line; false when anything failed or nothing ran. Does nothing inside another script's count.
report_end() {
	[ -n "${report_owner:-}" ] || return 0
	local passed failed skipped
	passed=$(grep -cx ok "$FERROCE_TALLY" || true) # grep fails on a count of 0
	failed=$(grep -cx FAIL "$FERROCE_TALLY" || true)
	skipped=$(grep -cx skip "$FERROCE_TALLY" || true)
	[ $((passed + failed)) -gt 0 ] || { echo "no test ran"; failed=1; }
	if [ "$skipped" = 0 ]; then echo "$passed passed, $failed failed"; else echo "$passed passed, $failed failed, $skipped skipped"; fi
	[ "$failed" = 0 ]
}

# setting FILE KEY DEFAULT: a number from the line `# guest: KEY=N ...` near the top of a test file.
setting() {
	local v
	v=$(sed -n '1,30s/^# guest:.*\<'"$2"'=\([0-9]*\).*/\1/p' "$1")
	echo "${v:-$3}"
}
