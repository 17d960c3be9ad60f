// SPDX-License-Identifier: GPL-2.0
#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/idr.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>

void rust_helper_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

void rust_helper_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

int rust_helper_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

unsigned long rust_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

void rust_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

int rust_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void rust_helper_local_bh_disable(void)
{
	local_bh_disable();
}

void rust_helper_local_bh_enable(void)
{
	local_bh_enable();
}

void rust_helper_idr_init(struct idr *idr)
{
	idr_init(idr);
}

u64 __percpu *rust_helper_alloc_percpu_u64(size_t count)
{
	return __alloc_percpu(array_size(count, sizeof(u64)), sizeof(u64));
}

void rust_helper_this_cpu_add_u64(u64 __percpu *counter, u64 value)
{
	this_cpu_add(*counter, value);
}

u64 rust_helper_per_cpu_read_u64(u64 __percpu *counter, unsigned int cpu)
{
	return READ_ONCE(*per_cpu_ptr(counter, cpu));
}

bool rust_helper_cpu_possible(unsigned int cpu)
{
	return cpu_possible(cpu);
}

unsigned int rust_helper_num_possible_cpus(void)
{
	return num_possible_cpus();
}
