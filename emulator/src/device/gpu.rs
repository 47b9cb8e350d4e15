//! One emulated GPU of the device: who sits at it, what they may ask, and what the model answers. MPS's rules live
//! here. No sockets and no clock: messages come with the time, answers are left in `outbox`.

use std::collections::BTreeMap;

use super::peer::Peer;
use crate::limits::{MAX_BACKDATE_NS, MAX_ROLE_BYTES};
use crate::model::{
    ClientId, ClientSpec, Completion, KernelGroup, Model, ModelError, SubmissionId,
};
use crate::spec::GpuSpec;
use crate::wire::{ClientInfo, ErrorCode, GpuInfo, GpuState, Reply, Request};

/// A connection, named by the server.
pub(super) type Token = u64;

/// A reply on its way: to whom, to which request, what.
pub(super) type Outgoing = (Token, u64, Reply);

pub(super) struct Gpu {
    index: u32,
    epoch_ns: u64,
    model: Model,
    default_percentage: u32,
    seats: BTreeMap<Token, Seat>,
    tokens: BTreeMap<ClientId, Token>,
    outbox: Vec<Outgoing>,
    completions: Vec<Completion>,
}

/// A connection's place at the GPU.
struct Seat {
    peer: Peer,
    place: Place,
}

enum Place {
    /// It has no context: it may create one, or administrate.
    Visitor,
    /// It has a context.
    Context { client: ClientId, role: String },
    /// Its context was ended; it hears this until it hangs up (CUDA's errors 810 and 719 are as sticky).
    Ended(ErrorCode),
}

/// A refusal on its way to becoming a reply.
struct Refusal(ErrorCode, String);

impl From<ModelError> for Refusal {
    fn from(error: ModelError) -> Self {
        let code = match &error {
            ModelError::UnknownClient(_) => ErrorCode::UnknownClient,
            ModelError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            ModelError::TooManyClients | ModelError::QueueFull => ErrorCode::Limit,
            _ => ErrorCode::BadRequest,
        };
        Self(code, error.to_string())
    }
}

/// `Ok(None)`: the answer comes later.
type Answer = Result<Option<Reply>, Refusal>;

impl Gpu {
    pub(super) fn new(index: u32, epoch_ns: u64, spec: GpuSpec) -> Self {
        Self {
            index,
            epoch_ns,
            model: Model::new(spec),
            default_percentage: 100,
            seats: BTreeMap::new(),
            tokens: BTreeMap::new(),
            outbox: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Connections that sit here.
    pub(super) fn seats(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn sit(&mut self, token: Token, peer: Peer) {
        self.seats.insert(
            token,
            Seat {
                peer,
                place: Place::Visitor,
            },
        );
    }

    /// The connection is gone: its SMs and its memory are free from `now` on.
    pub(super) fn leave(&mut self, now: u64, token: Token) {
        if let Some(Seat {
            place: Place::Context { client, .. },
            ..
        }) = self.seats.remove(&token)
        {
            self.tokens.remove(&client);
            // It is in the model as long as its seat says so.
            let _ = self.model.disconnect(now, client);
        }
    }

    /// Answers a request, now or when it completes.
    pub(super) fn request(&mut self, now: u64, token: Token, seq: u64, request: Request) {
        let reply = match self.answer(now, token, seq, request) {
            Ok(None) => return,
            Ok(Some(reply)) => reply,
            Err(Refusal(code, message)) => Reply::Error { code, message },
        };
        self.outbox.push((token, seq, reply));
    }

    /// Lets the model come up to `now`.
    pub(super) fn advance(&mut self, now: u64) {
        self.model.advance(now, &mut self.completions);
        for Completion {
            client,
            id,
            start,
            end,
        } in self.completions.drain(..)
        {
            if let Some(token) = self.tokens.get(&client) {
                self.outbox.push((
                    *token,
                    id.0,
                    Reply::Done {
                        start_ns: start,
                        end_ns: end,
                    },
                ));
            }
        }
    }

    /// When `advance` should be called next.
    pub(super) fn next(&self) -> Option<u64> {
        self.model.next()
    }

    pub(super) fn take_outbox(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outbox)
    }

    fn answer(&mut self, now: u64, token: Token, seq: u64, request: Request) -> Answer {
        let Some(seat) = self.seats.get(&token) else {
            return Ok(None);
        };
        match (&seat.place, request) {
            (Place::Ended(code), _) => Err(Refusal(*code, ended(*code))),
            (_, Request::Gpu) => Ok(Some(Reply::Gpu(self.info()))),
            (
                Place::Visitor,
                Request::Hello {
                    role,
                    percentage,
                    memory_limit,
                },
            ) => self.hello(now, token, role, percentage, memory_limit),
            (Place::Visitor, request) => {
                let uid = seat.peer.uid;
                self.administrate(now, uid, request)
            }
            (Place::Context { client, .. }, request) => {
                let client = *client;
                self.use_context(now, client, seq, request)
            }
        }
    }

    fn hello(
        &mut self,
        now: u64,
        token: Token,
        role: String,
        percentage: Option<u32>,
        memory_limit: Option<u64>,
    ) -> Answer {
        let affected = self
            .seats
            .values()
            .filter(|seat| matches!(seat.place, Place::Ended(ErrorCode::Faulted)));
        let affected = affected.count();
        if affected > 0 {
            let message = format!(
                "the emulated GPU had a fault: {affected} affected processes have yet to exit"
            );
            return Err(Refusal(ErrorCode::NotReady, message));
        }
        if role.len() > MAX_ROLE_BYTES || role.chars().any(char::is_control) {
            let message = format!(
                "the role must be at most {MAX_ROLE_BYTES} bytes without control characters"
            );
            return Err(Refusal(ErrorCode::BadRequest, message));
        }
        let asked = check_percentage(percentage.unwrap_or(100))?;
        // A client can only lower what its server allows (NVIDIA MPS, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE).
        let sms = self
            .model
            .spec()
            .effective_sms(asked.min(self.default_percentage));
        let memory = self.model.spec().memory_bytes;
        let memory = memory_limit.unwrap_or(memory).min(memory);
        let client = self.model.connect(now, ClientSpec { sms, memory })?;
        if let Some(seat) = self.seats.get_mut(&token) {
            seat.place = Place::Context { client, role };
        }
        self.tokens.insert(client, token);
        let (epoch_ns, spec) = (self.epoch_ns, self.model.spec().clone());
        Ok(Some(Reply::Welcome {
            client,
            sms,
            memory_limit: memory,
            epoch_ns,
            spec,
        }))
    }

    fn use_context(&mut self, now: u64, own: ClientId, seq: u64, request: Request) -> Answer {
        match request {
            Request::Submit {
                submitted_ns,
                groups,
            } => self.submit(now, own, seq, submitted_ns, groups),
            Request::Resize { client, sms } if client == own => {
                let effective = self.model.resize(now, own, sms)?;
                Ok(Some(Reply::Resized { effective }))
            }
            Request::Alloc { bytes } => self
                .model
                .alloc(own, bytes)
                .map(|()| Some(Reply::Ok))
                .map_err(Refusal::from),
            Request::Free { bytes } => self
                .model
                .free(own, bytes)
                .map(|()| Some(Reply::Ok))
                .map_err(Refusal::from),
            Request::Hello { .. } => {
                let message = "this connection has a context already: open another connection for another context";
                Err(Refusal(ErrorCode::BadRequest, message.to_owned()))
            }
            _ => {
                let message = "a context may submit, allocate, free and resize itself: administrate on a connection \
                               without a context";
                Err(Refusal(ErrorCode::Forbidden, message.to_owned()))
            }
        }
    }

    fn submit(
        &mut self,
        now: u64,
        own: ClientId,
        seq: u64,
        submitted_ns: u64,
        groups: Vec<KernelGroup>,
    ) -> Answer {
        // The client says when it submitted, so that a late wake-up of the device costs it nothing.
        let at = submitted_ns
            .saturating_sub(self.epoch_ns)
            .clamp(now.saturating_sub(MAX_BACKDATE_NS), now);
        self.model.submit(at, own, SubmissionId(seq), groups)?;
        Ok(None)
    }

    fn administrate(&mut self, now: u64, uid: u32, request: Request) -> Answer {
        if !Peer::may_administrate(uid) {
            let message = "only the device's own user and root may administrate this emulated GPU";
            return Err(Refusal(ErrorCode::Forbidden, message.to_owned()));
        }
        match request {
            Request::List => Ok(Some(Reply::Clients(self.list(now)))),
            Request::Resize { client, sms } => {
                let effective = self.model.resize(now, client, sms)?;
                Ok(Some(Reply::Resized { effective }))
            }
            Request::Terminate { client } => {
                if !self.tokens.contains_key(&client) {
                    return Err(ModelError::UnknownClient(client).into());
                }
                self.end(now, client, ErrorCode::Terminated);
                Ok(Some(Reply::Ok))
            }
            Request::Fault => {
                let all: Vec<ClientId> = self.tokens.keys().copied().collect();
                all.into_iter()
                    .for_each(|client| self.end(now, client, ErrorCode::Faulted));
                Ok(Some(Reply::Ok))
            }
            Request::SetDefaultPercentage { percentage } => {
                self.default_percentage = check_percentage(percentage)?;
                Ok(Some(Reply::Ok))
            }
            _ => {
                let message = "this connection has no context: say hello first";
                Err(Refusal(ErrorCode::BadRequest, message.to_owned()))
            }
        }
    }

    fn end(&mut self, now: u64, client: ClientId, code: ErrorCode) {
        let Some(token) = self.tokens.remove(&client) else {
            return;
        };
        // What completed before now is told first.
        self.advance(now);
        let _ = self.model.disconnect(now, client);
        if let Some(seat) = self.seats.get_mut(&token) {
            seat.place = Place::Ended(code);
        }
        self.outbox.push((
            token,
            0,
            Reply::Ended {
                code,
                message: ended(code),
            },
        ));
    }

    fn list(&self, now: u64) -> Vec<ClientInfo> {
        let info = |(client, stats): (ClientId, crate::model::ClientStats)| {
            let seat = self.seats.get(self.tokens.get(&client)?)?;
            let Place::Context { role, .. } = &seat.place else {
                return None;
            };
            Some(ClientInfo {
                client,
                pid: seat.peer.pid,
                uid: seat.peer.uid,
                start_time: seat.peer.start_time,
                role: role.clone(),
                sms: stats.sms,
                memory_limit: stats.memory_limit,
                memory_used: stats.memory_used,
                busy_ns: stats.busy_ns,
                queued: stats.queued as u32,
            })
        };
        self.model.clients(now).filter_map(info).collect()
    }

    fn info(&self) -> GpuInfo {
        let faulted = |seat: &Seat| matches!(seat.place, Place::Ended(ErrorCode::Faulted));
        let fault = self.seats.values().any(faulted);
        GpuInfo {
            emulated: true,
            index: self.index,
            spec: self.model.spec().clone(),
            state: if fault {
                GpuState::Fault
            } else {
                GpuState::Active
            },
            default_percentage: self.default_percentage,
            epoch_ns: self.epoch_ns,
            device_pid: std::process::id(),
        }
    }
}

fn check_percentage(percentage: u32) -> Result<u32, Refusal> {
    if (1..=100).contains(&percentage) {
        Ok(percentage)
    } else {
        let message = format!("a percentage of {percentage}: it must be from 1 to 100");
        Err(Refusal(ErrorCode::BadRequest, message))
    }
}

fn ended(code: ErrorCode) -> String {
    match code {
        ErrorCode::Faulted => {
            "a fault of the emulated GPU ended all of its contexts: exit, and start again"
        }
        _ => "the context was terminated by an administrator: exit, or connect again",
    }
    .to_owned()
}
