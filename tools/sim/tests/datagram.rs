// SPDX-License-Identifier: GPL-2.0
//! A thousand worlds of datagrams; see [`sim::workload::datagram`].
//!
//! `SEED=n` and `SEEDS=n..m` as for the test `seeds`.

mod seeded;

use sim::workload::datagram;

#[test]
fn what_arrives_and_fits_is_received_once() {
    let total = seeded::run(0..1000, datagram::run, |sum, outcome| *sum += outcome);
    println!("{total:#?}");
    if seeded::is_usual() {
        assert!(total.received > total.sent / 2, "few datagrams arrive");
        assert!(total.copies > 200, "few copies");
        assert!(total.no_receive > 2_000, "receives never lack");
        assert!(total.wrong_qkey > 500, "few wrong keys");
        assert!(total.failed > 1_000 && total.flushed > 1_000, "few errors");
    }
}
