//! Where a connection's requests go, and what each may hold. Decided here, before anything of a message is read: a
//! service sees a request only once its message is there.
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_core::id::Name;
use evenkeel_proto::v1 as pb;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response, Uri};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;

use super::stream::{Download, Upload};
use crate::api::budget::{Budget, Cost, Held, Kind};
use crate::api::caller::{Door, Peer, Visitor};
use crate::api::context::Context as Shared;
use crate::api::error;
use crate::api::grpc::{LEASES, LeaseServer};
use crate::api::limits::{
    CALL_COST, MAKING_PATIENCE, PROFILE_MAKINGS, STRANGER_AGE, STREAM_COST, UNHEARD_PATIENCE,
};
use crate::api::rate::{RateLimits, Rates};
use crate::api::tenants::Stranger;
use crate::api::turns::{Turn, turn};
use crate::audit::{Audit, Refusal};

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answer = Later<Result<Response<Body>, Infallible>>;
/// An answer, and its turn to be made.
type Made = (Response<Body>, Option<Turn>);

/// What a request's path says of it: what it draws on, whether it is one message, and as how many answers that may be
/// large it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    kind: Kind,
    one: bool,
    makings: usize,
    /// It only shows: once its client has hung up, there is nothing to be done.
    shows: bool,
}

impl Shape {
    fn of(path: &str) -> Self {
        let kind = match path.strip_prefix("/evenkeel.v1.").unwrap_or_default() {
            "LeaseService/Session" => {
                return Self {
                    one: false,
                    ..Self::small(Kind::Stream)
                };
            }
            "JobService/WatchJob" | "NodeService/WatchNode" => Kind::Stream,
            "LeaseService/RenewLeases"
            | "LeaseService/ReleaseLease"
            | "LeaseService/RevokeLease"
            | "LeaseService/ClearLease" => Kind::Urgent,
            // It gives back, and its answer may be large.
            "JobService/CancelJob" => {
                return Self {
                    makings: 1,
                    ..Self::small(Kind::Urgent)
                };
            }
            "JobService/SubmitJob" | "JobService/UpdateJob" => return Self::large(1, false),
            "LeaseService/ListLeases"
            | "JobService/GetJob"
            | "JobService/ListJobs"
            | "ProfileService/GetProfile"
            | "ProfileService/ListProfiles"
            | "ProfileService/ExportProfile"
            | "PlanService/ExplainJob"
            | "NodeService/ListEvents" => return Self::large(1, true),
            "ProfileService/ImportProfile" => return Self::large(PROFILE_MAKINGS, false),
            "PlanService/SolvePlan" => return Self::large(PROFILE_MAKINGS, true),
            // Nobody needs a trial whose caller has gone.
            "ProfileService/RunTrial" => {
                return Self {
                    shows: true,
                    ..Self::small(Kind::Call)
                };
            }
            // Health and reflection: they stream, and are not ours.
            "" => {
                return Self {
                    one: false,
                    ..Self::small(Kind::Stream)
                };
            }
            _ => Kind::Call,
        };
        Self::small(kind)
    }

    const fn small(kind: Kind) -> Self {
        Self {
            kind,
            one: true,
            makings: 0,
            shows: false,
        }
    }

    const fn large(makings: usize, shows: bool) -> Self {
        Self {
            makings,
            shows,
            ..Self::small(Kind::Call)
        }
    }

    const fn cost(self) -> usize {
        match self.kind {
            Kind::Stream => STREAM_COST,
            _ => CALL_COST,
        }
    }
}

/// An answer in the making. A message that cannot be read is its sender's fault (INVALID_ARGUMENT), where tonic says
/// that it is ours (INTERNAL). What request and answer hold goes with them.
pub(super) struct Checked {
    /// None: it is made.
    answer: Option<Making>,
    /// For the request, and for the answer.
    held: Option<(Cost, Held)>,
    seen_through: bool,
    /// Who asked for what, and where it is written down if it is refused.
    asked: Option<(Arc<Peer>, Uri, Audit)>,
}

enum Making {
    Small(Answer),
    /// With its turn, which ends when it is written.
    Large(Later<Made>),
    Refused(Option<Response<Body>>),
}

impl Making {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Made> {
        match self {
            Self::Small(answer) => {
                let Ok(response) = ready!(answer.as_mut().poll(cx));
                Poll::Ready((response, None))
            }
            Self::Large(answer) => answer.as_mut().poll(cx),
            Self::Refused(response) => Poll::Ready((response.take().unwrap_or_default(), None)),
        }
    }
}

impl Checked {
    fn refused(status: &Status) -> Self {
        Self {
            answer: Some(Making::Refused(Some(status.clone().into_http()))),
            held: None,
            seen_through: false,
            asked: None,
        }
    }
}

impl Future for Checked {
    type Output = Result<Response<Download>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(making) = &mut self.answer else {
            return Poll::Pending;
        };
        let (mut response, turn) = ready!(making.poll(cx));
        self.answer = None;
        let headers = response.headers_mut();
        let header = |name| headers.get(name).map(HeaderValue::as_bytes);
        let unreadable = header("grpc-status") == Some(b"13")
            && header("grpc-message").is_some_and(|m| m.starts_with(b"failed%20to%20decode"));
        if unreadable {
            headers.insert("grpc-status", HeaderValue::from_static("3"));
        }
        if let Some((peer, uri, audit)) = &self.asked {
            // Only an answer without a message has it here.
            if let Some(status) = Status::from_header_map(response.headers()) {
                peer.note_refusal(audit, uri.path(), &status);
            }
        }
        let held = self.held.take();
        Poll::Ready(Ok(response.map(|body| Download::new(body, held, turn))))
    }
}

impl Drop for Checked {
    /// What was asked for is done although its client has hung up, and so long it counts as that client's: who asks
    /// and hangs up, again and again, has no more under way than who waits.
    fn drop(&mut self) {
        let (Some(mut making), true) = (self.answer.take(), self.seen_through) else {
            return;
        };
        let held = self.held.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _held = held;
                let rest = std::future::poll_fn(|cx| making.poll(cx));
                let _ = tokio::time::timeout(UNHEARD_PATIENCE, rest).await;
            });
        }
    }
}

/// See the module's text. Says of each request which peer it came from.
#[derive(Clone)]
pub(super) struct Dispatch {
    leases: LeaseServer,
    others: axum::Router,
    counters: Arc<HashMap<String, metrics::Counter>>,
    budget: Arc<Budget>,
    limits: Arc<RateLimits>,
    rates: Arc<Rates>,
    audit: Audit,
    visitor: Option<Visitor>,
}

impl Dispatch {
    pub(super) fn new(leases: LeaseServer, others: Routes, ctx: &Shared) -> Self {
        Self {
            leases,
            others: others.into_axum_router(),
            counters: Arc::new(counters()),
            budget: ctx.budget.clone(),
            limits: Arc::new(ctx.config.rates.clone()),
            rates: ctx.rates.clone(),
            audit: ctx.config.audit.clone(),
            visitor: None,
        }
    }

    /// The same for one visitor.
    pub(super) fn with(&self, visitor: Visitor) -> Self {
        Self {
            visitor: Some(visitor),
            ..self.clone()
        }
    }

    fn peer(&self) -> Option<&Arc<Peer>> {
        match &self.visitor {
            Some(Visitor::Peer(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Cancelled when the connection should end. A child of `stop`: cancelling it ends this connection's streams and
    /// nobody else's.
    pub(super) fn closing(&self, stop: &CancellationToken) -> CancellationToken {
        let peer = self.peer().map(|p| p.closing.clone());
        peer.unwrap_or_else(|| stop.child_token())
    }

    /// How long the connection may last: as its certificate; none: that does not say.
    pub(super) fn good_for(&self) -> Option<Duration> {
        match &self.visitor {
            Some(Visitor::Peer(peer)) => peer.good_for(),
            _ => Some(STRANGER_AGE),
        }
    }

    fn tenant(&self) -> Name {
        self.peer()
            .map_or_else(Name::unknown, |p| p.caller.tenant.clone())
    }

    /// The same answer to whatever a stranger asks.
    fn turn_away(&self, door: &Door, stranger: &Stranger, uri: &Uri) -> Checked {
        self.audit.refused(Refusal {
            call: Some(uri.path().to_owned()),
            ..door.refusal(stranger.reason(), &stranger.to_string())
        });
        Checked::refused(&stranger.status())
    }

    fn route(&self, request: Request<Upload>) -> Answer {
        if request.uri().path().starts_with(LEASES) {
            return self.leases.clone().call(request);
        }
        let answer = self.others.clone().call(request);
        Box::pin(async move { Ok(answer.await?.map(Body::new)) })
    }
}

/// A counter for each method, by its path.
fn counters() -> HashMap<String, metrics::Counter> {
    let files = prost_types::FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap_or_default();
    let mut all = HashMap::new();
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                let (service, method) = (service.name(), method.name());
                let labels = [
                    ("service", service.to_owned()),
                    ("method", method.to_owned()),
                ];
                let counter = metrics::counter!("evenkeel_requests_total", &labels);
                all.insert(format!("/{}.{service}/{method}", file.package()), counter);
            }
        }
    }
    all
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Download>;
    type Error = Infallible;
    type Future = Checked;

    fn call(&self, mut request: Request<Incoming>) -> Checked {
        if let Some(Visitor::Stranger(door, stranger)) = &self.visitor {
            return self.turn_away(door, stranger, request.uri());
        }
        let asked = self.peer().cloned().map(|peer| {
            request.extensions_mut().insert(peer.clone());
            (peer, request.uri().clone(), self.audit.clone())
        });
        if let Some(counter) = self.counters.get(request.uri().path()) {
            counter.increment(1);
        }
        let (shape, tenant) = (Shape::of(request.uri().path()), self.tenant());
        if shape.kind != Kind::Urgent
            && let Some(limit) = self.limits.of(&tenant)
            && let Err(retry) = self.rates.take(&tenant, limit, std::time::Instant::now())
        {
            return Checked::refused(&error::too_often(retry));
        }
        let headers = request.headers().iter();
        let headers: usize = headers.map(|(k, v)| k.as_str().len() + v.len()).sum();
        let hold = |n| self.budget.hold(shape.kind, &tenant, n);
        let held = || {
            let request = hold(shape.cost() + headers + request.uri().path().len())?;
            Ok::<_, Status>((request, hold(0)?, hold(0)?))
        };
        let (whole, up, down) = match held() {
            Ok(held) => held,
            Err(status) => return Checked::refused(&status),
        };
        let whole = Cost::new(whole);
        request.extensions_mut().insert(whole.clone());
        let request = request.map(|body| Upload::new(body, up, shape.one));
        let answer = if shape.makings > 0 {
            let dispatch = self.clone();
            let mut request = request;
            Making::Large(Box::pin(async move {
                let kind = shape.kind;
                let turn = turn(
                    &dispatch.budget,
                    kind,
                    &tenant,
                    shape.makings,
                    MAKING_PATIENCE,
                );
                match turn.await {
                    Ok(turn) => {
                        request.extensions_mut().insert(turn.clone());
                        let Ok(response) = dispatch.route(request).await;
                        (response, Some(turn))
                    }
                    Err(status) => (status.into_http(), None),
                }
            }))
        } else {
            Making::Small(self.route(request))
        };
        Checked {
            answer: Some(answer),
            held: Some((whole, down)),
            seen_through: shape.kind != Kind::Stream && !shape.shows,
            asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_shape() {
        let mut of = counters();
        of.retain(|path, _| Shape::of(path).makings > 0);
        assert_eq!(
            of.len(),
            13,
            "those whose answers may be large: {:?}",
            of.keys()
        );
        let mut calls = counters();
        calls.retain(|path, _| Shape::of(path).kind == Kind::Stream);
        assert_eq!(calls.len(), 3, "{:?}", calls.keys());
        let session = Shape::of("/evenkeel.v1.LeaseService/Session");
        assert!(!session.one && session.makings == 0);
        for urgent in ["LeaseService/RenewLeases", "JobService/CancelJob"] {
            let path = format!("/evenkeel.v1.{urgent}");
            assert_eq!(Shape::of(&path).kind, Kind::Urgent, "{urgent}");
        }
        assert_eq!(
            Shape::of("/evenkeel.v1.LeaseService/AcquireLease").kind,
            Kind::Call
        );
        assert_eq!(Shape::of("/grpc.health.v1.Health/Watch").kind, Kind::Stream);
    }
}
