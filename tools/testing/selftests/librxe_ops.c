// SPDX-License-Identifier: GPL-2.0
/*
 * Preloaded into programs, this gives the provider librxe what it lacks and libraries of adapters have, so that programs
 * which count on it reach the driver: registering a region anew and advice about one, both of which only pass on what
 * libibverbs has for providers; and the completions of a queue pair that is reset are taken off its queues.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>

/* Exported by libibverbs for providers, declared in no header that is installed. The structs are its own business. */
struct verbs_mr;
int ibv_cmd_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
		      uint32_t count);
int ibv_cmd_rereg_mr(struct verbs_mr *mr, uint32_t flags, void *addr, size_t length, uint64_t hca_va, int access,
		     struct ibv_pd *pd, void *cmd, size_t cmd_size, void *resp, size_t resp_size);

/* The command as libibverbs writes it to the device's file: a header of eight bytes, then the kernel's struct. */
struct rereg_cmd {
	uint64_t header;
	struct ib_uverbs_rereg_mr words;
};

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *(*next)(struct ibv_device *) = dlvsym(RTLD_NEXT, "ibv_open_device", "IBVERBS_1.1");
	struct ibv_context *context = next ? next(device) : NULL;
	struct verbs_context *verbs = context ? verbs_get_ctx(context) : NULL;

	if (verbs)
		verbs->advise_mr = ibv_cmd_advise_mr;
	return context;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ib_uverbs_rereg_mr_resp resp = {};
	struct rereg_cmd cmd = {};
	int err;

	/* A struct ibv_mr is the beginning of a struct verbs_mr. */
	err = ibv_cmd_rereg_mr((struct verbs_mr *)mr, flags, addr, length, (uintptr_t)addr, access,
			       flags & IBV_REREG_MR_CHANGE_PD ? pd : NULL, &cmd, sizeof(cmd), &resp, sizeof(resp));
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_CMD;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	return 0;
}

/* Throws away what is on a queue, which may be of one queue pair only: there is no way to put something back. */
static void forget(struct ibv_cq *cq, uint32_t qp_num)
{
	struct ibv_wc wc;

	while (cq && ibv_poll_cq(cq, 1, &wc) == 1)
		if (wc.qp_num != qp_num)
			abort();
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int (*next)(struct ibv_qp *, struct ibv_qp_attr *, int) = dlvsym(RTLD_NEXT, "ibv_modify_qp", "IBVERBS_1.1");
	int err = next ? next(qp, attr, mask) : ENOSYS;

	if (!err && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET) {
		forget(qp->send_cq, qp->qp_num);
		forget(qp->recv_cq, qp->qp_num);
	}
	return err;
}
