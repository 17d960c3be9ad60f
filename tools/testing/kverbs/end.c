// SPDX-License-Identifier: GPL-2.0
/* Two connected queue pairs, and the plain ways to use them. */
#include <linux/delay.h>
#include <rdma/ib_cache.h>
#include "kverbs.h"

static void on_qp_event(struct ib_event *event, void *context)
{
}

static void on_srq_event(struct ib_event *event, void *context)
{
	struct kv_end *e = context;

	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED)
		atomic_inc(&e->srq_limit_events);
}

/* The first GID of an IPv4 address. */
static int find_gid(struct kv_end *e)
{
	const struct ib_gid_attr *attr;
	bool found;
	int i;

	for (i = 0; i < e->dev->port_data[1].immutable.gid_tbl_len; i++) {
		attr = rdma_get_gid_attr(e->dev, 1, i);
		if (IS_ERR(attr))
			continue;
		found = rdma_gid_attr_network_type(attr) == RDMA_NETWORK_IPV4;
		e->gid = attr->gid;
		e->gid_index = i;
		rdma_put_gid_attr(attr);
		if (found)
			return 0;
	}
	return -ENOENT;
}

static struct ib_cq *make_cq(struct kv_end *e, const struct kv_opts *o, u32 depth)
{
	struct ib_cq_init_attr attr = { .cqe = depth, .comp_vector = o->vector };

	if (o->poll != KV_MANUAL)
		return ib_alloc_cq(e->dev, NULL, depth, o->vector, o->poll);
	return ib_create_cq(e->dev, o->handler, NULL, o->context, &attr);
}

static void free_cq(struct kv_end *e, struct ib_cq *cq)
{
	if (IS_ERR_OR_NULL(cq))
		return;
	if (e->poll != KV_MANUAL)
		ib_free_cq(cq);
	else
		ib_destroy_cq(cq);
}

static void close_end(struct kv_end *e)
{
	if (!IS_ERR_OR_NULL(e->qp))
		ib_destroy_qp(e->qp);
	if (!IS_ERR_OR_NULL(e->srq))
		ib_destroy_srq(e->srq);
	free_cq(e, e->scq);
	free_cq(e, e->rcq);
	if (e->dma)
		ib_dma_unmap_single(e->dev, e->dma, KV_BUF, DMA_BIDIRECTIONAL);
	if (!IS_ERR_OR_NULL(e->pd))
		ib_dealloc_pd(e->pd);
	free_pages((unsigned long)e->buf, get_order(KV_BUF));
}

static int open_end(struct kv_end *e, struct ib_device *dev, const struct kv_opts *o)
{
	u32 depth = o->depth ?: 64;
	struct ib_qp_init_attr init = {
		.event_handler = on_qp_event,
		.qp_context = e,
		.cap = { .max_send_wr = depth, .max_recv_wr = o->srq ? 0 : depth, .max_send_sge = o->sge ?: 4,
			 .max_recv_sge = o->srq ? 0 : o->sge ?: 4, .max_inline_data = o->inline_data },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = o->type ?: IB_QPT_RC,
	};
	struct ib_srq_init_attr srq = {
		.event_handler = on_srq_event,
		.srq_context = e,
		.attr = { .max_wr = depth, .max_sge = o->sge ?: 4 },
	};

	e->dev = dev;
	e->poll = o->poll;
	CHECK_OK(find_gid(e));
	e->buf = (u8 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, get_order(KV_BUF));
	CHECK(e->buf);
	e->dma = ib_dma_map_single(dev, e->buf, KV_BUF, DMA_BIDIRECTIONAL);
	CHECK_OK(ib_dma_mapping_error(dev, e->dma));
	/* All memory, for peers too; the core warns of the flag only by its name. */
	e->pd = ib_alloc_pd(dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	CHECK_OK(PTR_ERR_OR_ZERO(e->pd));
	/* Room for the completions of a drain as well. */
	e->scq = make_cq(e, o, 2 * depth + 8);
	CHECK_OK(PTR_ERR_OR_ZERO(e->scq));
	e->rcq = make_cq(e, o, 2 * depth + 8);
	CHECK_OK(PTR_ERR_OR_ZERO(e->rcq));
	if (o->srq) {
		e->srq = ib_create_srq(e->pd, &srq);
		CHECK_OK(PTR_ERR_OR_ZERO(e->srq));
	}
	init.send_cq = e->scq;
	init.recv_cq = e->rcq;
	init.srq = e->srq;
	e->qp = ib_create_qp(e->pd, &init);
	CHECK_OK(PTR_ERR_OR_ZERO(e->qp));
	CHECK(init.cap.max_inline_data >= o->inline_data);
	return 0;
}

int kv_to_init(struct kv_end *e)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qkey = KV_QKEY,
		.qp_access_flags = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC,
	};
	bool ud = e->qp->qp_type == IB_QPT_UD;

	if (e->qp->qp_type == IB_QPT_UC)
		attr.qp_access_flags = IB_ACCESS_REMOTE_WRITE;
	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			    (ud ? IB_QP_QKEY : IB_QP_ACCESS_FLAGS));
}

void kv_ah_attr(const struct kv_end *e, const struct kv_end *peer, struct rdma_ah_attr *attr)
{
	union ib_gid dgid = peer->gid;

	memset(attr, 0, sizeof(*attr));
	attr->type = rdma_ah_find_type(e->dev, 1);
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_grh(attr, &dgid, 0, e->gid_index, 64, 0);
}

int kv_to_rts(struct kv_end *e, const struct kv_end *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = peer->qp->qp_num & 0xffffff,
		.max_dest_rd_atomic = 8,
		.min_rnr_timer = 1,
	};
	bool rc = e->qp->qp_type == IB_QPT_RC, ud = e->qp->qp_type == IB_QPT_UD;
	int ret;

	kv_ah_attr(e, peer, &attr.ah_attr);
	ret = ib_modify_qp(e->qp, &attr, ud ? IB_QP_STATE :
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   (rc ? IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER : 0));
	if (ret)
		return ret;
	attr = (struct ib_qp_attr){
		.qp_state = IB_QPS_RTS,
		.sq_psn = e->qp->qp_num & 0xffffff,
		.timeout = 17,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 8,
	};
	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN |
			    (rc ? IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_MAX_QP_RD_ATOMIC : 0));
}

int kv_to_error(struct kv_end *e)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE);
}

int kv_open(struct kv_pair *p, struct ib_device *a, struct ib_device *b, const struct kv_opts *opts)
{
	CHECK_OK(open_end(&p->a, a, opts) ?: open_end(&p->b, b, opts));
	CHECK_OK(kv_to_init(&p->a) ?: kv_to_init(&p->b));
	CHECK_OK(kv_to_rts(&p->a, &p->b) ?: kv_to_rts(&p->b, &p->a));
	return 0;
}

void kv_close(struct kv_pair *p)
{
	close_end(&p->a);
	close_end(&p->b);
}

struct kv_pair *kv_pair(struct ib_device *a, struct ib_device *b, const struct kv_opts *opts)
{
	struct kv_pair *p __free(kv_pair) = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p || kv_open(p, a, b, opts))
		return NULL;
	return_ptr(p);
}

int kv_send(struct kv_end *e, u64 wr_id, size_t at, u32 len, int flags)
{
	struct ib_sge sge = { .addr = e->dma + at, .length = len, .lkey = e->pd->local_dma_lkey };
	struct ib_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND, .send_flags = flags,
	};

	return ib_post_send(e->qp, &wr, NULL);
}

int kv_recv(struct kv_end *e, u64 wr_id, size_t at, u32 len)
{
	struct ib_sge sge = { .addr = e->dma + at, .length = len, .lkey = e->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };

	return e->srq ? ib_post_srq_recv(e->srq, &wr, NULL) : ib_post_recv(e->qp, &wr, NULL);
}

int kv_rdma(struct kv_end *e, enum ib_wr_opcode op, u64 wr_id, size_t at, u32 len, u64 remote, u32 rkey)
{
	struct ib_sge sge = { .addr = e->dma + at, .length = len, .lkey = e->pd->local_dma_lkey };
	struct ib_rdma_wr wr = {
		.wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IB_SEND_SIGNALED },
		.remote_addr = remote,
		.rkey = rkey,
	};

	return ib_post_send(e->qp, &wr.wr, NULL);
}

int kv_poll(struct ib_cq *cq, struct ib_wc *wc, int n, unsigned int ms)
{
	unsigned long end = jiffies + msecs_to_jiffies(ms);
	int have = 0, got;

	for (;;) {
		bool late = time_after(jiffies, end);

		got = ib_poll_cq(cq, n - have, wc + have);
		if (got > 0)
			have += got;
		if (have == n || late || got < 0)
			return have;
		usleep_range(100, 200);
	}
}

int kv_poll_one(struct ib_cq *cq, struct ib_wc *wc)
{
	return kv_poll(cq, wc, 1, KV_MS) == 1 ? wc->status : -ETIMEDOUT;
}

bool kv_wait(atomic_t *counter, int value)
{
	unsigned long end = jiffies + msecs_to_jiffies(KV_MS);

	while (atomic_read(counter) < value) {
		if (time_after(jiffies, end))
			return false;
		usleep_range(100, 200);
	}
	return atomic_read(counter) == value;
}

void kv_fill(void *buf, size_t len, u8 seed)
{
	u8 *b = buf;
	size_t i;

	for (i = 0; i < len; i++)
		b[i] = seed + i * 7 + (i >> 8);
}

bool kv_is(const void *buf, size_t len, u8 seed)
{
	const u8 *b = buf;
	size_t i;

	for (i = 0; i < len; i++)
		if (b[i] != (u8)(seed + i * 7 + (i >> 8)))
			return false;
	return true;
}
