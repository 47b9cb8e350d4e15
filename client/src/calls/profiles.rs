//! Profiles: trials in, curves out.
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use pb::profile_service_client::ProfileServiceClient as Profiles;
use prost::Message as _;

use super::required;
use crate::client::{Client, Repeat};
use crate::error::Result;
use crate::model::{FittedProfile, Profile, ProfileKey, ProfilePoint, TrialAnswer, TrialRequest};

/// Bytes of a profile on the wire that a daemon takes; its own limit, so that a caller can tell before it asks.
pub const PROFILE_BYTES_MAX: usize = 768 << 10;

impl Profile {
    /// Bytes that it takes on the wire.
    pub fn wire_bytes(&self) -> usize {
        let profile = Some(self.clone().into());
        pb::ImportProfileRequest { profile }.encoded_len()
    }
}

impl Client {
    /// Stores one measurement; durable when this returns. Gives the number of points that the profile has now.
    ///
    /// Sent twice it would count twice, so it is repeated only while it has never left.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn report_trial(&self, key: ProfileKey, point: ProfilePoint) -> Result<u32> {
        self.trial(key, point, false).await
    }

    /// Stores one measurement in the place of those that were made before at the same cores, SMs, batch size and replicas.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn replace_trial(&self, key: ProfileKey, point: ProfilePoint) -> Result<u32> {
        self.trial(key, point, true).await
    }

    async fn trial(&self, key: ProfileKey, point: ProfilePoint, replaces: bool) -> Result<u32> {
        let body = pb::ReportTrialRequest {
            key: Some(key.into()),
            point: Some(point.into()),
            replaces,
        };
        let answer = self
            .attempt(Repeat::IfUnsent, Duration::ZERO, body, |channel, request| async move {
                Profiles::new(channel).report_trial(request).await
            })
            .await?;
        Ok(answer.body.point_count)
    }

    /// One profile with its fitted curves.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn profile(&self, key: ProfileKey) -> Result<FittedProfile> {
        let body = pb::GetProfileRequest {
            key: Some(key.into()),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Profiles::new(channel).get_profile(request).await
            })
            .await?;
        Ok(answer.body.into())
    }

    /// The caller's profiles, without their points.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn profiles(&self) -> Result<Vec<Profile>> {
        let answer = self
            .call(pb::ListProfilesRequest {}, |channel, request| async move {
                Profiles::new(channel).list_profiles(request).await
            })
            .await?;
        Ok(answer.body.profiles.into_iter().map(Into::into).collect())
    }

    /// Replaces a profile by the one given. Gives the number of its points.
    ///
    /// # Errors
    /// [`crate::Error::Rejected`] says which point is wrong.
    pub async fn import_profile(&self, profile: Profile) -> Result<u32> {
        let body = pb::ImportProfileRequest {
            profile: Some(profile.into()),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Profiles::new(channel).import_profile(request).await
            })
            .await?;
        Ok(answer.body.point_count)
    }

    /// Has a running worker that offered itself for trials of a stage run one, and waits for its end. Stores nothing.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]: no worker offers itself; [`crate::Error::Rejected`] with the reason `BEYOND_LEASE`:
    /// none has so large a lease; `WORKER_GONE`: it went away in the middle; `BUSY`: all are at work on others' trials, and it
    /// is worth coming back.
    pub async fn run_trial(&self, request: TrialRequest) -> Result<TrialAnswer> {
        let trial = request.trial;
        let wait = trial.warmup + trial.measure + request.patience;
        let body = pb::RunTrialRequest::from(request);
        // Sent twice it would be run twice, for nobody.
        let answer = self
            .attempt(Repeat::Once, wait, body, |channel, request| async move {
                Profiles::new(channel).run_trial(request).await
            })
            .await?;
        Ok(answer.body.into())
    }

    /// A profile as it was measured.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn export_profile(&self, key: ProfileKey) -> Result<Profile> {
        let body = pb::ExportProfileRequest {
            key: Some(key.into()),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Profiles::new(channel).export_profile(request).await
            })
            .await?;
        Ok(required(answer.body.profile, "ExportProfile", "profile")?.into())
    }
}
