// SPDX-License-Identifier: GPL-2.0
/* What there is beside plain sends, reads and writes: atomics, immediate data, fences. */
#include <linux/scatterlist.h>
#include "kverbs.h"

#define ALL	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)

/* Posts it; the status of its completion, or a negative errno. */
static int done(struct kv_end *e, struct ib_send_wr *wr, struct ib_wc *wc)
{
	int ret;

	wr->send_flags |= IB_SEND_SIGNALED;
	ret = ib_post_send(e->qp, wr, NULL);
	return ret ?: kv_poll_one(e->scq, wc);
}

/* A region for all accesses of the first page of the end's buffer; its address is the buffer's. */
static int open_page(struct kv_end *e, struct ib_mr *mr)
{
	struct ib_reg_wr wr = { .wr = { .opcode = IB_WR_REG_MR }, .mr = mr, .key = mr->rkey, .access = ALL };
	struct scatterlist sg;
	struct ib_wc wc;

	sg_init_one(&sg, e->buf, PAGE_SIZE);
	CHECK(ib_dma_map_sg(e->dev, &sg, 1, DMA_BIDIRECTIONAL) == 1);
	CHECK(ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE) == 1);
	return done(e, &wr.wr, &wc);
}

/* The result takes 8 bytes, whatever the room for it; less is an error. */
static int atomics(struct ib_device *da, struct ib_device *db)
{
	static const u32 rooms[] = { 8, 9, 16, 4096 };
	struct kv_opts opts = { .poll = KV_MANUAL };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_mr *mr __free(kv_mr) = p ? ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, 1) : NULL;
	struct ib_sge sge;
	struct ib_atomic_wr wr = { .wr = { .sg_list = &sge, .num_sge = 1 } };
	u64 *here, *there;
	struct ib_wc wc;
	int i;

	if (!p || IS_ERR_OR_NULL(mr))
		return -EPROTO;
	CHECK_OK(open_page(&p->b, mr));
	here = (u64 *)(p->a.buf + 128);
	there = (u64 *)(p->b.buf + 64);
	wr.remote_addr = mr->iova + 64;
	wr.rkey = mr->rkey;
	for (i = 0; i < ARRAY_SIZE(rooms); i++) {
		sge = (struct ib_sge){ p->a.dma + 128, rooms[i], p->a.pd->local_dma_lkey };
		*there = 100;
		here[1] = 1234;
		wr.wr.opcode = IB_WR_ATOMIC_FETCH_AND_ADD;
		wr.compare_add = 5;
		CHECK_OK(done(&p->a, &wr.wr, &wc));
		CHECK_VALUE(wc.opcode == IB_WC_FETCH_ADD, wc.opcode);
		CHECK_VALUE(*there == 105 && here[0] == 100, here[0]);
		wr.wr.opcode = IB_WR_ATOMIC_CMP_AND_SWP;
		wr.compare_add = 105;
		wr.swap = 7;
		CHECK_OK(done(&p->a, &wr.wr, &wc));
		CHECK_VALUE(wc.opcode == IB_WC_COMP_SWAP, wc.opcode);
		CHECK_VALUE(*there == 7 && here[0] == 105, here[0]);
		wr.swap = 8;
		CHECK_OK(done(&p->a, &wr.wr, &wc));
		CHECK_VALUE(*there == 7 && here[0] == 7, here[0]);
		CHECK_VALUE(here[1] == 1234, here[1]);
	}
	sge.length = 4;
	CHECK(done(&p->a, &wr.wr, &wc) == IB_WC_LOC_LEN_ERR);
	CHECK(*there == 7);
	return 0;
}

/* 8 bytes at once, from memory or inline; on a connection that is not reliable there is no such thing. */
static int atomic_write(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .inline_data = 16 };
	struct kv_opts unreliable = { .poll = KV_MANUAL, .type = IB_QPT_UC };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct kv_pair *q __free(kv_pair) = kv_pair(da, db, &unreliable);
	struct ib_mr *mr __free(kv_mr) = p ? ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, 1) : NULL;
	u64 word = 0x1122334455667788, *there;
	struct ib_sge sge;
	struct ib_rdma_wr wr = { .wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_ATOMIC_WRITE } };
	struct ib_wc wc;

	if (!p || !q || IS_ERR_OR_NULL(mr))
		return -EPROTO;
	CHECK_OK(open_page(&p->b, mr));
	there = (u64 *)(p->b.buf + 64);
	wr.remote_addr = mr->iova + 64;
	wr.rkey = mr->rkey;
	kv_fill(p->a.buf, 8, 5);
	sge = (struct ib_sge){ p->a.dma, 8, p->a.pd->local_dma_lkey };
	CHECK_OK(done(&p->a, &wr.wr, &wc));
	CHECK_VALUE(wc.opcode == IB_WC_ATOMIC_WRITE, wc.opcode);
	CHECK(kv_is(there, 8, 5));
	sge = (struct ib_sge){ (uintptr_t)&word, 8, 0 };
	wr.wr.send_flags = IB_SEND_INLINE;
	CHECK_OK(done(&p->a, &wr.wr, &wc));
	CHECK(*there == word);
	wr.wr.send_flags = 0;
	sge = (struct ib_sge){ q->a.dma, 8, q->a.pd->local_dma_lkey };
	CHECK(done(&q->a, &wr.wr, &wc) == -EINVAL);
	return 0;
}

static int immediate_on(struct ib_device *da, struct ib_device *db, enum ib_qp_type type)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .type = type };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_sge sge;
	struct ib_rdma_wr wr = { .wr = { .sg_list = &sge, .num_sge = 1 } };
	struct ib_wc wc;
	int i;

	if (!p)
		return -EPROTO;
	sge = (struct ib_sge){ p->a.dma, 3000, p->a.pd->local_dma_lkey };
	wr.remote_addr = p->b.dma + 8192;
	wr.rkey = p->b.pd->unsafe_global_rkey;
	for (i = 0; i < 4; i++) {
		bool write = i & 1;

		kv_fill(p->a.buf, 3000, i);
		wr.wr.opcode = write ? IB_WR_RDMA_WRITE_WITH_IMM : IB_WR_SEND_WITH_IMM;
		wr.wr.ex.imm_data = cpu_to_be32(0x12345600 + i);
		CHECK_OK(kv_recv(&p->b, i, 0, 4096));
		CHECK_OK(done(&p->a, &wr.wr, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.opcode == (write ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV), wc.opcode);
		CHECK_VALUE(wc.wc_flags & IB_WC_WITH_IMM && wc.ex.imm_data == wr.wr.ex.imm_data, wc.wc_flags);
		CHECK_VALUE(wc.wr_id == i && wc.byte_len == 3000, wc.byte_len);
		CHECK(kv_is(p->b.buf + (write ? 8192 : 0), 3000, i));
	}
	return 0;
}

static int immediate(struct ib_device *da, struct ib_device *db)
{
	return immediate_on(da, db, IB_QPT_RC) ?: immediate_on(da, db, IB_QPT_UC);
}

/* What a read brings is sent on in the same chain: the fence waits for it. */
static int fence(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_sge sge;
	struct ib_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND,
				   .send_flags = IB_SEND_SIGNALED | IB_SEND_FENCE };
	struct ib_rdma_wr read = { .wr = { .next = &send, .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_RDMA_READ } };
	struct ib_wc wc;
	int i;

	if (!p)
		return -EPROTO;
	sge = (struct ib_sge){ p->a.dma, 16384, p->a.pd->local_dma_lkey };
	read.remote_addr = p->b.dma;
	read.rkey = p->b.pd->unsafe_global_rkey;
	for (i = 0; i < 8; i++) {
		kv_fill(p->b.buf, 16384, i);
		CHECK_OK(kv_recv(&p->b, i, 32768, 16384));
		CHECK_OK(ib_post_send(p->a.qp, &read.wr, NULL));
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(kv_is(p->b.buf + 32768, 16384, i), i);
	}
	return 0;
}

const struct kv_case kv_operation_cases[] = {
	{ "atomics", atomics },
	{ "atomic_write", atomic_write },
	{ "immediate", immediate },
	{ "fence", fence },
	{}
};
