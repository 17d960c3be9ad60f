// SPDX-License-Identifier: GPL-2.0
/* Posting: in any context, in chains, in vain, inline. */
#include <linux/hrtimer.h>
#include <linux/timer.h>
#include "kverbs.h"

#define CHAIN	32

/* A receive, a send and a poll on both ends from one context. */
struct burst {
	struct kv_pair *p;
	struct ib_ud_wr *ud;
	spinlock_t lock;
	struct timer_list timer;
	struct hrtimer hrtimer;
	int number, ret;
	struct completion done;
};

static void burst(struct burst *b)
{
	struct kv_pair *p = b->p;
	struct ib_wc wc;
	unsigned long flags;

	spin_lock_irqsave(&b->lock, flags);
	b->ret = kv_recv(&p->b, b->number, 4096 * b->number, 4096) ?:
		 (b->ud ? ib_post_send(p->a.qp, &b->ud->wr, NULL) :
			  kv_send(&p->a, b->number, 4096 * b->number, 3000, IB_SEND_SIGNALED));
	/* Nobody else polls this queue while it is about the context: what it has may be thrown away. */
	if (!b->ret && ib_poll_cq(p->a.rcq, 1, &wc))
		b->ret = -EPROTO;
	if (!b->ret && ib_req_notify_cq(p->a.rcq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS))
		b->ret = -EPROTO;
	spin_unlock_irqrestore(&b->lock, flags);
	complete(&b->done);
}

static void burst_timer(struct timer_list *t)
{
	burst(container_of(t, struct burst, timer));
}

static enum hrtimer_restart burst_hrtimer(struct hrtimer *t)
{
	burst(container_of(t, struct burst, hrtimer));
	return HRTIMER_NORESTART;
}

static void on_completion(struct ib_cq *cq, void *context)
{
}

/* With interrupts off and a lock held: in a thread, in a softirq, in a hard interrupt. */
static int contexts_on(struct ib_device *da, struct ib_device *db, enum ib_qp_type type, bool srq)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .handler = on_completion, .type = type, .srq = srq };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct burst *b __free(kfree) = kzalloc(sizeof(*b), GFP_KERNEL);
	struct ib_wc wc;
	unsigned long flags;
	int have, round, grh = 0;
	struct ib_ah *ah __free(kv_ah) = NULL;
	struct rdma_ah_attr attr;
	struct ib_sge sge;
	struct ib_ud_wr ud = { .wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND,
				       .send_flags = IB_SEND_SIGNALED }, .remote_qkey = KV_QKEY };

	if (!p || !b)
		return -EPROTO;
	b->p = p;
	if (type == IB_QPT_UD) {
		kv_ah_attr(&p->a, &p->b, &attr);
		ah = rdma_create_ah(p->a.pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
		CHECK_OK(PTR_ERR_OR_ZERO(ah));
		ud.ah = ah;
		ud.remote_qpn = p->b.qp->qp_num;
		b->ud = &ud;
		grh = sizeof(struct ib_grh);
	}
	spin_lock_init(&b->lock);
	timer_setup(&b->timer, burst_timer, 0);
	hrtimer_setup(&b->hrtimer, burst_hrtimer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	for (round = 0; round < 12; round++) {
		b->number = round;
		ud.wr.wr_id = round;
		sge = (struct ib_sge){ p->a.dma + 4096 * round, 3000, p->a.pd->local_dma_lkey };
		init_completion(&b->done);
		kv_fill(p->a.buf + 4096 * round, 3000, round + 1);
		switch (round % 3) {
		case 0:
			burst(b);
			break;
		case 1:
			mod_timer(&b->timer, jiffies + 1);
			break;
		case 2:
			hrtimer_start(&b->hrtimer, ms_to_ktime(1), HRTIMER_MODE_REL);
			break;
		}
		wait_for_completion(&b->done);
		timer_delete_sync(&b->timer);
		hrtimer_cancel(&b->hrtimer);
		CHECK_OK(b->ret);
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_VALUE(wc.wr_id == round, wc.wr_id);
		/* And taken off with interrupts off. */
		for (have = 0; !have;) {
			local_irq_save(flags);
			have = ib_poll_cq(p->b.rcq, 1, &wc);
			local_irq_restore(flags);
			cond_resched();
		}
		CHECK_VALUE(wc.status == IB_WC_SUCCESS && wc.wr_id == round && wc.byte_len == grh + 3000, wc.status);
		CHECK(kv_is(p->b.buf + 4096 * round + grh, 3000, round + 1));
	}
	return 0;
}

static int contexts(struct ib_device *da, struct ib_device *db)
{
	return contexts_on(da, db, IB_QPT_RC, false);
}

static int contexts_srq(struct ib_device *da, struct ib_device *db)
{
	return contexts_on(da, db, IB_QPT_RC, true);
}

static int contexts_ud(struct ib_device *da, struct ib_device *db)
{
	return contexts_on(da, db, IB_QPT_UD, false);
}

/* A request that is gone as soon as it has completed, its list with the post. */
struct job {
	struct ib_cqe cqe;
	union {
		struct ib_send_wr send;
		struct ib_recv_wr recv;
	};
};

static atomic_t jobs_done, jobs_bad;

static void job_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct job *job = container_of(wc->wr_cqe, struct job, cqe);

	if (wc->status != IB_WC_SUCCESS)
		atomic_inc(&jobs_bad);
	/* Whoever reads it now finds no address. */
	memset(job, 0x6b, sizeof(*job));
	kfree(job);
	atomic_inc(&jobs_done);
}

/* CHAIN requests of two pieces of 100 bytes each; the one before a failed allocation ends the chain. */
static struct job *make_chain(struct kv_end *e, struct ib_sge *list, bool send)
{
	struct job *first = NULL, *job;
	int i;

	for (i = CHAIN - 1; i >= 0; i--) {
		job = kzalloc(sizeof(*job), GFP_KERNEL | __GFP_NOFAIL);
		job->cqe.done = job_done;
		list[2 * i] = (struct ib_sge){ e->dma + 256 * i, 100, e->pd->local_dma_lkey };
		list[2 * i + 1] = (struct ib_sge){ e->dma + 256 * i + 100, 100, e->pd->local_dma_lkey };
		if (send) {
			job->send = (struct ib_send_wr){
				.next = first ? &first->send : NULL, .wr_cqe = &job->cqe, .sg_list = &list[2 * i],
				.num_sge = 2, .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED,
			};
		} else {
			job->recv = (struct ib_recv_wr){
				.next = first ? &first->recv : NULL, .wr_cqe = &job->cqe, .sg_list = &list[2 * i],
				.num_sge = 2,
			};
		}
		first = job;
	}
	return first;
}

static int chain_freed(struct ib_device *da, struct ib_device *db)
{
	static const enum ib_poll_context ctx[] = { IB_POLL_SOFTIRQ, IB_POLL_UNBOUND_WORKQUEUE };
	const size_t bytes = 2 * CHAIN * sizeof(struct ib_sge);
	int i, k, round;

	for (k = 0; k < ARRAY_SIZE(ctx); k++) {
		struct kv_opts opts = { .poll = ctx[k] };
		struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);

		if (!p)
			return -EPROTO;
		atomic_set(&jobs_done, 0);
		atomic_set(&jobs_bad, 0);
		for (round = 0; round < 20; round++) {
			struct ib_sge *list = kzalloc(bytes, GFP_KERNEL | __GFP_NOFAIL);
			struct job *chain = make_chain(&p->b, list, false);

			memset(p->b.buf, 0, 256 * CHAIN);
			CHECK_OK(ib_post_recv(p->b.qp, &chain->recv, NULL));
			memset(list, 0x6b, bytes);
			for (i = 0; i < CHAIN; i++)
				kv_fill(p->a.buf + 256 * i, 200, round + i);
			chain = make_chain(&p->a, list, true);
			CHECK_OK(ib_post_send(p->a.qp, &chain->send, NULL));
			memset(list, 0x6b, bytes);
			kfree(list);
			CHECK_VALUE(kv_wait(&jobs_done, 2 * CHAIN * (round + 1)), atomic_read(&jobs_done));
			CHECK(!atomic_read(&jobs_bad));
			for (i = 0; i < CHAIN; i++)
				CHECK_VALUE(kv_is(p->b.buf + 256 * i, 200, round + i), i);
		}
	}
	return 0;
}

#define BAD_CHAIN	4

enum badness { TOO_MANY_PIECES, NO_SUCH_OPCODE, INLINE_TOO_LONG, INLINE_READ, TOO_LONG, NR_BADNESS };

/* One of four is bad: those before it are done, it is named, those behind it are not touched. */
static int bad_send(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .sge = 2, .inline_data = 64 };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_rdma_wr wr[BAD_CHAIN];
	struct ib_sge sge[8];
	const struct ib_send_wr *bad;
	struct ib_wc wc[BAD_CHAIN];
	enum badness how;
	int at, i, ret;

	if (!p)
		return -EPROTO;
	for (i = 0; i < ARRAY_SIZE(sge); i++)
		sge[i] = (struct ib_sge){ p->a.dma, 512, p->a.pd->local_dma_lkey };
	for (how = 0; how < NR_BADNESS; how++) {
		for (at = 0; at < BAD_CHAIN; at++) {
			for (i = 0; i < BAD_CHAIN; i++)
				wr[i] = (struct ib_rdma_wr){
					.wr = { .next = i < BAD_CHAIN - 1 ? &wr[i + 1].wr : NULL, .wr_id = i, .sg_list = sge,
						.num_sge = 1, .opcode = IB_WR_RDMA_WRITE, .send_flags = IB_SEND_SIGNALED },
					.remote_addr = p->b.dma + 512 * i,
					.rkey = p->b.pd->unsafe_global_rkey,
				};
			sge[0].length = sge[1].length = 512;
			switch (how) {
			case TOO_MANY_PIECES:
				wr[at].wr.num_sge = 3;
				break;
			case NO_SUCH_OPCODE:
				wr[at].wr.opcode = 0xf0;
				break;
			case INLINE_READ:
				wr[at].wr.opcode = IB_WR_RDMA_READ;
				fallthrough;
			case INLINE_TOO_LONG:
				wr[at].wr.send_flags |= IB_SEND_INLINE;
				break;
			case TOO_LONG:
				wr[at].wr.num_sge = 2;
				wr[at].wr.sg_list = &sge[2];
				sge[2].length = sge[3].length = 0x80000000;
				break;
			case NR_BADNESS:
				break;
			}
			bad = NULL;
			ret = ib_post_send(p->a.qp, &wr[0].wr, &bad);
			CHECK_VALUE(ret < 0, how);
			CHECK_VALUE(bad == &wr[at].wr, how);
			CHECK_VALUE(kv_poll(p->a.scq, wc, at, KV_MS) == at, at);
			for (i = 0; i < at; i++)
				CHECK_VALUE(wc[i].status == IB_WC_SUCCESS && wc[i].wr_id == i, wc[i].status);
			CHECK(kv_poll(p->a.scq, wc, 1, KV_QUIET_MS) == 0);
		}
	}
	return 0;
}

/* More than the queue holds, while nothing gets away: the peer is not there. */
static int full_send(struct ib_device *da, struct ib_device *db)
{
	const int count = 1000;
	struct kv_opts opts = { .poll = KV_MANUAL, .depth = 16 };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_send_wr *wr __free(kvfree) = kvcalloc(count, sizeof(*wr), GFP_KERNEL);
	const struct ib_send_wr *bad = NULL;
	struct ib_wc wc;
	int i, taken, done;

	if (!p || !wr)
		return -EPROTO;
	CHECK_OK(kv_to_error(&p->b));
	for (i = 0; i < count; i++)
		wr[i] = (struct ib_send_wr){ .next = i < count - 1 ? &wr[i + 1] : NULL, .wr_id = i, .opcode = IB_WR_SEND };
	CHECK(ib_post_send(p->a.qp, wr, &bad) == -ENOMEM);
	taken = bad - wr;
	CHECK_VALUE(taken >= 16 && taken < count, taken);
	CHECK_OK(kv_to_error(&p->a));
	/* The completion queue has less room than that: as many as it may hold are there, in order. */
	done = 0;
	while (done < min(taken, 16)) {
		CHECK(kv_poll(p->a.scq, &wc, 1, KV_MS) == 1);
		CHECK_VALUE(wc.status != IB_WC_SUCCESS && wc.wr_id == done, wc.wr_id);
		done++;
	}
	return 0;
}

static int try_bad_recv(struct kv_pair *p, struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	return p->b.srq ? ib_post_srq_recv(p->b.srq, wr, bad) : ib_post_recv(p->b.qp, wr, bad);
}

static int bad_recv_on(struct ib_device *da, struct ib_device *db, bool srq)
{
	const int count = 200;
	struct kv_opts opts = { .poll = KV_MANUAL, .sge = 2, .depth = 16, .srq = srq };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_recv_wr *wr __free(kvfree) = kvcalloc(count, sizeof(*wr), GFP_KERNEL);
	const struct ib_recv_wr *bad;
	struct ib_sge sge[3];
	struct ib_wc wc;
	int at, i, taken;

	if (!p || !wr)
		return -EPROTO;
	for (i = 0; i < ARRAY_SIZE(sge); i++)
		sge[i] = (struct ib_sge){ p->b.dma, 64, p->b.pd->local_dma_lkey };
	for (i = 0; i < count; i++)
		wr[i] = (struct ib_recv_wr){ .next = &wr[i + 1], .wr_id = i, .sg_list = sge, .num_sge = 1 };
	for (at = 0; at < BAD_CHAIN; at++) {
		wr[BAD_CHAIN - 1].next = NULL;
		wr[at].num_sge = 3;
		bad = NULL;
		CHECK(try_bad_recv(p, wr, &bad) == -EINVAL);
		CHECK_VALUE(bad == &wr[at], at);
		wr[at].num_sge = 1;
		for (i = 0; i < at; i++) {
			CHECK_OK(kv_send(&p->a, 0, 0, 64, IB_SEND_SIGNALED));
			CHECK_OK(kv_poll_one(p->a.scq, &wc));
			CHECK_OK(kv_poll_one(p->b.rcq, &wc));
			CHECK_VALUE(wc.wr_id == i, wc.wr_id);
		}
	}
	/* All are taken again; now more than there is room for. */
	wr[BAD_CHAIN - 1].next = &wr[BAD_CHAIN];
	wr[count - 1].next = NULL;
	CHECK(try_bad_recv(p, wr, &bad) == -ENOMEM);
	taken = bad - wr;
	CHECK_VALUE(taken >= 16 && taken < count, taken);
	for (i = 0; i < min(taken, 16); i++) {
		CHECK_OK(kv_send(&p->a, 0, 0, 64, IB_SEND_SIGNALED));
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.wr_id == i, wc.wr_id);
	}
	return 0;
}

static int bad_recv(struct ib_device *a, struct ib_device *b)
{
	return bad_recv_on(a, b, false);
}

static int bad_srq_recv(struct ib_device *a, struct ib_device *b)
{
	return bad_recv_on(a, b, true);
}

/* The bytes are taken when the request is posted, from memory that no region has. */
static int inline_send(struct ib_device *da, struct ib_device *db)
{
	static const int sizes[] = { 0, 1, 63, 64, 65, 255, 256 };
	struct kv_opts opts = { .poll = KV_MANUAL, .sge = 3, .inline_data = 256 };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	u8 data[257];
	struct ib_wc wc;
	int i, len, first;

	if (!p)
		return -EPROTO;
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct ib_sge sge[2];
		struct ib_send_wr wr = { .sg_list = sge, .num_sge = 2, .opcode = IB_WR_SEND,
					 .send_flags = IB_SEND_SIGNALED | IB_SEND_INLINE };

		len = sizes[i];
		first = len / 3;
		sge[0] = (struct ib_sge){ (uintptr_t)data, first, 0 };
		sge[1] = (struct ib_sge){ (uintptr_t)data + first, len - first, 0 };
		kv_fill(data, sizeof(data), i);
		memset(p->b.buf, 0, 512);
		CHECK_OK(kv_recv(&p->b, 0, 0, 512));
		CHECK_OK(ib_post_send(p->a.qp, &wr, NULL));
		memset(data, 0x6b, sizeof(data));
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.byte_len == len, wc.byte_len);
		CHECK_VALUE(kv_is(p->b.buf, len, i), len);
	}
	return 0;
}

const struct kv_case kv_post_cases[] = {
	{ "contexts", contexts },
	{ "contexts_srq", contexts_srq },
	{ "contexts_ud", contexts_ud },
	{ "chain_freed", chain_freed },
	{ "bad_send", bad_send },
	{ "full_send", full_send },
	{ "bad_recv", bad_recv },
	{ "bad_srq_recv", bad_srq_recv },
	{ "inline_send", inline_send },
	{}
};
