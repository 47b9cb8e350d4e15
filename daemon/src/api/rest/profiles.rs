//! Profiles: what stages were measured to do, and the curves fitted to it.
use axum::extract::{Extension, State};
use axum::http::Uri;
use evenkeel_core::command::Caller;
use evenkeel_core::curve::ProfileKey;
use evenkeel_core::id::Name;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Shared;
use super::access::Viewer;
use super::answer::{Answer, Shown};
use super::ask::{self, Path, Query};
use super::problem::Problem;
use super::shape::{FittedProfile, ProfilePage};
use crate::api::convert::{self, Bad};
use crate::api::error;
use crate::api::grpc;
use crate::api::limits::PAGE_MAX;
use crate::api::turns::{Turn, aside};

/// Which profiles.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ProfilesQuery {
    /// Only those behind this one: `next_after` of the page before, which is tenant, stage and GPU.
    #[param(
        min_length = 5,
        pattern = "^[!-~]{1,128} [!-~]{1,128} [!-~]{1,128}$",
        example = "robotics pick-and-place/simulation none"
    )]
    after: Option<String>,
    /// At most so many; 1,000 if left out.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// Profiles
///
/// Without their points. A page ends with a `Link` to the next one.
#[utoipa::path(
    get,
    path = "/v1/profiles",
    operation_id = "listProfiles",
    tag = "profiles",
    params(ProfilesQuery),
    responses((status = 200, body = ProfilePage))
)]
pub(super) async fn list(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    uri: Uri,
    Query(query): Query<ProfilesQuery>,
) -> Answer<ProfilePage> {
    let most = ask::limit(query.limit, PAGE_MAX)? as usize;
    let after = query.after.as_deref().map(behind).transpose()?;
    let mut profiles = grpc::list_profiles(&ctx, &caller, after, most + 1).await?;
    let more = profiles.len() > most;
    profiles.truncate(most);
    let last = profiles.last().filter(|_| more);
    let cursor = last.map(|p| {
        let key = p.key.clone().unwrap_or_default();
        format!("{} {} {}", p.tenant, key.stage, key.gpu)
    });
    let next = cursor
        .as_deref()
        .map(|cursor| ask::next_page(&uri, &encoded(cursor)));
    let page = ProfilePage::new(profiles, cursor.unwrap_or_default());
    Ok(Shown::page(page, next))
}

/// The key that a cursor names. Names hold no spaces.
fn behind(cursor: &str) -> Result<ProfileKey, Bad> {
    let parts: Vec<&str> = cursor.split(' ').collect();
    let [tenant, stage, gpu] = parts[..] else {
        let why =
            "is not tenant, stage and GPU with a space between them; take it from the page before";
        return Err(Bad::new("after", why));
    };
    Ok(ProfileKey {
        tenant: convert::name("after", tenant)?,
        stage: convert::name("after", stage)?,
        gpu: convert::name("after", gpu)?,
    })
}

/// For a query: everything but letters, digits and a few signs is escaped.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .map(|b| match plain(b) {
            true => char::from(b).to_string(),
            false => format!("%{b:02X}"),
        })
        .collect()
}

/// Which profile.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ProfilePath {
    /// The stage's fingerprint, percent-encoded: `pick/simulation` is `pick%2Fsimulation`.
    #[param(
        min_length = 1,
        max_length = 128,
        pattern = "^[!-~]+$",
        example = "pick-and-place/simulation"
    )]
    stage: String,
    /// The GPU model measured on; `none` for stages without a GPU.
    #[param(
        min_length = 1,
        max_length = 128,
        pattern = "^[!-~]+$",
        example = "none"
    )]
    gpu: String,
}

/// Whose profile.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OwnerQuery {
    /// The tenant; left out: the caller's own, or (for an admin) that of whoever has one.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    tenant: Option<String>,
}

/// One profile
///
/// As measured and as fitted.
#[utoipa::path(
    get,
    path = "/v1/profiles/{stage}/{gpu}",
    operation_id = "getProfile",
    tag = "profiles",
    params(ProfilePath, OwnerQuery),
    responses((status = 200, body = FittedProfile))
)]
pub(super) async fn show(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Extension(turn): Extension<Turn>,
    Path(path): Path<ProfilePath>,
    Query(query): Query<OwnerQuery>,
) -> Answer<FittedProfile> {
    let stage = convert::name("stage", &path.stage)?;
    let gpu = convert::name("gpu", &path.gpu)?;
    let asked = ask::name("tenant", query.tenant.as_deref())?;
    let tenant = owner(&ctx, &caller, asked, &stage, &gpu).await?;
    let key = ProfileKey { tenant, stage, gpu };
    let profile = grpc::find_profile(&ctx, &caller, key).await?;
    // A fit of thousands of points takes its time, and must not take the runtime's.
    let fitted = aside(turn, move || grpc::fitted(&profile)).await?;
    Ok(Shown::new(fitted))
}

/// Whose profile a caller means. Nobody but an admin means another's.
async fn owner(
    ctx: &crate::api::context::Context,
    caller: &Caller,
    asked: Option<Name>,
    stage: &Name,
    gpu: &Name,
) -> Result<Name, Problem> {
    if !caller.admin {
        return match asked {
            Some(other) if other != caller.tenant => {
                let what = format!("a profile of {stage} on {gpu}");
                Err(error::not_found(&what).into())
            }
            _ => Ok(caller.tenant.clone()),
        };
    }
    if let Some(tenant) = asked {
        return Ok(tenant);
    }
    let (stage, gpu, own) = (stage.clone(), gpu.clone(), caller.tenant.clone());
    let found = ctx.read(caller, move |state, _| {
        let keys = state.durable.profiles().keys();
        let mut named = keys.filter(|key| key.stage == stage && key.gpu == gpu);
        let first = named.next().map(|key| key.tenant.clone());
        let has_own = first.as_ref() == Some(&own) || named.any(|key| key.tenant == own);
        if has_own { own } else { first.unwrap_or(own) }
    });
    Ok(found.await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_key() {
        let key = behind("robotics pick/sim H100").unwrap();
        assert_eq!(
            (key.tenant.as_str(), key.stage.as_str(), key.gpu.as_str()),
            ("robotics", "pick/sim", "H100")
        );
        for bad in ["", "a", "a b", "a b c d", "a  c", " a b"] {
            assert!(behind(bad).is_err(), "{bad:?}");
        }
        assert_eq!(encoded("a b/c&é"), "a%20b%2Fc%26%C3%A9");
    }
}
