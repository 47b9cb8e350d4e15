//! The connection to a daemon, and the one loop that tries a call until it has an answer.
//!
//! What the calls are is `calls`; heartbeats are the guard's (`guard`), on a thread of their own.
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::address::Address;
use crate::clock::BootTime;
use crate::error::{Absence, Error, Result, Verdict, judge};
use crate::retry::{Backoff, ClientConfig};
use crate::tls::Connector;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings on a connection with a call under way: a stopped daemon is noticed within both together.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls to one daemon. Cheap to clone; connects when it is first used, and again whenever it has to.
///
/// Belongs to the tokio runtime in which it was made. Without one: [`crate::blocking::Client`].
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) channel: Channel,
    pub(crate) config: Arc<ClientConfig>,
}

/// Whether a call may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It reads, is idempotent, or carries a request id.
    Always,
    /// Only if it never left.
    IfUnsent,
    /// Likewise, and who makes the call decides whether to come back.
    Once,
}

/// An answer, and when the try that got it was sent.
pub(crate) struct Answer<T> {
    pub(crate) body: T,
    pub(crate) sent_at: BootTime,
}

impl Client {
    /// A client that connects when it is first used. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self> {
        let endpoint = Endpoint::from_shared(config.address.uri()).map_err(|e| Error::Start {
            what: "a connection",
            source: std::io::Error::other(e.to_string()),
        })?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true);
        let channel = match (&config.address, &config.credentials) {
            (Address::Https(_), None) => return Err(Error::NoCredentials),
            (Address::Https(_), Some(credentials)) => {
                endpoint.connect_with_connector_lazy(Connector::new(credentials.clone()))
            }
            _ => endpoint.connect_lazy(),
        };
        Ok(Self {
            channel,
            config: Arc::new(config),
        })
    }

    /// A client for the daemon that `EVENKEEL_SOCKET` names, or the default one.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn from_env() -> Result<Self> {
        Self::new(ClientConfig::from_env()?)
    }

    /// A client that has reached its daemon once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it was not reached before the deadline.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        let client = Self::new(config)?;
        client.node().await?;
        Ok(client)
    }

    /// How it reaches its daemon.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// The connection itself, for calls that this library has no words for.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Where its daemon listens.
    pub fn address(&self) -> &Address {
        &self.config.address
    }

    /// The same connection with another time for one logical call.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            channel: self.channel.clone(),
            config: Arc::new((*self.config).clone().deadline(deadline)),
        }
    }

    /// Tries a call that may be repeated until it has an answer or the deadline has passed.
    pub(crate) async fn call<Q, R, F, Fut>(&self, body: Q, rpc: F) -> Result<Answer<R>>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        self.attempt(Repeat::Always, Duration::ZERO, body, rpc)
            .await
    }

    /// Tries a call; `wait` is the time for which the daemon may hold the answer back.
    pub(crate) async fn attempt<Q, R, F, Fut>(
        &self,
        repeat: Repeat,
        wait: Duration,
        body: Q,
        rpc: F,
    ) -> Result<Answer<R>>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let began = Instant::now();
        let budget = self.config.deadline.saturating_add(wait);
        let mut backoff = Backoff::default();
        let mut tries = 0;
        loop {
            tries += 1;
            let left = budget.saturating_sub(began.elapsed());
            let limit = self.config.try_timeout.saturating_add(wait).min(left);
            let sent_at = BootTime::now();
            let (last, absent, pause) = match self.one_try(limit, body.clone(), &rpc).await {
                Ok(body) => return Ok(Answer { body, sent_at }),
                Err(Verdict::Final(error)) => return Err(error),
                Err(Verdict::Later(delay, error)) => {
                    if repeat == Repeat::Once || began.elapsed() + delay >= budget {
                        return Err(error);
                    }
                    tokio::time::sleep(delay.max(backoff.pause())).await;
                    continue;
                }
                Err(Verdict::Unsent(last, absence)) => {
                    let pause = (absence != Absence::Forbidden).then(|| backoff.pause());
                    (last, absence == Absence::Nobody, pause)
                }
                Err(Verdict::InDoubt(last)) => {
                    let pause = (repeat == Repeat::Always).then(|| backoff.pause());
                    (last, false, pause)
                }
            };
            match pause.filter(|p| began.elapsed() + *p < budget) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => {
                    return Err(Error::Unavailable {
                        address: self.config.address.clone(),
                        tries,
                        elapsed: began.elapsed(),
                        last,
                        absent,
                    });
                }
            }
        }
    }

    async fn one_try<Q, R, F, Fut>(&self, limit: Duration, body: Q, rpc: &F) -> Result<R, Verdict>
    where
        F: Fn(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut request = Request::new(body);
        request.set_timeout(limit);
        match tokio::time::timeout(limit, rpc(self.channel.clone(), request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(judge(&status)),
            Err(_) => Err(Verdict::InDoubt(format!(
                "no answer within {:.1} s",
                limit.as_secs_f64()
            ))),
        }
    }
}
