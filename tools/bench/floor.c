// SPDX-License-Identifier: GPL-2.0
/*
 * What a transfer cannot do without: the data are copied twice, and the CRC of each packet is computed twice. Measured
 * when the module is loaded, with the string instructions that the kernel copies from and to programs with, and the CRC
 * that the drivers use. For the bench.
 */
#include <linux/crc32.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>

#define MESSAGE 65536
#define PACKET 4096

static unsigned int rounds = 100;
module_param(rounds, uint, 0444);

static unsigned long ps_per_byte;
module_param(ps_per_byte, ulong, 0444);

static void copy(void *to, const void *from, unsigned long bytes)
{
	unsigned long words = bytes / 8;

	asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
}

static int __init floor_init(void)
{
	u8 *from = kvzalloc(MESSAGE, GFP_KERNEL), *wire = kvzalloc(MESSAGE, GFP_KERNEL), *to = kvzalloc(MESSAGE, GFP_KERNEL);
	u32 sent = 0, received = 0;
	u64 start, taken;
	int err = 0;

	if (!from || !wire || !to || !rounds) {
		err = rounds ? -ENOMEM : -EINVAL;
		goto out;
	}
	start = ktime_get_ns();
	for (unsigned int i = 0; i < rounds; i++) {
		for (unsigned int at = 0; at < MESSAGE; at += PACKET) {
			copy(wire + at, from + at, PACKET);
			sent = crc32_le(sent, wire + at, PACKET);
		}
		for (unsigned int at = 0; at < MESSAGE; at += PACKET) {
			received = crc32_le(received, wire + at, PACKET);
			copy(to + at, wire + at, PACKET);
		}
	}
	taken = ktime_get_ns() - start;
	ps_per_byte = taken * 1000 / (u64)MESSAGE / rounds;
	if (sent != received)
		err = -EIO;
out:
	kvfree(from);
	kvfree(wire);
	kvfree(to);
	return err;
}
module_init(floor_init);

static void __exit floor_exit(void)
{
}
module_exit(floor_exit);

MODULE_DESCRIPTION("two copies and two CRCs, measured");
MODULE_LICENSE("GPL");
