// SPDX-License-Identifier: GPL-2.0
//! How the requester fails: a WQE completes with an error when all before it are complete, and the QP
//! goes into ERR, where the rest is flushed.

use crate::{
    cqe::WcStatus,
    env::Env,
    qp::Failure,
    requester::Requester,
    run::Run,
    wqe::SendWqe, //
};
use core::ops::DerefMut;

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    /// Fails the next WQE, which has an error, if all before it are complete.
    pub(crate) fn fail_if_first<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        if self.next != self.head {
            return Ok(());
        }
        match self.wqe(self.head).and_then(|wqe| wqe.error) {
            Some(status) if self.head != self.tail => Err(self.fail(status, env)),
            Some(_) | None => Ok(()),
        }
    }

    /// Completes the WQE at the head with an error.
    pub(crate) fn fail<E: Env + ?Sized>(&mut self, status: WcStatus, env: &mut E) -> Failure {
        match self.complete_head(status, env) {
            Ok(()) => Failure::Completed,
            Err(failure) => failure,
        }
    }

    /// The payload of packet `index` of a run could not be read.
    pub(crate) fn payload_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        index: u32,
        env: &mut E,
    ) -> Result<(), Failure> {
        let Some(number) = self.unsend(run, index) else {
            return Ok(());
        };
        if let Some(wqe) = self.wqe_mut(number) {
            wqe.error = Some(WcStatus::LocProtErr);
        }
        self.fail_if_first(env)
    }

    /// Completes up to `max` WQEs with a flush error. Returns how many.
    pub(crate) fn flush<E: Env + ?Sized>(&mut self, env: &mut E, max: u32) -> u32 {
        let mut count = 0u32;
        while count < max && self.head != self.tail {
            // A CQ that overflows now has nobody left to tell.
            let _ = self.complete_head(WcStatus::WrFlushErr, env);
            count = count.wrapping_add(1);
        }
        count
    }
}
