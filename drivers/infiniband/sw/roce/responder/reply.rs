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
        resources::{
            ReadSlot,
            Reply,
            What, //
        },
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
    types::{
        Mtu,
        Psn,
        RKey,
        Srqn, //
    },
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
    /// Whether there is nothing to be said.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.answer == Answer::None && self.resources.is_idle()
    }

    /// Whether there is nothing to be said but an ACK.
    #[inline]
    pub(crate) fn owes_ack_alone(&self) -> bool {
        self.answer == Answer::Ack && self.resources.is_idle()
    }

    /// The next packets to send, at most `max`: they go to `run`.
    #[inline(never)]
    pub(crate) fn poll(&mut self, max: u32, ctx: &Context<'_>, run: &mut Option<Run>) {
        if max == 0 {
            return;
        }
        if !self.resources.is_idle() {
            self.poll_read(max, ctx, run);
        }
        if run.is_none() {
            self.poll_answer(ctx, run);
        }
    }

    /// Packets of the reply whose turn it is.
    fn poll_read(&mut self, max: u32, ctx: &Context<'_>, run: &mut Option<Run>) {
        let mtu = ctx.attr.path_mtu;
        let Some(reply) = self.resources.current().copied() else {
            return;
        };
        let count = reply.packets.saturating_sub(reply.sent).min(max);
        let source = if reply.length == 0 {
            PayloadSource::None
        } else {
            PayloadSource::Remote {
                rkey: reply.rkey,
                va: reply.va.wrapping_add(u64::from(mtu.span(reply.sent))),
                srq: reply.srq,
            }
        };
        let aeth = Aeth {
            syndrome: Syndrome::ACK,
            msn: reply.msn,
        };
        let form = match reply.what {
            What::Atomic { original } => Form::AtomicAcknowledge { aeth, original },
            What::Read | What::Placed => Form::ReadResponse {
                position: reply.sent,
                packets: reply.packets,
                length: reply.length,
                aeth,
                repeated: reply.repeated,
            },
        };
        *run = Some(self.run(reply.next(), count, source, form, ctx));
        let sent = reply.sent.wrapping_add(count);
        if sent >= reply.packets {
            self.resources.pop();
        } else if let Some(reply) = self.resources.current() {
            reply.sent = sent;
        }
    }

    /// The ACK or NAK.
    #[inline]
    fn poll_answer(&mut self, ctx: &Context<'_>, run: &mut Option<Run>) {
        let ack = (self.expected.sub(1), Syndrome::ACK);
        let (psn, syndrome) = match self.answer {
            Answer::None => return,
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
        *run = Some(self.run(psn, 1, PayloadSource::None, form, ctx));
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
            srq: Srqn::default(),
            transport: ctx.kind.transport(),
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
            Form::ReadResponse { .. } | Form::AtomicAcknowledge { .. } => {
                self.unsend_reply(run, index, ctx);
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

    /// Packet `index` of a run of responses and those after it were not sent.
    fn unsend_reply(&mut self, run: &Run, index: u32, ctx: &Context<'_>) {
        let psn = run.psn.add(index);
        match self.resources.current() {
            Some(reply) if psn.is_within(reply.first, reply.sent) => {
                reply.sent = psn.offset_from(reply.first);
                return;
            }
            Some(_) | None => {}
        }
        // That reply was done, or something else took its place.
        let mtu = ctx.attr.path_mtu;
        if let Some(mut reply) = reply_of(run, mtu) {
            reply.sent = reply.sent.wrapping_add(index);
            let left = reply.packets.saturating_sub(reply.sent);
            if left != 0 && !self.resources.will_bring(psn, left) {
                self.resources.repeat(reply, mtu);
            }
        }
    }

    /// The payload of packet `index` of a READ response could not be read.
    pub(crate) fn payload_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        index: u32,
        error: MemoryError,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = run.psn.add(index);
        let code = nak_code(error);
        match run.form {
            Form::ReadResponse { repeated: true, .. } => {
                // As a repeated request that no longer passes the checks.
                let same = |reply: &mut Reply| psn.is_within(reply.first, reply.sent);
                if self.resources.current().is_some_and(same) {
                    self.resources.pop();
                }
                env.count(Counter::AccessViolation);
                self.answer = Answer::Refused { psn, code };
                Ok(())
            }
            Form::ReadResponse { .. } => {
                self.resources.clear();
                Err(self.refuse_at(psn, code, ctx, env))
            }
            Form::AtomicAcknowledge { .. }
            | Form::Acknowledge { .. }
            | Form::Message { .. }
            | Form::ReadRequest { .. }
            | Form::Datagram { .. } => Ok(()),
        }
    }
}

/// The reply that a run is a part of, as it was before the run.
fn reply_of(run: &Run, mtu: Mtu) -> Option<Reply> {
    let (position, packets, length, aeth, repeated) = match run.form {
        Form::ReadResponse {
            position,
            packets,
            length,
            aeth,
            repeated,
        } => (position, packets, length, aeth, repeated),
        Form::AtomicAcknowledge { aeth, original } => {
            let what = What::Atomic { original };
            return Some(Reply::to(what, run.psn, aeth.msn, true));
        }
        Form::Message { .. }
        | Form::ReadRequest { .. }
        | Form::Acknowledge { .. }
        | Form::Datagram { .. } => return None,
    };
    let (rkey, va, srq) = match run.source {
        PayloadSource::Remote { rkey, va, srq } => (rkey, va, srq),
        PayloadSource::None | PayloadSource::Wqe { .. } => (RKey::default(), 0, Srqn::default()),
    };
    Some(Reply {
        what: What::Read,
        first: run.psn.sub(position),
        packets,
        sent: position,
        va: va.wrapping_sub(u64::from(mtu.span(position))),
        rkey,
        srq,
        length,
        msn: aeth.msn,
        repeated,
    })
}
