// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-buf.h>
#include <linux/highmem.h>
#include <linux/hmm.h>
#include <linux/iosys-map.h>
#include <linux/libnvdimm.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mmu_notifier.h>
#include <linux/netdevice.h>
#include <linux/pagemap.h>
#include <linux/scatterlist.h>
#include <linux/shmem_fs.h>
#include <linux/uaccess.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

struct ib_device *rust_helper_ib_alloc_device_for(size_t size, struct net_device *ndev)
{
	return _ib_alloc_device(size, dev_net(ndev));
}

bool rust_helper_ib_device_try_get(struct ib_device *dev)
{
	return ib_device_try_get(dev);
}

void rust_helper_ib_device_put(struct ib_device *dev)
{
	ib_device_put(dev);
}

struct ib_device *rust_helper_rdma_device_to_ibdev(struct device *dev)
{
	return rdma_device_to_ibdev(dev);
}

bool rust_helper_netdev_is_registered(const struct net_device *dev)
{
	return READ_ONCE(dev->reg_state) == NETREG_REGISTERED;
}

void rust_helper_rdma_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

const char *rust_helper_rdma_netdev_name(const struct net_device *dev)
{
	return netdev_name(dev);
}

int rust_helper_rdma_netdev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

enum rdma_network_type rust_helper_rdma_gid_attr_network_type(const struct ib_gid_attr *attr)
{
	return rdma_gid_attr_network_type(attr);
}

struct ib_umem *rust_helper_ib_umem_get_va(struct ib_device *device, unsigned long addr,
					   size_t size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}

size_t rust_helper_ib_umem_num_pages(struct ib_umem *umem)
{
	return ib_umem_num_pages(umem);
}

struct page *rust_helper_sg_page_iter_page(struct sg_page_iter *iter)
{
	return sg_page_iter_page(iter);
}

struct ib_udata *rust_helper_uverbs_driver_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

struct ib_ucontext *rust_helper_rdma_udata_to_ucontext(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata)->context;
}

MODULE_IMPORT_NS("DMA_BUF");

size_t rust_helper_dma_buf_size(const struct dma_buf *buf)
{
	return buf->size;
}

bool rust_helper_dma_buf_is_writable(const struct dma_buf *buf)
{
	return buf->file->f_mode & FMODE_WRITE;
}

int rust_helper_dma_buf_begin_access(struct dma_buf *buf)
{
	return dma_buf_begin_cpu_access(buf, DMA_BIDIRECTIONAL);
}

void rust_helper_dma_buf_end_access(struct dma_buf *buf)
{
	dma_buf_end_cpu_access(buf, DMA_BIDIRECTIONAL);
}

void rust_helper_iosys_map_read(void *dst, const struct iosys_map *map, size_t offset, size_t len)
{
	iosys_map_memcpy_from(dst, map, offset, len);
}

void rust_helper_iosys_map_write(const struct iosys_map *map, size_t offset, const void *src, size_t len)
{
	struct iosys_map dst = *map;

	iosys_map_memcpy_to(&dst, offset, src, len);
}

/* Null for the memory of a device. */
u64 *rust_helper_iosys_map_word(const struct iosys_map *map, size_t offset)
{
	return map->is_iomem ? NULL : map->vaddr + offset;
}

void rust_helper_mmu_interval_set_seq(struct mmu_interval_notifier *sub, unsigned long seq)
{
	mmu_interval_set_seq(sub, seq);
}

bool rust_helper_mmu_interval_read_retry(struct mmu_interval_notifier *sub, unsigned long seq)
{
	return mmu_interval_read_retry(sub, seq);
}

struct page *rust_helper_hmm_pfn_to_page(unsigned long pfn)
{
	return hmm_pfn_to_page(pfn);
}

/* Faults in [start, end); the same flags for all pages. */
int rust_helper_hmm_fault(struct mmu_interval_notifier *sub, unsigned long start, unsigned long end,
			  unsigned long *pfns, unsigned long flags, unsigned long *seq)
{
	struct hmm_range range = {
		.notifier = sub,
		.start = start,
		.end = end,
		.hmm_pfns = pfns,
		.default_flags = flags,
	};
	int ret = hmm_range_fault_unlocked_timeout(&range, msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT));

	*seq = range.notifier_seq;
	return ret;
}

void rust_helper_set_compound_page_dirty(struct page *page)
{
	set_page_dirty(compound_head(page));
}

bool rust_helper_virt_addr_valid(unsigned long addr)
{
	return virt_addr_valid((void *)addr);
}

struct file *rust_helper_rdma_shmem_file(loff_t size)
{
	struct file *file = shmem_file_setup("uverbs", size, mk_vma_flags(VMA_NORESERVE_BIT));

	if (!IS_ERR(file)) {
		/* In the direct map, where it stays, and never swapped out. */
		mapping_set_gfp_mask(file->f_mapping, GFP_KERNEL);
		mapping_set_unevictable(file->f_mapping);
	}
	return file;
}

/* The address of a page, with a reference; makes it, and may sleep. NULL without memory. */
void *rust_helper_rdma_shmem_new_page(struct file *file, pgoff_t index)
{
	struct page *page = shmem_read_mapping_page(file->f_mapping, index);

	if (IS_ERR(page))
		return NULL;
	set_page_dirty(page);
	return page_address(page);
}

/* The address of a page, with a reference; NULL if it is not there, or not zeroed yet. Any context. */
void *rust_helper_rdma_shmem_page(struct file *file, pgoff_t index)
{
	struct page *page = find_get_page(file->f_mapping, index);

	if (!page)
		return NULL;
	if (!PageUptodate(page)) {
		put_page(page);
		return NULL;
	}
	return page_address(page);
}

void rust_helper_rdma_put_direct_page(void *address)
{
	put_page(virt_to_page(address));
}

int rust_helper_rdma_shmem_mmap(struct vm_area_struct *vma, struct file *file, size_t len)
{
	int ret;

	if (vma->vm_end - vma->vm_start > len)
		return -EINVAL;
	vma->vm_pgoff = 0;
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	ret = vfs_mmap(file, vma);
	if (!ret)
		vma_set_file(vma, file);
	return ret;
}

/*
 * Out of line, so that the compiler of the Rust side cannot look through it: for memory that others change. Long pieces as
 * the kernel copies from and to programs: with string instructions, where memcpy() has them on the newest processors only.
 */
void rust_helper_copy_opaque(void *dst, const void *src, size_t len)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_UML) && !defined(CONFIG_KASAN) && !defined(CONFIG_KMSAN) && !defined(CONFIG_KCSAN)
	if (len >= 256) {
		size_t left = copy_user_generic(dst, src, len);

		/* Only what is not mapped is left over: nobody shall see what was there before. */
		if (WARN_ON_ONCE(left))
			memset(dst + len - left, 0, left);
		return;
	}
#endif
	memcpy(dst, src, len);
}

phys_addr_t rust_helper_page_to_phys(struct page *page)
{
	return page_to_phys(page);
}

void rust_helper_pmem_write_back(void *addr, size_t size)
{
	arch_wb_cache_pmem(addr, size);
	pmem_wmb();
}
