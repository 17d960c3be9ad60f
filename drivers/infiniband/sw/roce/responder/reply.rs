// SPDX-License-Identifier: GPL-2.0
//! What the responder sends: READ responses, ACKs and NAKs.

use crate::{
    env::{
        Counter,
        Env,
        MemoryError, //
    },
    qp::{
        Context,
        Failure, //
    },
    responder::{
        nak_code,
        read::ReadSlot,
        Answer,
        Responder,
        Silence, //
    },
    run::{
        Form,
        PayloadSource,
        Role,
        Run, //
    },
    types::Psn,
    wire::{
        Aeth,
        NakCode,
        Syndrome, //
    },
};
use core::ops::DerefMut;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// The next packets to send, at most `max`.
    #[inline]
    pub(crate) fn poll(&mut self, max: u32, ctx: &Context<'_>) -> Option<Run> {
        if max == 0 {
            return None;
        }
        if !self.reads.is_idle() {
            if let Some(run) = self.poll_read(max, ctx) {
                return Some(run);
            }
        }
        self.poll_answer(ctx)
    }

    /// Packets of the READ reply whose turn it is.
    fn poll_read(&mut self, max: u32, ctx: &Context<'_>) -> Option<Run> {
        self.reads.settle();
        let mtu = ctx.attr.path_mtu;
        let reply = *self.reads.current()?;
        let count = reply.packets.saturating_sub(reply.sent).min(max);
        let source = if reply.length == 0 {
            PayloadSource::None
        } else {
            PayloadSource::Remote {
                rkey: reply.rkey,
                va: reply.va.wrapping_add(u64::from(mtu.span(reply.sent))),
            }
        };
        let form = Form::ReadResponse {
            position: reply.sent,
            packets: reply.packets,
            length: reply.length,
            aeth: Aeth {
                syndrome: Syndrome::ACK,
                msn: reply.msn,
            },
        };
        let run = self.run(reply.first.add(reply.sent), count, source, form, ctx);
        if let Some(reply) = self.reads.current() {
            reply.sent = reply.sent.wrapping_add(count);
        }
        self.reads.settle();
        Some(run)
    }

    /// The ACK or NAK.
    #[inline]
    fn poll_answer(&mut self, ctx: &Context<'_>) -> Option<Run> {
        let ack = (self.expected.sub(1), Syndrome::ACK);
        let (psn, syndrome) = match self.answer {
            Answer::None => return None,
            Answer::Ack => ack,
            // The missing packet and what came after it may have arrived meanwhile.
            Answer::Sequence { ahead } if ahead.is_before(self.expected) => ack,
            Answer::Sequence { .. } => (self.expected, Syndrome::Nak(NakCode::PsnSequence)),
            Answer::NotReady => (
                self.expected,
                Syndrome::RnrNak {
                    timer: ctx.attr.min_rnr_timer,
                },
            ),
            Answer::Refused { psn, code } => {
                self.parting = false;
                (psn, Syndrome::Nak(code))
            }
        };
        self.answer = Answer::None;
        let aeth = Aeth {
            syndrome,
            msn: self.msn,
        };
        let form = Form::Acknowledge { aeth };
        Some(self.run(psn, 1, PayloadSource::None, form, ctx))
    }

    #[inline]
    fn run(
        &self,
        psn: Psn,
        count: u32,
        source: PayloadSource,
        form: Form,
        ctx: &Context<'_>,
    ) -> Run {
        Run {
            psn,
            count,
            slot: None,
            role: Role::Responder,
            source,
            mtu: ctx.attr.path_mtu,
            dest_qp: ctx.dest_qp(),
            form,
            wqe: 0,
            sent_before: psn,
            epoch: ctx.epoch,
        }
    }

    /// Packet `index` of a run and those after it were not sent.
    pub(crate) fn unsend(&mut self, run: &Run, index: u32, ctx: &Context<'_>) {
        let psn = run.psn.add(index);
        match run.form {
            Form::ReadResponse { .. } => {
                self.reads.unsend(psn);
            }
            Form::Acknowledge { aeth } => {
                if self.answer != Answer::None {
                    return;
                }
                match aeth.syndrome {
                    Syndrome::Ack { .. } => self.answer = Answer::Ack,
                    Syndrome::RnrNak { .. } => {
                        if self.silence == Silence::NotReady {
                            self.answer = Answer::NotReady;
                        }
                    }
                    Syndrome::Nak(NakCode::PsnSequence) => match self.silence {
                        Silence::Gap { .. } => self.answer = Answer::Sequence { ahead: psn },
                        Silence::None | Silence::NotReady => {}
                    },
                    Syndrome::Nak(code) => {
                        self.answer = Answer::Refused { psn, code };
                        self.parting = !ctx.attr.state.receives();
                    }
                }
            }
            Form::Message { .. } | Form::ReadRequest { .. } | Form::Datagram { .. } => {}
        }
    }

    /// The payload of packet `index` of a READ response could not be read.
    pub(crate) fn payload_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        index: u32,
        error: MemoryError,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = run.psn.add(index);
        if !self.reads.unsend(psn) {
            return Ok(());
        }
        let repeated = self.reads.current().is_some_and(|reply| reply.repeated);
        if repeated {
            // As in a repeated request that no longer passes the checks.
            self.reads.drop_current();
            env.count(Counter::AccessViolation);
            self.answer = Answer::Refused {
                psn,
                code: nak_code(error),
            };
            return Ok(());
        }
        self.reads.clear();
        Err(self.refuse_at(psn, nak_code(error), env))
    }
}
