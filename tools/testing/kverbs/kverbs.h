/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel verbs as their users call them, on two devices that reach each other. A case returns 0, or fails at the first
 * CHECK() that does not hold.
 */
#ifndef KVERBS_H
#define KVERBS_H

#include <linux/dma-mapping.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#define KV_QKEY		0x11223344
#define KV_BUF		SZ_64K
#define KV_MS		20000	/* for what must come */
#define KV_QUIET_MS	50	/* for what must not */
#define KV_MANUAL	(-1)	/* instead of a poll context: the case polls */

/* What an end is made of; zero means the usual. */
struct kv_opts {
	enum ib_qp_type type;		/* default RC */
	int poll;			/* enum ib_poll_context, or KV_MANUAL (with `handler`, if there is one) */
	ib_comp_handler handler;
	void *context;
	u32 depth, sge, inline_data;	/* 64, 4, 0 */
	int vector;
	bool srq;
};

/* A queue pair with all that it needs. */
struct kv_end {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *scq, *rcq;
	struct ib_srq *srq;
	struct ib_qp *qp;
	int poll;
	int gid_index;
	union ib_gid gid;
	u8 *buf;			/* KV_BUF bytes, one piece */
	u64 dma;
	atomic_t srq_limit_events;
};

struct kv_pair {
	struct kv_end a, b;
};

struct kv_case {
	const char *name;
	int (*run)(struct ib_device *a, struct ib_device *b);
};

extern const struct kv_case kv_post_cases[], kv_cq_cases[], kv_memory_cases[], kv_object_cases[], kv_operation_cases[];

/* Notes where and why a case failed; returns what the case returns then. */
int kv_failed(const char *file, int line, const char *what, long value);
/* More to say of a case that is well. */
void kv_note(const char *fmt, ...) __printf(1, 2);

#define CHECK_VALUE(cond, value)						\
	do {									\
		if (!(cond))							\
			return kv_failed(__FILE__, __LINE__, #cond, (long)(value));	\
	} while (0)
#define CHECK(cond) CHECK_VALUE(cond, 0)
#define CHECK_OK(call)								\
	do {									\
		long ret_ = (call);						\
		CHECK_VALUE(ret_ == 0 && #call, ret_);				\
	} while (0)

int kv_open(struct kv_pair *p, struct ib_device *a, struct ib_device *b, const struct kv_opts *opts);
void kv_close(struct kv_pair *p);
DEFINE_FREE(kv_pair, struct kv_pair *, if (_T) { kv_close(_T); kfree(_T); })
/* An opened pair, or NULL; it is closed when the variable goes. */
struct kv_pair *kv_pair(struct ib_device *a, struct ib_device *b, const struct kv_opts *opts);

int kv_to_init(struct kv_end *e);
int kv_to_rts(struct kv_end *e, const struct kv_end *peer);
int kv_to_error(struct kv_end *e);
void kv_ah_attr(const struct kv_end *e, const struct kv_end *peer, struct rdma_ah_attr *attr);

/* One request of one piece of the end's buffer. */
int kv_send(struct kv_end *e, u64 wr_id, size_t at, u32 len, int flags);
int kv_recv(struct kv_end *e, u64 wr_id, size_t at, u32 len);
int kv_rdma(struct kv_end *e, enum ib_wr_opcode op, u64 wr_id, size_t at, u32 len, u64 remote, u32 rkey);
/* Polls until n completions are there; how many there were when the time was over. */
int kv_poll(struct ib_cq *cq, struct ib_wc *wc, int n, unsigned int ms);
/* One completion; its status, or -ETIMEDOUT. */
int kv_poll_one(struct ib_cq *cq, struct ib_wc *wc);
bool kv_wait(atomic_t *counter, int value);

void kv_fill(void *buf, size_t len, u8 seed);
bool kv_is(const void *buf, size_t len, u8 seed);

DEFINE_FREE(kv_ah, struct ib_ah *, if (!IS_ERR_OR_NULL(_T)) rdma_destroy_ah(_T, RDMA_DESTROY_AH_SLEEPABLE))
DEFINE_FREE(kv_mr, struct ib_mr *, if (!IS_ERR_OR_NULL(_T)) ib_dereg_mr(_T))

#endif
