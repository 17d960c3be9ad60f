// SPDX-License-Identifier: GPL-2.0
/*
 * Cases by name, from debugfs: `echo CASE DEVICE DEVICE > kverbs/run`, then `cat kverbs/result` is "ok" and what the case
 * has to say, or where it failed. `cat kverbs/cases` lists the names.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include "kverbs.h"

static const struct kv_case *const all[] = { kv_post_cases, kv_cq_cases, kv_memory_cases, kv_object_cases, kv_operation_cases };
static struct dentry *folder;
static DEFINE_MUTEX(lock);	/* one case at a time, and no device goes meanwhile */
static LIST_HEAD(devices);
static char result[512];
static int result_len;

struct device_entry {
	struct list_head list;
	struct ib_device *dev;
};

int kv_failed(const char *file, int line, const char *what, long value)
{
	scnprintf(result, sizeof(result), "%s:%d: not so: %s (%ld)\n", kbasename(file), line, what, value);
	return -EPROTO;
}

void kv_note(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	result_len += vscnprintf(result + result_len, sizeof(result) - result_len, fmt, args);
	va_end(args);
}

static int add(struct ib_device *dev)
{
	struct device_entry *entry = kmalloc(sizeof(*entry), GFP_KERNEL);

	if (!entry)
		return -ENOMEM;
	entry->dev = dev;
	guard(mutex)(&lock);
	list_add(&entry->list, &devices);
	return 0;
}

static void remove(struct ib_device *dev, void *data)
{
	struct device_entry *entry, *next;

	guard(mutex)(&lock);
	list_for_each_entry_safe(entry, next, &devices, list)
		if (entry->dev == dev) {
			list_del(&entry->list);
			kfree(entry);
		}
}

static struct ib_client client = { .name = "kverbs", .add = add, .remove = remove };

static struct ib_device *find(const char *name)
{
	struct device_entry *entry;

	list_for_each_entry(entry, &devices, list)
		if (!strcmp(dev_name(&entry->dev->dev), name))
			return entry->dev;
	return NULL;
}

static ssize_t run_write(struct file *file, const char __user *data, size_t len, loff_t *at)
{
	char line[160], name[48], dev_a[48], dev_b[48];
	struct ib_device *a, *b;
	int i;

	if (len >= sizeof(line) || copy_from_user(line, data, len))
		return -EINVAL;
	line[len] = 0;
	if (sscanf(line, "%47s %47s %47s", name, dev_a, dev_b) != 3)
		return -EINVAL;
	guard(mutex)(&lock);
	a = find(dev_a);
	b = find(dev_b);
	if (!a || !b)
		return -ENODEV;
	for (i = 0; i < ARRAY_SIZE(all); i++) {
		const struct kv_case *c;

		for (c = all[i]; c->name; c++) {
			if (strcmp(c->name, name))
				continue;
			strscpy(result, "ok");
			result_len = 2;
			/* A case that fails has noted why. */
			return c->run(a, b) ?: len;
		}
	}
	return -ENOENT;
}

static const struct file_operations run_fops = { .owner = THIS_MODULE, .write = run_write };

static int result_show(struct seq_file *s, void *data)
{
	guard(mutex)(&lock);
	seq_puts(s, result);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(result);

static int cases_show(struct seq_file *s, void *data)
{
	const struct kv_case *c;
	int i;

	for (i = 0; i < ARRAY_SIZE(all); i++)
		for (c = all[i]; c->name; c++)
			seq_printf(s, "%s\n", c->name);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(cases);

static int __init kverbs_init(void)
{
	int ret = ib_register_client(&client);

	if (ret)
		return ret;
	folder = debugfs_create_dir("kverbs", NULL);
	debugfs_create_file("run", 0200, folder, NULL, &run_fops);
	debugfs_create_file("result", 0400, folder, NULL, &result_fops);
	debugfs_create_file("cases", 0400, folder, NULL, &cases_fops);
	return 0;
}

static void __exit kverbs_exit(void)
{
	debugfs_remove(folder);
	ib_unregister_client(&client);
}

module_init(kverbs_init);
module_exit(kverbs_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Tests of kernel verbs");
