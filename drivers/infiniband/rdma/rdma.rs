// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the kernel's RDMA and network stacks.

mod bindings;

pub mod crc32;
pub mod link;
pub mod mmap;
pub mod net;
pub mod shared_memory;
pub mod sync;
pub mod time;
pub mod udata;
pub mod umem;
pub mod verbs;

pub use self::sync::percpu::num_possible_cpus;

/// Prefix of the messages that this crate prints.
const __LOG_PREFIX: &[u8] = b"rdma\0";
