// SPDX-License-Identifier: GPL-2.0
//! How anything happens to a QP: under its lock, and what becomes due by it without.

use super::{
    company::GATHER_NS,
    inbound::Inbound,
    now,
    transmit::Turn,
    world::{
        Effects,
        World, //
    },
    Core,
    Io,
    QueuePair,
    State, //
};
use kernel::sync::rcu;
use rdma::sync::SpinLockBhGuard;
use roce::{
    qp::state::QpState,
    types::{
        Instant,
        Qpn, //
    }, //
};

/// A locked QP, for an action of many steps.
pub(super) struct Steps<'a> {
    qp: &'a QueuePair,
    pub(super) core: &'a mut Core,
    pub(super) io: &'a mut Io,
    rcu: &'a rcu::Guard,
    effects: &'a mut Effects,
    /// Nothing has happened but that more was posted, which may wait for company.
    pub(super) gather: bool,
    /// What becomes due is sent by a later call.
    pub(super) defers: bool,
}

impl Steps<'_> {
    /// Whether what has become due is to be delivered before the next packet is handled.
    pub(super) fn is_full(&self) -> bool {
        self.effects.is_full()
    }

    /// What the next step works on; `inbound` is the packet at hand, if any.
    pub(super) fn next<'s>(
        &'s mut self,
        inbound: Option<&'s Inbound<'s>>,
    ) -> (&'s mut Core, World<'s>) {
        let world = World::new(self.qp, self.io, self.rcu, inbound, self.effects);
        (self.core, world)
    }
}

impl QueuePair {
    /// Does `action` under the lock, then sends and reports whatever became due by it; at most about
    /// `budget` packets, the rest from the work item. `None` if the QP is gone.
    ///
    /// Completion and event handlers run first, so a handler does not wait for packets to leave.
    ///
    /// # Context
    ///
    /// Process or softirq context with interrupts on and no lock held.
    pub(super) fn drive<T>(
        &self,
        budget: u32,
        action: impl FnOnce(&mut Core, &mut World<'_>) -> T,
    ) -> Option<T> {
        self.drive_steps(budget, |steps| {
            let (core, mut world) = steps.next(None);
            action(core, &mut world)
        })
    }

    /// As [`Self::drive`], for an action of many steps, each about a packet of its own.
    pub(super) fn drive_steps<T>(
        &self,
        budget: u32,
        action: impl FnOnce(&mut Steps<'_>) -> T,
    ) -> Option<T> {
        let (result, next) = self.act(budget, action)?;
        if let Some(next) = next {
            self.follow(next, budget);
        }
        Some(result)
    }

    /// As [`Self::drive_steps`], but returns the QP of this device that was handed packets as well, if one
    /// was: [`Self::follow`] is to be called for it.
    pub(super) fn act<T>(
        &self,
        budget: u32,
        action: impl FnOnce(&mut Steps<'_>) -> T,
    ) -> Option<(T, Option<Qpn>)> {
        let mut effects = Effects::default();
        let rcu = rcu::read_lock();
        let mut guard = self.state.lock();
        let State { core, io } = &mut *guard;
        if io.dead {
            return None;
        }
        let mut steps = Steps {
            qp: self,
            core,
            io,
            rcu: &rcu,
            effects: &mut effects,
            gather: false,
            defers: false,
        };
        let result = action(&mut steps);
        if steps.gather {
            // Nothing else has become due.
            let Instant(until) = now().after(GATHER_NS);
            self.timer.start_at(until);
            return Some((result, None));
        }
        let defers = steps.defers;
        let mut next = None;
        let (core, mut world) = steps.next(None);
        world.publish(core);
        // Whoever has the turn looks again before it ends it.
        if !defers && self.is_due(core, &world) && self.sender.take() {
            next = self.transmit(guard, rcu, effects, budget);
        } else {
            world.settle(core);
            drop(guard);
            drop(rcu);
            effects.deliver(self);
        }
        Some((result, next))
    }

    /// Whether a turn of transmission would find something to do.
    fn is_due(&self, core: &Core, world: &World<'_>) -> bool {
        !core.is_idle()
            || world.can_fetch(core)
            || matches!(core.state(), QpState::Err | QpState::Sqe)
    }

    /// Takes the turn to transmit, and keeps it as long as there is something to be sent; `effects`
    /// have become due before. Returns the QP of this device that was handed packets, if one was.
    // Not inlined: most calls of `drive_steps` have nothing to send, and do without the room for it.
    #[inline(never)]
    fn transmit<'a>(
        &'a self,
        mut guard: SpinLockBhGuard<'a, State>,
        mut rcu: rcu::Guard,
        mut effects: Effects,
        budget: u32,
    ) -> Option<Qpn> {
        let mut turn = Turn::new();
        let mut sent = 0u32;
        let mut next = None;
        loop {
            let State { core, io } = &mut *guard;
            let mut world = World::new(self, io, &rcu, None, &mut effects);
            if sent == 0 || self.is_due(core, &world) {
                self.fill(core, &mut world, &mut turn, budget);
            } else {
                turn.clear();
            }
            self.sender.keep(!turn.is_empty());
            drop(guard);
            drop(rcu);
            effects.deliver(self);
            if turn.is_empty() {
                break;
            }
            let outcome = turn.send(self);
            next = turn.handed_to().or(next);
            let is_all = turn.is_all() && outcome.stopped.is_none() && self.kind.is_reliable();
            if is_all && self.sender.end() {
                break;
            }
            sent = sent.saturating_add(outcome.sent).saturating_add(1);
            effects = Effects::default();
            rcu = rcu::read_lock();
            guard = self.state.lock();
            let State { core, io } = &mut *guard;
            if outcome.stopped.is_some() {
                turn.report(core, io, &outcome, now());
            }
            if io.dead || sent >= budget {
                self.sender.keep(false);
                drop(guard);
                self.work.queue();
                break;
            }
        }
        next
    }

    /// Brings in posted WQEs, flushes if the QP is in error, and builds packets for one turn.
    fn fill(&self, core: &mut Core, world: &mut World<'_>, turn: &mut Turn, budget: u32) {
        turn.clear();
        // Whoever comes here has the turn, and what it built before is out.
        core.transmitted(world);
        if self.kind.is_datagram() {
            core.set_port_mtu(self.port.mtu());
        }
        let io = &mut *world.io;
        io.company.is_over(|| io.sends.waiting());
        world.fetch(core);
        if matches!(core.state(), QpState::Err | QpState::Sqe) {
            // Bounded: a process that keeps posting must not keep us here.
            if core.flush(now(), world, budget) || world.can_fetch(core) {
                self.work.queue();
            }
        }
        let now = now();
        turn.build(core, world, now);
        if !self.kind.is_reliable() && !turn.is_empty() {
            world.io.company.sent(now);
        }
        world.settle(core);
    }
}
