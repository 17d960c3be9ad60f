# SPDX-License-Identifier: GPL-2.0
#
# Commands for people; Kbuild has what the kernel's build needs. `make help` lists them.

# For one's own kernel: its build folder, and optionally MO=<folder> for the output.
KDIR ?= /lib/modules/$(shell uname -r)/build

# The compiler that the kernel was built with, where it is installed and nobody says otherwise.
ifeq ($(origin CC),default)
kernel_cc := $(notdir $(firstword $(shell sed -n 's/^CONFIG_CC_VERSION_TEXT="\(.*\)"/\1/p' $(KDIR)/.config 2>/dev/null)))
kernel_cc := $(patsubst x86_64-linux-gnu-%,%,$(kernel_cc))
CC        := $(or $(if $(kernel_cc),$(shell command -v $(kernel_cc))),gcc)
endif
kbuild = $(MAKE) -C $(KDIR) M=$(CURDIR) $(if $(MO),MO=$(abspath $(MO))) $(if $(findstring clang,$(CC)),LLVM=1,CC=$(CC))

.PHONY: modules
modules: ## build ferroce.ko for your own kernel (KDIR=..., MO=..., CLIPPY=1 as in any kernel module)
	@scripts/check-kdir $(KDIR)
	$(kbuild) modules

.PHONY: install
install: ## install the module that `make` built; then `modprobe ferroce`
	@if [ -e $(KDIR)/rust/libkernel.rmeta ]; then $(kbuild) modules_install; else scripts/install-built; fi
	depmod -a $$(uname -r)
	@echo "Next: modprobe ferroce; rdma link add ferroce0 type ferroce netdev <your interface>"

.PHONY: uninstall
uninstall: ## remove it again
	rm -f /lib/modules/$$(uname -r)/updates/ferroce.ko*
	depmod -a $$(uname -r)

.PHONY: demo
demo: ## boot a stock kernel in QEMU, load the module and run ibv_rc_pingpong between two devices
	@scripts/demo

.PHONY: shell
shell: ## the same, as an interactive guest to play in (TYPE=rxe for the in-kernel driver)
	@scripts/shell

.PHONY: test
test: ## tests that need no kernel: cargo test, simulator, source checks
	@scripts/check --host

.PHONY: check
check: ## all tests, with guests (FILES="test_x.py ..." for some, DRIVER=rxe to compare with the in-kernel driver)
	@scripts/check $(FILES)

.PHONY: check-debug
check-debug: ## the guest tests and KUnit on a kernel with KASAN, lockdep, kmemleak ..., which is built first (FILES=...)
	@KERNEL=debug scripts/check $(FILES)

.PHONY: bench
bench: ## what things cost: ferroce, rxe and TCP in one guest (scripts/bench for some rows only)
	@scripts/bench

.PHONY: lint
lint: ## formatting, clippy with the kernel's lints, layers, panics, file sizes, SAFETY comments
	@scripts/lint

.PHONY: fmt
fmt: ## format all Rust files
	@scripts/rustfmt

.PHONY: guest-module
guest-module: ## build ferroce.ko for the guests' kernel, in the build root
	@scripts/build

.PHONY: guest
guest: ## run a command in a guest: make guest CMD='uname -a' (scripts/guest -h for more)
	@scripts/guest bash -c "$$CMD"

.PHONY: setup
setup: ## only make the build root and the kernel tree (every other target does it when needed)
	@scripts/setup

.PHONY: update
update: ## look for a newer kernel than the one that was set up
	@scripts/setup --update

.PHONY: kdir
kdir: ## prepare a kernel tree with Rust metadata, and say how to build against it (KVER=... for a given kernel)
	@scripts/kdir

.PHONY: clean
clean: ## remove what was built, here and for this checkout's guests
	@if [ -e $(KDIR)/Makefile ]; then $(kbuild) clean; fi
	@scripts/clean

.PHONY: distclean-cache
distclean-cache: ## remove the cache (build root, kernel tree, all checkouts' guest files)
	@scripts/clean --cache

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

export CMD KVER
export FERROCE_TYPE := $(or $(DRIVER),$(TYPE),ferroce)
