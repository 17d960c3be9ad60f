// SPDX-License-Identifier: GPL-2.0
/* Memory: DMA addresses, and fast registration of lists of pages. */
#include <linux/scatterlist.h>
#include "kverbs.h"

#define PIECES		4

static struct kv_pair *manual_pair(struct ib_device *a, struct ib_device *b)
{
	struct kv_opts opts = { .poll = KV_MANUAL };

	return kv_pair(a, b, &opts);
}

static int signalled(struct kv_end *e, struct ib_send_wr *wr)
{
	struct ib_wc wc;
	int ret;

	wr->send_flags |= IB_SEND_SIGNALED;
	ret = ib_post_send(e->qp, wr, NULL);
	return ret ?: kv_poll_one(e->scq, &wc);
}

static int rdma(struct kv_end *e, enum ib_wr_opcode op, size_t at, u32 len, u64 remote, u32 rkey)
{
	struct ib_wc wc;

	return kv_rdma(e, op, 0, at, len, remote, rkey) ?: kv_poll_one(e->scq, &wc);
}

/* What the core's mapping functions return is what the device takes. */
static int dma(struct ib_device *da, struct ib_device *db)
{
	struct kv_pair *p __free(kv_pair) = manual_pair(da, db);
	u8 *mem __free(free_page) = (u8 *)get_zeroed_page(GFP_KERNEL);
	struct ib_sge sge[3];
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = sge, .num_sge = 3, .opcode = IB_WR_RDMA_WRITE },
	};
	struct scatterlist sg;

	if (!p || !mem)
		return -EPROTO;
	kv_fill(mem, PAGE_SIZE, 9);
	sg_init_one(&sg, mem + 2000, 1000);
	CHECK(ib_uses_virt_dma(da));
	CHECK(ib_dma_map_sg(da, &sg, 1, DMA_TO_DEVICE) == 1);
	sge[0] = (struct ib_sge){ ib_dma_map_single(da, mem, 1000, DMA_TO_DEVICE), 1000, p->a.pd->local_dma_lkey };
	sge[1] = (struct ib_sge){ ib_dma_map_page(da, virt_to_page(mem), 1000, 1000, DMA_TO_DEVICE), 1000,
				 p->a.pd->local_dma_lkey };
	sge[2] = (struct ib_sge){ sg_dma_address(&sg), sg_dma_len(&sg), p->a.pd->local_dma_lkey };
	wr.remote_addr = p->b.dma + 1;
	wr.rkey = p->b.pd->unsafe_global_rkey;
	CHECK_OK(signalled(&p->a, &wr.wr));
	CHECK(kv_is(p->b.buf + 1, 3000, 9));
	/* And back, with another key than that: refused. */
	CHECK_OK(rdma(&p->a, IB_WR_RDMA_READ, 8192, 3000, p->b.dma + 1, p->b.pd->unsafe_global_rkey));
	CHECK(kv_is(p->a.buf + 8192, 3000, 9));
	CHECK(rdma(&p->a, IB_WR_RDMA_READ, 0, 8, p->b.dma, p->b.pd->unsafe_global_rkey + 0x100) == IB_WC_REM_ACCESS_ERR);
	return 0;
}

/* Blocks of `page` bytes, from the middle of the first to the middle of the last. */
struct pieces {
	unsigned int page, count;
	size_t first, last, length;
	void *block[PIECES];
	struct scatterlist sg[PIECES];
};

static void free_pieces(struct pieces *m)
{
	unsigned int i;

	for (i = 0; i < m->count; i++)
		free_pages((unsigned long)m->block[i], get_order(m->page));
}
DEFINE_FREE(pieces, struct pieces *, if (_T) { free_pieces(_T); kfree(_T); })

static struct pieces *make_pieces(struct ib_device *dev, unsigned int page, unsigned int count)
{
	struct pieces *m = kzalloc(sizeof(*m), GFP_KERNEL);
	unsigned int i;

	if (!m)
		return NULL;
	*m = (struct pieces){ .page = page, .count = count, .first = 1233, .last = page / 2 + 77 };
	m->length = (size_t)page * count - m->first - (page - m->last);
	sg_init_table(m->sg, count);
	for (i = 0; i < count; i++) {
		size_t from = i ? 0 : m->first, to = i == count - 1 ? m->last : page;

		m->block[i] = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO | __GFP_NOFAIL, get_order(page));
		sg_set_buf(&m->sg[i], m->block[i] + from, to - from);
	}
	if (ib_dma_map_sg(dev, m->sg, count, DMA_BIDIRECTIONAL) == count)
		return m;
	free_pieces(m);
	kfree(m);
	return NULL;
}

/* Whether bytes [from, from + len) of the pieces are those of the pattern from 0 on. */
static bool pieces_are(struct pieces *m, size_t from, size_t len, u8 seed, u8 *scratch)
{
	return sg_pcopy_to_buffer(m->sg, m->count, scratch, len, from) == len && kv_is(scratch, len, seed);
}

static int reg(struct kv_end *e, struct ib_mr *mr, int access)
{
	struct ib_reg_wr wr = {
		.wr = { .opcode = IB_WR_REG_MR },
		.mr = mr,
		.key = mr->rkey,
		.access = access,
	};

	return signalled(e, &wr.wr);
}

static int local_inv(struct kv_end *e, u32 rkey)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = rkey };

	return signalled(e, &wr);
}

#define ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE)

/* Register, reach all of it and nothing beyond, `outside` being where; then the pair is good for nothing more. */
static int reg_pages(struct ib_device *da, struct ib_device *db, unsigned int page, unsigned int count, int outside)
{
	struct kv_pair *p __free(kv_pair) = manual_pair(da, db);
	struct pieces *m __free(pieces) = make_pieces(db, page, count);
	u8 *scratch __free(kvfree) = kvmalloc(KV_BUF, GFP_KERNEL);
	struct ib_mr *mr __free(kv_mr) = p ? ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, count) : NULL;
	size_t at, len;
	unsigned int offset = 0;

	if (!p || !m || !scratch)
		return -EPROTO;
	CHECK_OK(PTR_ERR_OR_ZERO(mr));
	CHECK(ib_map_mr_sg(mr, m->sg, count, &offset, page) == count);
	CHECK_VALUE(mr->length == m->length, mr->length);
	CHECK_VALUE((mr->iova & (page - 1)) == m->first, mr->iova);
	CHECK_OK(reg(&p->b, mr, ACCESS));
	/* By parts that cross the pages' borders, then all of it. */
	for (at = 0; at < m->length; at += len) {
		len = min_t(size_t, m->length - at, 5000);
		kv_fill(p->a.buf, len, at);
		CHECK_OK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, len, mr->iova + at, mr->rkey));
		CHECK_VALUE(pieces_are(m, at, len, at, scratch), at);
		if (m->length > SZ_1M)
			at += SZ_256K - 3000;
	}
	len = min_t(size_t, m->length, KV_BUF);
	at = m->length - len;
	kv_fill(p->a.buf, len, 77);
	CHECK_OK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, len, mr->iova + at, mr->rkey));
	CHECK(pieces_are(m, at, len, 77, scratch));
	memset(p->a.buf, 0, KV_BUF);
	CHECK_OK(rdma(&p->a, IB_WR_RDMA_READ, 0, len, mr->iova + at, mr->rkey));
	CHECK(kv_is(p->a.buf, len, 77));
	/* One byte too many. */
	if (outside < 0)
		CHECK(rdma(&p->a, IB_WR_RDMA_READ, 0, 8, mr->iova - 1, mr->rkey) == IB_WC_REM_ACCESS_ERR);
	else
		CHECK(rdma(&p->a, IB_WR_RDMA_READ, 0, 8, mr->iova + mr->length - 7, mr->rkey) == IB_WC_REM_ACCESS_ERR);
	return 0;
}

static int reg_page_sizes(struct ib_device *a, struct ib_device *b)
{
	static const struct { unsigned int page, count; } sizes[] = {
		{ SZ_4K, 1 }, { SZ_4K, 4 }, { SZ_8K, 3 }, { SZ_64K, 2 }, { SZ_2M, 2 },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		if (reg_pages(a, b, sizes[i].page, sizes[i].count, -1) || reg_pages(a, b, sizes[i].page, sizes[i].count, 1))
			return -EPROTO;
	return 0;
}

/* The core says how far a list goes; what it left out is not reachable. */
static int reg_lists(struct ib_device *da, struct ib_device *db)
{
	struct kv_pair *p __free(kv_pair) = manual_pair(da, db);
	struct pieces *m __free(pieces) = make_pieces(db, SZ_4K, 4);
	u8 *scratch __free(kvfree) = kvmalloc(KV_BUF, GFP_KERNEL);
	struct ib_mr *mr __free(kv_mr) = p ? ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, 3) : NULL;
	unsigned int offset = 100;

	if (!p || !m || !scratch)
		return -EPROTO;
	CHECK_OK(PTR_ERR_OR_ZERO(mr));
	/* An offset into the first entry, and more entries than pages. */
	CHECK(ib_map_mr_sg(mr, m->sg, 4, &offset, SZ_4K) == 3);
	CHECK_VALUE(mr->length == 3 * SZ_4K - m->first - 100, mr->length);
	CHECK_OK(reg(&p->b, mr, ACCESS));
	kv_fill(p->a.buf, mr->length, 5);
	CHECK_OK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, mr->length, mr->iova, mr->rkey));
	CHECK(pieces_are(m, 100, mr->length, 5, scratch));
	CHECK_OK(local_inv(&p->b, mr->rkey));
	/* An entry that ends within a page ends the list. */
	sg_dma_len(&m->sg[1]) -= 8;
	offset = 0;
	CHECK(ib_map_mr_sg(mr, m->sg, 4, &offset, SZ_4K) == 2);
	CHECK_VALUE(mr->length == 2 * SZ_4K - m->first - 8, mr->length);
	CHECK_OK(reg(&p->b, mr, ACCESS));
	CHECK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, 8, mr->iova + mr->length - 4, mr->rkey) == IB_WC_REM_ACCESS_ERR);
	return 0;
}

/* Keys live from REG_MR until LOCAL_INV, or until the peer's SEND with invalidate; each end of it on a pair of its own. */
enum end_of_key { KEY_OLD, KEY_INVALIDATED, KEY_INVALIDATED_BY_PEER, KEY_READ_ONLY, KEY_LOCAL_ONLY, NR_ENDS };

static int reg_key(struct ib_device *da, struct ib_device *db, enum end_of_key end)
{
	struct kv_pair *p __free(kv_pair) = manual_pair(da, db);
	struct pieces *m __free(pieces) = make_pieces(db, SZ_4K, 2);
	struct ib_mr *mr __free(kv_mr) = p ? ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, 2) : NULL;
	unsigned int offset = 0;
	struct ib_send_wr inv = { .opcode = IB_WR_SEND_WITH_INV };
	struct ib_wc wc;
	u32 key;

	if (!p || !m)
		return -EPROTO;
	CHECK_OK(PTR_ERR_OR_ZERO(mr));
	CHECK(ib_map_mr_sg(mr, m->sg, 2, &offset, SZ_4K) == 2);
	key = mr->rkey;
	switch (end) {
	case KEY_OLD:
		CHECK_OK(reg(&p->b, mr, ACCESS));
		CHECK_OK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, 64, mr->iova, key));
		CHECK_OK(local_inv(&p->b, key));
		ib_update_fast_reg_key(mr, (key & 0xff) + 1);
		CHECK(mr->rkey != key);
		CHECK_OK(reg(&p->b, mr, ACCESS));
		CHECK_OK(rdma(&p->a, IB_WR_RDMA_WRITE, 0, 64, mr->iova, mr->rkey));
		break;
	case KEY_INVALIDATED:
		CHECK_OK(reg(&p->b, mr, ACCESS));
		CHECK_OK(local_inv(&p->b, key));
		break;
	case KEY_INVALIDATED_BY_PEER:
		CHECK_OK(reg(&p->b, mr, ACCESS));
		CHECK_OK(kv_recv(&p->b, 5, 0, 64));
		inv.ex.invalidate_rkey = key;
		CHECK_OK(signalled(&p->a, &inv));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.wc_flags & IB_WC_WITH_INVALIDATE, wc.wc_flags);
		CHECK_VALUE(wc.ex.invalidate_rkey == key, wc.ex.invalidate_rkey);
		break;
	case KEY_READ_ONLY:
		CHECK_OK(reg(&p->b, mr, IB_ACCESS_REMOTE_READ));
		CHECK_OK(rdma(&p->a, IB_WR_RDMA_READ, 0, 64, mr->iova, key));
		break;
	case KEY_LOCAL_ONLY:
		/* Its owner may reach and invalidate it, and register it again; the peer may not reach it. */
		CHECK_OK(reg(&p->b, mr, IB_ACCESS_LOCAL_WRITE));
		CHECK_OK(local_inv(&p->b, key));
		CHECK_OK(reg(&p->b, mr, IB_ACCESS_LOCAL_WRITE));
		break;
	case NR_ENDS:
		break;
	}
	CHECK_VALUE(rdma(&p->a, IB_WR_RDMA_WRITE, 0, 64, mr->iova, key) == IB_WC_REM_ACCESS_ERR, end);
	return 0;
}

static int reg_keys(struct ib_device *a, struct ib_device *b)
{
	enum end_of_key end;

	for (end = 0; end < NR_ENDS; end++)
		if (reg_key(a, b, end))
			return -EPROTO;
	return 0;
}

const struct kv_case kv_memory_cases[] = {
	{ "dma", dma },
	{ "reg_page_sizes", reg_page_sizes },
	{ "reg_lists", reg_lists },
	{ "reg_keys", reg_keys },
	{}
};
