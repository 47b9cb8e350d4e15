//! What REST shows, within limits: a few answers are made at a time, and what is on its way is counted. Whoever looks
//! there is one tenant, as nobody is told apart.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use evenkeel_core::id::Name;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::dispatch::turn;
use super::stream::Download;
use crate::api::budget::{Budget, Held, Kind};
use crate::api::limits::{CALL_COST, REST_PATIENCE};
use crate::api::rest;

/// See the module's text.
#[derive(Clone)]
pub(super) struct Shown {
    router: axum::Router,
    budget: Arc<Budget>,
}

impl Shown {
    pub(super) const fn new(router: axum::Router, budget: Arc<Budget>) -> Self {
        Self { router, budget }
    }

    async fn answer(mut self, request: Request<Incoming>) -> Response<Download> {
        let tenant = Name::unknown();
        let hold = |n| self.budget.hold(Kind::Call, &tenant, n);
        // Who watches whether the daemon is well is not to wait for those who read long pages.
        let short = request.uri().path() == "/healthz";
        let turn = match short {
            true => None,
            false => turn(&self.budget, &tenant, 1, REST_PATIENCE).await.ok(),
        };
        let (Ok(whole), Ok(down), true) = (hold(CALL_COST), hold(0), short || turn.is_some())
        else {
            return rest::busy().map(|body| Download::new(Body::new(body), None, None));
        };
        let Ok(response) = self.router.call(request).await;
        let held: Option<(Held, Held)> = Some((whole, down));
        response.map(|body| Download::new(Body::new(body), held, None))
    }
}

impl hyper::service::Service<Request<Incoming>> for Shown {
    type Response = Response<Download>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let shown = self.clone();
        Box::pin(async move { Ok(shown.answer(request).await) })
    }
}
