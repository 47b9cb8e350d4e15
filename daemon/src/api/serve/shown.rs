//! What REST shows, within limits: a few answers are made at a time, and what is on its way is counted, by the user of
//! the connection.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use evenkeel_core::id::Name;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::stream::Download;
use crate::api::budget::{Budget, Cost, Kind};
use crate::api::limits::{CALL_COST, REST_PATIENCE};
use crate::api::rest::{self, Closing, From};
use crate::api::turns::turn;

/// See the module's text.
#[derive(Clone)]
pub(super) struct Shown {
    router: axum::Router,
    budget: Arc<Budget>,
    /// Of one connection: where it is from, and when it is to end.
    one: Option<(From, Closing)>,
}

impl Shown {
    pub(super) const fn new(router: axum::Router, budget: Arc<Budget>) -> Self {
        Self {
            router,
            budget,
            one: None,
        }
    }

    /// The same for one connection.
    pub(super) fn for_one(self, from: From, closing: Closing) -> Self {
        Self {
            one: Some((from, closing)),
            ..self
        }
    }

    /// Whose budget a request draws on.
    fn tenant(&self) -> Name {
        let uid = self.one.as_ref().and_then(|(from, _)| from.uid);
        let name = uid.and_then(|uid| Name::new(&format!("uid:{uid}")).ok());
        name.unwrap_or_else(Name::unknown)
    }

    async fn answer(mut self, mut request: Request<Incoming>) -> Response<Download> {
        let tenant = self.tenant();
        if let Some((from, closing)) = &self.one {
            request.extensions_mut().insert(from.clone());
            request.extensions_mut().insert(closing.clone());
        }
        let hold = |n| self.budget.hold(Kind::Call, &tenant, n);
        // Who watches whether the daemon is well is not to wait for those who read long pages.
        let short = request.uri().path() == "/healthz";
        let turn = match short {
            true => None,
            false => turn(&self.budget, Kind::Call, &tenant, 1, REST_PATIENCE)
                .await
                .ok(),
        };
        let (Ok(whole), Ok(down), true) = (hold(CALL_COST), hold(0), short || turn.is_some())
        else {
            return rest::busy().map(|body| Download::new(Body::new(body), None, None));
        };
        if let Some(turn) = &turn {
            request.extensions_mut().insert(turn.clone());
        }
        let Ok(response) = self.router.call(request).await;
        let held = Some((Cost::new(whole), down));
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
