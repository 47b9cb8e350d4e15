//! The node, its events, and streams of what changes.
use std::future::Future;

use evenkeel_proto::v1 as pb;
use pb::node_service_client::NodeServiceClient as Nodes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::required;
use crate::client::Client;
use crate::convert::list_events_request;
use crate::error::{Error, Result, Verdict, judge};
use crate::model::{Event, EventFilter, Node};

/// A stream of states, the newest of which is true. It ends with an error when the daemon goes away: open it again.
#[derive(Debug)]
pub struct Watch<W, T> {
    stream: Streaming<W>,
    read: fn(W) -> Option<T>,
    address: crate::Address,
}

impl<W, T> Watch<W, T> {
    pub(super) fn new(
        (stream, address): (Streaming<W>, crate::Address),
        read: fn(W) -> Option<T>,
    ) -> Self {
        Self {
            stream,
            read,
            address,
        }
    }

    /// The next state; none at the end.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the daemon goes away.
    pub async fn next(&mut self) -> Result<Option<T>> {
        loop {
            match self.stream.message().await {
                Ok(Some(wire)) => {
                    if let Some(state) = (self.read)(wire) {
                        return Ok(Some(state));
                    }
                }
                Ok(None) => return Ok(None),
                Err(status) => {
                    return Err(match judge(&status) {
                        Verdict::Unsent(last, _) | Verdict::InDoubt(last) => Error::Unavailable {
                            address: self.address.clone(),
                            tries: 1,
                            elapsed: std::time::Duration::ZERO,
                            last,
                            absent: false,
                        },
                        Verdict::Later(_, error) | Verdict::Final(error) => error,
                    });
                }
            }
        }
    }
}

impl Client {
    /// Opens a stream, trying as any call does. A stream has no time limit of its own.
    pub(super) async fn open<Q, W, F, Fut>(
        &self,
        body: Q,
        rpc: F,
    ) -> Result<(Streaming<W>, crate::Address)>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<Streaming<W>>, Status>>,
    {
        let answer = self
            .call(body, |channel, mut request| {
                // The deadline of the try is kept by the caller; on the wire it would end the stream.
                request.metadata_mut().remove("grpc-timeout");
                rpc(channel, request)
            })
            .await?;
        Ok((answer.body, self.address().clone()))
    }

    /// What the node has and what is leased.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn node(&self) -> Result<Node> {
        let answer = self
            .call(pb::GetNodeRequest {}, |channel, request| async move {
                Nodes::new(channel).get_node(request).await
            })
            .await?;
        Ok(required(answer.body.node, "GetNode", "node")?.into())
    }

    /// The node now, and again whenever leases change.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn watch_node(&self) -> Result<Watch<pb::WatchNodeResponse, Node>> {
        let answer = self
            .open(pb::WatchNodeRequest {}, |channel, request| async move {
                Nodes::new(channel).watch_node(request).await
            })
            .await?;
        Ok(Watch::new(answer, |r| r.node.map(Into::into)))
    }

    /// Grants nothing new and asks holders to finish; or, with `false`, grants again. Admins.
    ///
    /// # Errors
    /// [`Error::Rejected`] for others than admins.
    pub async fn drain(&self, draining: bool) -> Result<Node> {
        let answer = self
            .call(
                pb::DrainNodeRequest { draining },
                |channel, request| async move { Nodes::new(channel).drain_node(request).await },
            )
            .await?;
        Ok(required(answer.body.node, "DrainNode", "node")?.into())
    }

    /// One page of the audit trail, ascending, and the number to go on after.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn events(&self, filter: &EventFilter) -> Result<(Vec<Event>, u64)> {
        let answer = self
            .call(list_events_request(filter), |channel, request| async move {
                Nodes::new(channel).list_events(request).await
            })
            .await?;
        let events = answer.body.events.into_iter().map(Into::into).collect();
        Ok((events, answer.body.next_after_seq))
    }
}
