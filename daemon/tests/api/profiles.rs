//! Profiles: measured trial by trial, fitted, moved between nodes.
use evenkeel_proto::v1 as pb;
use tonic::Code;

use super::kit::{Rig, Who, refused};

fn key() -> Option<pb::ProfileKey> {
    Some(pb::ProfileKey {
        stage: "pick/gen".into(),
        gpu: "H100".into(),
    })
}

pub(crate) fn trial(sms: u32, units_per_s: f64) -> pb::ReportTrialRequest {
    let point = pb::ProfilePoint {
        cores: 1,
        sms,
        batch: 8,
        units_per_s,
        memory_bytes: 1 << 30,
        ..Default::default()
    };
    pb::ReportTrialRequest {
        key: key(),
        point: Some(point),
        replaces: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trials_are_kept_fitted_and_carried_away() {
    let mut rig = Rig::local().await;
    let mut alice = rig.profiles(Who::Alice).await;
    for (i, (sms, rate)) in [(33, 50.0), (66, 96.0), (132, 100.0)]
        .into_iter()
        .enumerate()
    {
        let count = alice
            .report_trial(trial(sms, rate))
            .await
            .unwrap()
            .into_inner()
            .point_count;
        assert_eq!(count as usize, i + 1);
    }
    rig.restart().await;
    let mut alice = rig.profiles(Who::Alice).await;
    let got = alice
        .get_profile(pb::GetProfileRequest { key: key() })
        .await
        .unwrap()
        .into_inner();
    let profile = got.profile.unwrap();
    assert_eq!(
        (
            profile.tenant.as_str(),
            profile.points.len(),
            profile.point_count
        ),
        ("alice", 3, 3)
    );
    assert_eq!(profile.points[1].weight, 1.0);
    assert_eq!((got.curves[0].batch, got.curves[0].knee), (8, 66));

    let listed = alice
        .list_profiles(pb::ListProfilesRequest {})
        .await
        .unwrap()
        .into_inner()
        .profiles;
    assert_eq!(
        (listed.len(), listed[0].points.len(), listed[0].point_count),
        (1, 0, 3)
    );
    let mut bob = rig.profiles(Who::Bob).await;
    assert!(
        bob.list_profiles(pb::ListProfilesRequest {})
            .await
            .unwrap()
            .into_inner()
            .profiles
            .is_empty()
    );
    let get = bob.get_profile(pb::GetProfileRequest { key: key() }).await;
    refused("bob", get, Code::NotFound, "NOT_FOUND");

    let exported = alice
        .export_profile(pb::ExportProfileRequest { key: key() })
        .await
        .unwrap();
    let profile = exported.into_inner().profile;
    let count = bob
        .import_profile(pb::ImportProfileRequest { profile })
        .await
        .unwrap();
    assert_eq!(count.into_inner().point_count, 3);
    let bobs = bob
        .get_profile(pb::GetProfileRequest { key: key() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        bobs.profile.unwrap().tenant,
        "bob",
        "what he imports is his"
    );
}
