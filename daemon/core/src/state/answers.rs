//! The answers that requests got, by tenant and request, for the same request again.
use alloc::collections::BTreeMap;

use crate::id::{BodyHash, Fence, JobId, LeaseId, Name, RequestId};
use crate::lease::End;

/// The answer that a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Digest of the request's body.
    pub body: BodyHash,
    /// What it made.
    pub effect: Effect,
}

/// What a request made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A lease.
    Lease {
        /// The lease.
        id: LeaseId,
        /// Its fence when it was granted.
        fence: Fence,
        /// How it ended, if it did; with the fence at its end.
        end: Option<(End, Fence)>,
    },
    /// A job.
    Job(JobId),
}

/// All answers. A map for each tenant: a hundred thousand of one tenant's need not carry its name.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    by_tenant: BTreeMap<Name, BTreeMap<RequestId, Remembered>>,
}

impl Answers {
    /// The answer that a tenant's request got.
    pub fn get(&self, tenant: &Name, request: RequestId) -> Option<&Remembered> {
        self.by_tenant.get(tenant)?.get(&request)
    }
    /// The answers that a tenant's requests got, by request.
    pub fn of(&self, tenant: &Name) -> impl Iterator<Item = (RequestId, &Remembered)> {
        let answers = self.by_tenant.get(tenant).into_iter().flatten();
        answers.map(|(id, r)| (*id, r))
    }
    /// All answers, by tenant, then by request.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, RequestId, &Remembered)> {
        let each = |(tenant, of)| BTreeMap::iter(of).map(move |(id, r)| (tenant, *id, r));
        self.by_tenant.iter().flat_map(each)
    }
    /// How many answers there are.
    pub fn len(&self) -> usize {
        self.by_tenant.values().map(BTreeMap::len).sum()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_tenant.is_empty()
    }
    /// Puts another answer in the place of what was there, and returns that.
    pub(super) fn put(
        &mut self,
        (tenant, request): &(Name, RequestId),
        new: Option<Remembered>,
    ) -> Option<Remembered> {
        let Some(new) = new else {
            let of = self.by_tenant.get_mut(tenant)?;
            let old = of.remove(request);
            if of.is_empty() {
                self.by_tenant.remove(tenant);
            }
            return old;
        };
        if let Some(of) = self.by_tenant.get_mut(tenant) {
            return of.insert(*request, new);
        }
        self.by_tenant
            .insert(tenant.clone(), [(*request, new)].into());
        None
    }
}
