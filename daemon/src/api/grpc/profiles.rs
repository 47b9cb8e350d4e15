//! The service of profiles. A profile is its tenant's: another tenant's does not exist.
use std::ops::Bound;
use std::sync::Arc;

use evenkeel_core::command::{Caller, Command, Reply};
use evenkeel_core::curve::{Profile, ProfileKey};
use evenkeel_proto::v1 as pb;
use pb::profile_service_server::ProfileService;
use tonic::{Request, Response, Status};

use super::{Answer, trial, unexpected};
use crate::api::budget::{Cost, Kind};
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert::{self, Bad};
use crate::api::error;
use crate::api::limits::WAIT_COST;
use crate::api::turns;

/// See the module's text.
pub(super) struct Profiles(pub(super) Arc<Context>);

#[tonic::async_trait]
impl ProfileService for Profiles {
    async fn report_trial(
        &self,
        request: Request<pb::ReportTrialRequest>,
    ) -> Answer<pb::ReportTrialResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        may_write(&peer.caller)?;
        let wire = request.into_inner();
        let point = wire.point.as_ref();
        let point = point.ok_or_else(|| Bad::new("point", "is missing; give the measurement"))?;
        let command = Command::Trial {
            key: convert::key(wire.key.as_ref(), &peer.caller.tenant)?,
            point: Box::new(convert::point(point).map_err(|bad| bad.within("point"))?),
            replaces: wire.replaces,
        };
        let point_count = self.run(&peer.caller, command).await?;
        Ok(Response::new(pb::ReportTrialResponse { point_count }))
    }

    async fn get_profile(
        &self,
        request: Request<pb::GetProfileRequest>,
    ) -> Answer<pb::GetProfileResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let turn = turns::of(&request)?;
        let key = convert::key(request.into_inner().key.as_ref(), &peer.caller.tenant)?;
        let profile = find(&self.0, &peer.caller, key).await?;
        // A fit of thousands of points takes its time, and must not take the runtime's.
        let answer = turns::aside(turn, move || fitted(&profile)).await?;
        Ok(Response::new(answer))
    }

    async fn list_profiles(
        &self,
        request: Request<pb::ListProfilesRequest>,
    ) -> Answer<pb::ListProfilesResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let profiles = list(&self.0, &peer.caller, None, usize::MAX).await?;
        Ok(Response::new(pb::ListProfilesResponse { profiles }))
    }

    async fn import_profile(
        &self,
        request: Request<pb::ImportProfileRequest>,
    ) -> Answer<pb::ImportProfileResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        may_write(&peer.caller)?;
        let profile = request.into_inner().profile;
        let profile = convert::profile(profile.as_ref(), &peer.caller.tenant)?;
        if profile.points.is_empty() {
            let why = "is empty: nothing would be left of the profile; give its measurements";
            return Err(Bad::new("profile.points", why).into());
        }
        let command = Command::Import {
            profile: Box::new(profile),
        };
        let point_count = self.run(&peer.caller, command).await?;
        Ok(Response::new(pb::ImportProfileResponse { point_count }))
    }

    async fn export_profile(
        &self,
        request: Request<pb::ExportProfileRequest>,
    ) -> Answer<pb::ExportProfileResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let key = convert::key(request.into_inner().key.as_ref(), &peer.caller.tenant)?;
        let profile = find(&self.0, &peer.caller, key).await?;
        let profile = Some(convert::profile_points(&profile));
        Ok(Response::new(pb::ExportProfileResponse { profile }))
    }

    async fn run_trial(
        &self,
        request: Request<pb::RunTrialRequest>,
    ) -> Answer<pb::RunTrialResponse> {
        let peer = caller::of(&request)?;
        let cost = request.extensions().get::<Cost>().cloned();
        let _place = self.0.place(Kind::Wait, &peer.caller)?;
        // What a trial tells is for profiles: who may not write them has no use for it.
        may_write(&peer.caller)?;
        if let Some(cost) = cost {
            cost.lower(WAIT_COST);
        }
        let answer = trial::run(&self.0, &peer.caller, &request.into_inner()).await?;
        Ok(Response::new(answer))
    }
}

/// Profiles are a tenant's, and plan all of its jobs: who is limited to one of them may read them only.
fn may_write(caller: &Caller) -> Result<(), Status> {
    match caller.may_ask_for(None) {
        true => Ok(()),
        false => Err(error::other_job(caller)),
    }
}

impl Profiles {
    async fn run(&self, caller: &Caller, command: Command) -> Result<u32, Status> {
        match self.0.handle.run(command).await {
            Ok(Reply::Points(n)) => Ok(n),
            Ok(_) => Err(unexpected("a number of points")),
            Err(failure) => Err(error::status(failure, caller)),
        }
    }
}

/// A profile by its whole key. Whether the caller may see that tenant's was decided when the key was made.
pub(in crate::api) async fn find(
    ctx: &Context,
    caller: &Caller,
    key: ProfileKey,
) -> Result<Profile, Status> {
    let what = format!("a profile of {} on {}", key.stage, key.gpu);
    let found = ctx.read(caller, move |state, _| {
        state.durable.profiles().get(&key).cloned()
    });
    found.await?.ok_or_else(|| error::not_found(&what))
}

/// As measured, and as fitted.
pub(in crate::api) fn fitted(profile: &Profile) -> pb::GetProfileResponse {
    pb::GetProfileResponse {
        profile: Some(convert::profile_points(profile)),
        curves: convert::curves(profile),
    }
}

/// So many of the caller's profiles behind a key (an admin's: everyone's), without their points.
pub(in crate::api) async fn list(
    ctx: &Context,
    caller: &Caller,
    after: Option<ProfileKey>,
    most: usize,
) -> Result<Vec<pb::Profile>, Status> {
    let who = caller.clone();
    let found = ctx.read(caller, move |state, _| {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = state.durable.profiles().range((from, Bound::Unbounded));
        let own = rest.filter(|(key, _)| who.is_of(&key.tenant));
        own.take(most).map(|(_, p)| convert::summary(p)).collect()
    });
    found.await
}
