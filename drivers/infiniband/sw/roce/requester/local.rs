// SPDX-License-Identifier: GPL-2.0
//! Local operations: WQEs that take no packet.
//!
//! One is carried out when it is started, which happens once and in order, and complete when all
//! before it is; when the requester goes back it is passed over. An invalidation starts when all before
//! it is complete: what is sent again may need the key.

#[cfg(test)]
mod tests;

use crate::{
    cqe::WcStatus,
    env::Env,
    qp::Failure,
    requester::Requester,
    wqe::{
        LocalOp,
        SendWqe, //
    }, //
};
use core::ops::DerefMut;

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    //= IBA 10.8.3.3
    /// Carries out the next WQE, if it may be done now.
    pub(super) fn start_local<E: Env + ?Sized>(
        &mut self,
        op: LocalOp,
        env: &mut E,
    ) -> Result<bool, Failure> {
        if op == LocalOp::Invalidate && self.next != self.head {
            return Ok(false);
        }
        let done = env.local(self.slot(self.next), op);
        let first_psn = self.unassigned;
        let Some(wqe) = self.wqe_mut(self.next) else {
            return Ok(false);
        };
        if done.is_err() {
            wqe.error = Some(WcStatus::MwBindErr);
            return self.fail_if_first(env).map(|()| false);
        }
        wqe.first_psn = first_psn;
        wqe.packets = 0;
        self.started = self.next.wrapping_add(1);
        Ok(true)
    }

    /// Completes local operations that were carried out and have become the oldest.
    #[inline]
    pub(super) fn complete_local<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        while self.head != self.started {
            match self.wqe(self.head) {
                Some(wqe) if wqe.packets == 0 => self.retire_head(WcStatus::Success, env)?,
                Some(_) | None => break,
            }
        }
        Ok(())
    }
}
