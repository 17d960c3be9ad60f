// SPDX-License-Identifier: GPL-2.0
//! Worlds of shared receive queues; see [`sim::workload::srq`].
//!
//! `SEED=n` and `SEEDS=n..m` as for the test `seeds`.

mod seeded;

use sim::workload::srq;

#[test]
fn each_message_arrives_once_and_no_receive_is_lost() {
    let total = seeded::run(0..500, srq::run, |sum, outcome| *sum += outcome);
    println!("{total:#?}");
    if seeded::is_usual() {
        assert!(total.received > 10_000, "few messages");
        assert!(
            total.limits > 1_000 && total.rnr > 500,
            "the queue is never short"
        );
        assert!(total.failed > 100, "few connections fail");
    }
}
