// SPDX-License-Identifier: GPL-2.0
/* Address handles, shared receive queues, targets of extended reliable connections, management. */
#include <rdma/ib_mad.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_pma.h>
#include "kverbs.h"

/* Made, used and destroyed with a lock held and interrupts off. */
static int ah_atomic(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .type = IB_QPT_UD };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_sge sge;
	struct ib_ud_wr wr = { .wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND,
				       .send_flags = IB_SEND_SIGNALED }, .remote_qkey = KV_QKEY };
	struct rdma_ah_attr attr;
	static DEFINE_SPINLOCK(lock);
	unsigned long flags;
	struct ib_wc wc;
	int i, ret;

	if (!p)
		return -EPROTO;
	sge = (struct ib_sge){ p->a.dma, 500, p->a.pd->local_dma_lkey };
	wr.remote_qpn = p->b.qp->qp_num;
	/* Without an address: refused. */
	CHECK(ib_post_send(p->a.qp, &wr.wr, NULL) == -EINVAL);
	for (i = 0; i < 20; i++) {
		kv_fill(p->a.buf, 500, i);
		kv_ah_attr(&p->a, &p->b, &attr);
		CHECK_OK(kv_recv(&p->b, i, 0, 540));
		spin_lock_irqsave(&lock, flags);
		wr.ah = rdma_create_ah(p->a.pd, &attr, 0);
		ret = IS_ERR(wr.ah) ? PTR_ERR(wr.ah) : ib_post_send(p->a.qp, &wr.wr, NULL);
		spin_unlock_irqrestore(&lock, flags);
		CHECK_OK(ret);
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		spin_lock_irqsave(&lock, flags);
		ret = rdma_destroy_ah_user(wr.ah, 0, NULL);
		spin_unlock_irqrestore(&lock, flags);
		CHECK_OK(ret);
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.byte_len == 540 && wc.wc_flags & IB_WC_GRH && wc.src_qp == p->a.qp->qp_num, wc.byte_len);
		CHECK(kv_is(p->b.buf + 40, 500, i));
	}
	return 0;
}

/* The GID of an address that begins with `first`. */
static int find_gid(struct kv_end *e, u8 first, union ib_gid *gid, u8 *index)
{
	const struct ib_gid_attr *attr;
	int i;

	for (i = 0; i < e->dev->port_data[1].immutable.gid_tbl_len; i++) {
		attr = rdma_get_gid_attr(e->dev, 1, i);
		if (IS_ERR(attr))
			continue;
		*gid = attr->gid;
		*index = i;
		rdma_put_gid_attr(attr);
		if (gid->raw[0] == first)
			return 0;
	}
	return -ENOENT;
}

/* From IPv4 to IPv6 and back between two sends, with interrupts off. */
static int ah_modify(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .type = IB_QPT_UD };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_ah *ah __free(kv_ah) = NULL;
	struct ib_sge sge;
	struct ib_ud_wr wr = { .wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND,
				       .send_flags = IB_SEND_SIGNALED }, .remote_qkey = KV_QKEY };
	struct rdma_ah_attr attr[2], found;
	union ib_gid to, from;
	unsigned long flags;
	struct ib_wc wc;
	u8 index;
	int i, ret;

	if (!p)
		return -EPROTO;
	kv_ah_attr(&p->a, &p->b, &attr[0]);
	CHECK_OK(find_gid(&p->b, 0xfd, &to, &index));
	CHECK_OK(find_gid(&p->a, 0xfd, &from, &index));
	attr[1] = attr[0];
	rdma_ah_set_grh(&attr[1], &to, 0, index, 64, 0);
	ah = rdma_create_ah(p->a.pd, &attr[0], RDMA_CREATE_AH_SLEEPABLE);
	CHECK_OK(PTR_ERR_OR_ZERO(ah));
	wr.ah = ah;
	wr.remote_qpn = p->b.qp->qp_num;
	sge = (struct ib_sge){ p->a.dma, 500, p->a.pd->local_dma_lkey };
	for (i = 0; i < 8; i++) {
		const struct rdma_ah_attr *now = &attr[i & 1];

		kv_fill(p->a.buf, 500, i);
		CHECK_OK(kv_recv(&p->b, i, 0, 540));
		memset(&found, 0, sizeof(found));
		local_irq_save(flags);
		ret = rdma_modify_ah(ah, &attr[i & 1]) ?: rdma_query_ah(ah, &found) ?: ib_post_send(p->a.qp, &wr.wr, NULL);
		local_irq_restore(flags);
		CHECK_OK(ret);
		CHECK(!memcmp(&found.grh.dgid, &now->grh.dgid, sizeof(union ib_gid)));
		CHECK_VALUE(found.grh.sgid_index == now->grh.sgid_index, found.grh.sgid_index);
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.byte_len == 540 && kv_is(p->b.buf + 40, 500, i), wc.byte_len);
		/* The header of IPv4 stands in the second half of the place for one. */
		CHECK_VALUE(p->b.buf[i & 1 ? 0 : 20] >> 4 == (i & 1 ? 6 : 4), i);
	}
	return 0;
}

/* A shared queue tells once that it runs low. */
static int srq_limit(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL, .srq = true };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_srq_attr attr = { .srq_limit = 4 };
	struct ib_wc wc;
	int i;

	if (!p)
		return -EPROTO;
	for (i = 0; i < 8; i++)
		CHECK_OK(kv_recv(&p->b, i, 4096 * i, 4096));
	CHECK_OK(ib_modify_srq(p->b.srq, &attr, IB_SRQ_LIMIT));
	CHECK_OK(ib_query_srq(p->b.srq, &attr));
	CHECK_VALUE(attr.srq_limit == 4, attr.srq_limit);
	for (i = 0; i < 8; i++) {
		kv_fill(p->a.buf, 4096, i);
		CHECK_OK(kv_send(&p->a, i, 0, 4096, IB_SEND_SIGNALED));
		CHECK_OK(kv_poll_one(p->a.scq, &wc));
		CHECK_OK(kv_poll_one(p->b.rcq, &wc));
		CHECK_VALUE(wc.wr_id == i && kv_is(p->b.buf + 4096 * i, 4096, i), wc.wr_id);
		if (i < 4)
			CHECK(!atomic_read(&p->b.srq_limit_events));
	}
	CHECK_VALUE(kv_wait(&p->b.srq_limit_events, 1), atomic_read(&p->b.srq_limit_events));
	return 0;
}

/* What a kernel has of extended reliable connections: domain, queue, target. */
static int xrc_target(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_qp_init_attr init = { .qp_type = IB_QPT_XRC_TGT };
	struct ib_srq_init_attr srq = { .srq_type = IB_SRQT_XRC, .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ib_recv_wr wr = {};
	struct kv_end *e, end;
	struct ib_qp_attr attr;

	if (!p)
		return -EPROTO;
	e = &p->b;
	init.xrcd = ib_alloc_xrcd_user(e->dev, NULL, NULL);
	CHECK_OK(PTR_ERR_OR_ZERO(init.xrcd));
	srq.ext.cq = e->rcq;
	srq.ext.xrc.xrcd = init.xrcd;
	end = (struct kv_end){ .dev = e->dev, .gid = e->gid, .gid_index = e->gid_index };
	end.srq = ib_create_srq(e->pd, &srq);
	CHECK_OK(PTR_ERR_OR_ZERO(end.srq));
	CHECK_OK(ib_post_srq_recv(end.srq, &wr, NULL));
	end.qp = ib_create_qp(e->pd, &init);
	CHECK_OK(PTR_ERR_OR_ZERO(end.qp));
	CHECK_OK(kv_to_init(&end));
	attr = (struct ib_qp_attr){ .qp_state = IB_QPS_RTR, .path_mtu = IB_MTU_1024, .dest_qp_num = p->a.qp->qp_num,
				    .max_dest_rd_atomic = 4, .min_rnr_timer = 1 };
	kv_ah_attr(&end, &p->a, &attr.ah_attr);
	CHECK_OK(ib_modify_qp(end.qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			      IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER));
	/* It only receives, and not from a queue of its own. */
	CHECK(kv_send(&(struct kv_end){ .qp = end.qp, .pd = e->pd, .dma = e->dma }, 0, 0, 8, 0) == -EINVAL);
	CHECK(ib_post_recv(end.qp, &wr, NULL) == -EINVAL);
	CHECK(ib_query_qp(end.qp, &attr, IB_QP_STATE, &(struct ib_qp_init_attr){}) == 0 && attr.qp_state == IB_QPS_RTR);
	CHECK_OK(ib_destroy_qp_user(end.qp, NULL));
	ib_destroy_srq(end.srq);
	CHECK_OK(ib_dealloc_xrcd_user(init.xrcd, NULL));
	return 0;
}

static int read_counters(struct ib_device *dev, __be16 what, struct ib_mad *out)
{
	struct ib_pma_mad in = { .mad_hdr = { .base_version = 1, .mgmt_class = IB_MGMT_CLASS_PERF_MGMT, .class_version = 1,
					      .method = IB_MGMT_METHOD_GET, .attr_id = what } };
	size_t size = sizeof(*out);
	u16 pkey_index = 0;

	in.data[1] = 1;	/* the port, in both kinds */
	memset(out, 0, sizeof(*out));
	return dev->ops.process_mad(dev, IB_MAD_IGNORE_ALL, 1, NULL, NULL, (struct ib_mad *)&in, out, &size, &pkey_index);
}

/* The port's counters as a management agent reads them. */
static int mad_counters(struct ib_device *da, struct ib_device *db)
{
	struct kv_opts opts = { .poll = KV_MANUAL };
	struct kv_pair *p __free(kv_pair) = kv_pair(da, db, &opts);
	struct ib_mad *mad __free(kfree) = kzalloc(sizeof(*mad), GFP_KERNEL);
	struct ib_pma_portcounters_ext *ext;
	struct ib_wc wc;
	u64 before = 0, after = 0;
	int i, round;

	if (!p || !mad)
		return -EPROTO;
	ext = (void *)((struct ib_pma_mad *)mad)->data;
	for (round = 0; round < 2; round++) {
		CHECK(read_counters(da, IB_PMA_PORT_COUNTERS_EXT, mad) & IB_MAD_RESULT_REPLY);
		CHECK(mad->mad_hdr.method == IB_MGMT_METHOD_GET_RESP && !mad->mad_hdr.status);
		before = after;
		after = be64_to_cpu(ext->port_xmit_packets);
		for (i = 0; !round && i < 10; i++) {
			CHECK_OK(kv_rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0, 2048, p->b.dma, p->b.pd->unsafe_global_rkey));
			CHECK_OK(kv_poll_one(p->a.scq, &wc));
		}
	}
	/* Two packets each. */
	CHECK_VALUE(after >= before + 20 && after < before + 60, after - before);
	CHECK(read_counters(da, IB_PMA_PORT_COUNTERS, mad) & IB_MAD_RESULT_REPLY);
	CHECK(mad->mad_hdr.method == IB_MGMT_METHOD_GET_RESP && !mad->mad_hdr.status);
	return 0;
}

const struct kv_case kv_object_cases[] = {
	{ "ah_atomic", ah_atomic },
	{ "ah_modify", ah_modify },
	{ "srq_limit", srq_limit },
	{ "xrc_target", xrc_target },
	{ "mad_counters", mad_counters },
	{}
};
