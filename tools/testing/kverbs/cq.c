// SPDX-License-Identifier: GPL-2.0
/* Completion queues of the core's poll contexts and of plain handlers; draining; vectors. */
#include <linux/cpumask.h>
#include <linux/preempt.h>
#include "kverbs.h"

#define MESSAGES	200

/* Completions as they come in, and what they were called in. */
static struct {
	atomic_t good, flushed, other;
	unsigned long in_softirq, in_thread;
	struct cpumask cpus;
} seen;

static void count(struct ib_cq *cq, struct ib_wc *wc)
{
	if (in_serving_softirq())
		seen.in_softirq++;
	else
		seen.in_thread++;
	cpumask_set_cpu(raw_smp_processor_id(), &seen.cpus);
	atomic_inc(wc->status == IB_WC_SUCCESS ? &seen.good :
		   wc->status == IB_WC_WR_FLUSH_ERR ? &seen.flushed : &seen.other);
}

static struct ib_cqe counted = { .done = count };

static void forget(void)
{
	memset(&seen, 0, sizeof(seen));
}

static int send_one(struct kv_end *e)
{
	return kv_send(e, (uintptr_t)&counted, 0, 64, IB_SEND_SIGNALED);
}

static int recv_one(struct kv_end *e)
{
	return kv_recv(e, (uintptr_t)&counted, 4096, 64);
}

/* Waits for so many good completions, polling where nobody else does. */
static bool good(struct kv_pair *p, int value)
{
	unsigned long end = jiffies + msecs_to_jiffies(KV_MS);

	if (p->a.poll != IB_POLL_DIRECT)
		return kv_wait(&seen.good, value);
	while (atomic_read(&seen.good) < value && time_before(jiffies, end)) {
		ib_process_cq_direct(p->a.scq, -1);
		ib_process_cq_direct(p->b.rcq, -1);
		cond_resched();
	}
	return atomic_read(&seen.good) == value;
}

static int exchange(struct kv_pair *p)
{
	int i;

	forget();
	for (i = 0; i < MESSAGES; i++) {
		CHECK_OK(recv_one(&p->b));
		CHECK_OK(send_one(&p->a));
		/* Some at a time, so that queues run empty and are armed again. */
		if (i % 8 == 7 || i == MESSAGES - 1)
			CHECK_VALUE(good(p, 2 * (i + 1)), atomic_read(&seen.good));
	}
	return 0;
}

/* All that is outstanding has been handed over when a drain returns, and nothing comes behind it. */
static int drain(struct kv_pair *p)
{
	unsigned long start = jiffies;
	int i;

	forget();
	for (i = 0; i < 10; i++)
		CHECK_OK(recv_one(&p->b));
	ib_drain_qp(p->b.qp);
	if (!p->b.srq)
		CHECK_VALUE(atomic_read(&seen.flushed) == 10, atomic_read(&seen.flushed));
	/* The peer is gone. */
	forget();
	for (i = 0; i < 10; i++)
		CHECK_OK(send_one(&p->a));
	ib_drain_qp(p->a.qp);
	CHECK_VALUE(atomic_read(&seen.flushed) + atomic_read(&seen.other) == 10, atomic_read(&seen.flushed));
	CHECK(!atomic_read(&seen.good));
	/* Waiting for an event that does not come takes a minute. */
	CHECK(time_before(jiffies, start + 30 * HZ));
	return 0;
}

static int contexts(struct ib_device *a, struct ib_device *b, enum ib_poll_context ctx, bool srq)
{
	struct kv_opts opts = { .poll = ctx, .srq = srq };
	struct kv_pair *p __free(kv_pair) = kv_pair(a, b, &opts);

	if (!p || exchange(p))
		return -EPROTO;
	CHECK_VALUE(ctx == IB_POLL_SOFTIRQ ? !seen.in_thread : !seen.in_softirq, seen.in_thread);
	return drain(p);
}

static int poll_direct(struct ib_device *a, struct ib_device *b)
{
	return contexts(a, b, IB_POLL_DIRECT, false);
}

static int poll_softirq(struct ib_device *a, struct ib_device *b)
{
	return contexts(a, b, IB_POLL_SOFTIRQ, false);
}

static int poll_workqueue(struct ib_device *a, struct ib_device *b)
{
	return contexts(a, b, IB_POLL_WORKQUEUE, false);
}

static int poll_unbound(struct ib_device *a, struct ib_device *b)
{
	return contexts(a, b, IB_POLL_UNBOUND_WORKQUEUE, false);
}

static int poll_srq(struct ib_device *a, struct ib_device *b)
{
	return contexts(a, b, IB_POLL_WORKQUEUE, true);
}

/* A handler that takes all there is and arms the queue again, under a lock that is also held while posting. */
static struct {
	spinlock_t lock;
	atomic_t calls, taken, bad;
	bool polls;
} handled;

static void on_completion(struct ib_cq *cq, void *context)
{
	unsigned long flags;
	struct ib_wc wc;

	atomic_inc(&handled.calls);
	if (!handled.polls)
		return;
	spin_lock_irqsave(&handled.lock, flags);
	do {
		while (ib_poll_cq(cq, 1, &wc) > 0) {
			if (wc.status != IB_WC_SUCCESS)
				atomic_inc(&handled.bad);
			atomic_inc(&handled.taken);
		}
	} while (ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0);
	spin_unlock_irqrestore(&handled.lock, flags);
}

static struct kv_pair *handled_pair(struct ib_device *a, struct ib_device *b, bool polls)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .handler = on_completion };

	memset(&handled, 0, sizeof(handled));
	spin_lock_init(&handled.lock);
	handled.polls = polls;
	return kv_pair(a, b, &opts);
}

static int handler(struct ib_device *da, struct ib_device *db)
{
	struct kv_pair *p __free(kv_pair) = handled_pair(da, db, true);
	unsigned long flags;
	int i, ret;

	if (!p)
		return -EPROTO;
	CHECK_OK(ib_req_notify_cq(p->a.scq, IB_CQ_NEXT_COMP));
	CHECK_OK(ib_req_notify_cq(p->b.rcq, IB_CQ_NEXT_COMP));
	for (i = 0; i < 500; i++) {
		spin_lock_irqsave(&handled.lock, flags);
		ret = recv_one(&p->b) ?: send_one(&p->a);
		spin_unlock_irqrestore(&handled.lock, flags);
		CHECK_OK(ret);
		if (i % 5 == 4)
			CHECK_VALUE(kv_wait(&handled.taken, 2 * (i + 1)), atomic_read(&handled.taken));
	}
	CHECK(!atomic_read(&handled.bad));
	return 0;
}

/* One call for each time that it is armed, none for what came before; what was missed is told who asks. */
static int arming(struct ib_device *da, struct ib_device *db)
{
	struct kv_pair *p __free(kv_pair) = handled_pair(da, db, false);
	struct ib_cq *cq;
	struct ib_wc wc[4];

	if (!p)
		return -EPROTO;
	cq = p->b.rcq;
	CHECK_OK(recv_one(&p->b) ?: recv_one(&p->b) ?: recv_one(&p->b) ?: recv_one(&p->b));
	/* Not armed. */
	CHECK_OK(send_one(&p->a));
	CHECK_OK(kv_poll_one(p->a.scq, wc));
	CHECK_VALUE(!atomic_read(&handled.calls), atomic_read(&handled.calls));
	CHECK(ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0);
	CHECK_OK(kv_poll_one(cq, wc));
	CHECK_OK(ib_req_notify_cq(cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS));
	/* Armed once: called for the first of two. */
	CHECK_OK(send_one(&p->a) ?: send_one(&p->a));
	CHECK(kv_poll(p->a.scq, wc, 2, KV_MS) == 2 && kv_poll(cq, wc, 2, KV_MS) == 2);
	CHECK_VALUE(kv_wait(&handled.calls, 1), atomic_read(&handled.calls));
	/* For solicited ones alone. */
	CHECK_OK(ib_req_notify_cq(cq, IB_CQ_SOLICITED | IB_CQ_REPORT_MISSED_EVENTS));
	CHECK_OK(recv_one(&p->b));
	CHECK_OK(send_one(&p->a));
	CHECK_OK(kv_poll_one(p->a.scq, wc));
	CHECK_OK(kv_poll_one(cq, wc));
	CHECK_VALUE(atomic_read(&handled.calls) == 1, atomic_read(&handled.calls));
	CHECK_OK(kv_send(&p->a, 0, 0, 64, IB_SEND_SIGNALED | IB_SEND_SOLICITED));
	CHECK_VALUE(kv_wait(&handled.calls, 2), atomic_read(&handled.calls));
	return 0;
}

/*
 * A vector for each processor; queues of each of them work, also those that the core shares out. Where the handlers run is
 * noted: there where the packets come in.
 */
static int vectors(struct ib_device *da, struct ib_device *db)
{
	int v, other;

	CHECK_VALUE(da->num_comp_vectors == nr_cpu_ids, da->num_comp_vectors);
	for (v = 0; v < da->num_comp_vectors; v++) {
		struct kv_opts opts = { .poll = IB_POLL_SOFTIRQ, .vector = v };
		struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
		struct ib_cq *pool;

		if (!p || exchange(p))
			return -EPROTO;
		kv_note(" cpus=%*pbl", cpumask_pr_args(&seen.cpus));
		pool = ib_cq_pool_get(da, 16, v, IB_POLL_SOFTIRQ);
		CHECK_OK(PTR_ERR_OR_ZERO(pool));
		other = pool->comp_vector;
		ib_cq_pool_put(pool, 16);
		CHECK_VALUE(other == v % num_online_cpus(), other);
	}
	return 0;
}

const struct kv_case kv_cq_cases[] = {
	{ "poll_direct", poll_direct },
	{ "poll_softirq", poll_softirq },
	{ "poll_workqueue", poll_workqueue },
	{ "poll_unbound", poll_unbound },
	{ "poll_srq", poll_srq },
	{ "handler", handler },
	{ "arming", arming },
	{ "vectors", vectors },
	{}
};
