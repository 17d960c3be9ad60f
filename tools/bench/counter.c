// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU's emulation: how often each block of the guest's code was executed. For scripts/bench --profile.
 *
 * The guest says when by executing code in a page of its own (see counting.py): at MARK it sets all counts to zero, at
 * MARK + 16 it has them written to /out/counts.N, N = 0, 1, ... A line is: address, instructions of the block, how often.
 *
 * The distribution's packages have no qemu-plugin.h; what is used of version 4 of its interface is declared here.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define MARK 0x7bad0000ull
#define BUCKETS 65536u

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_scoreboard;
struct counter {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
};
enum { ADD_U64 = 0, NO_REGISTERS = 0 };

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
uint64_t qemu_plugin_u64_sum(struct counter counter);
void qemu_plugin_u64_set(struct counter counter, unsigned int cpu, uint64_t value);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*callback)(plugin_id id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, void (*callback)(unsigned int cpu, void *data),
					  int flags, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb, int op, struct counter counter,
						       uint64_t value);

EXPORT int qemu_plugin_version = 4;

struct block {
	struct block *next;
	uint64_t address;
	size_t instructions;
	struct counter executed;
};

static struct block *blocks[BUCKETS];

/* The guest of a profile has one processor, number 0. */
static void set_to_zero(unsigned int cpu, void *data)
{
	(void)cpu, (void)data;
	for (unsigned int i = 0; i < BUCKETS; i++)
		for (struct block *b = blocks[i]; b; b = b->next)
			qemu_plugin_u64_set(b->executed, 0, 0);
}

static void write_counts(unsigned int cpu, void *data)
{
	static int number;
	char name[64];
	FILE *f;

	(void)cpu, (void)data;
	snprintf(name, sizeof(name), "/out/counts.%d", number++);
	f = fopen(name, "w");
	if (!f) {
		perror(name);
		exit(1);
	}
	for (unsigned int i = 0; i < BUCKETS; i++) {
		for (struct block *b = blocks[i]; b; b = b->next) {
			uint64_t count = qemu_plugin_u64_sum(b->executed);

			if (count)
				fprintf(f, "%llx %zu %llu\n", (unsigned long long)b->address, b->instructions,
					(unsigned long long)count);
		}
	}
	if (fclose(f)) {
		perror(name);
		exit(1);
	}
}

/* A block is translated again when QEMU's cache was full, and with fewer instructions when a timer is near. */
static struct block *find(uint64_t address, size_t instructions)
{
	struct block **bucket = &blocks[((uint32_t)(address ^ address >> 16 ^ instructions * 77) * 2654435761u) >> 16];
	struct block *b;

	for (b = *bucket; b; b = b->next)
		if (b->address == address && b->instructions == instructions)
			return b;
	b = calloc(1, sizeof(*b));
	if (!b)
		abort();
	b->address = address;
	b->instructions = instructions;
	b->executed.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
	b->next = *bucket;
	*bucket = b;
	return b;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb);

	(void)id;
	if (address == MARK)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, set_to_zero, NO_REGISTERS, NULL);
	else if (address == MARK + 16)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, write_counts, NO_REGISTERS, NULL);
	else
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
			tb, ADD_U64, find(address, qemu_plugin_tb_n_insns(tb))->executed, 1);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	(void)info, (void)argc, (void)argv;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
