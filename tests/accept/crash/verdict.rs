//! Whether what the workers were told agrees with what the ledger says: request by request, lease by lease.
use std::collections::BTreeMap;

use super::crew::Tally;
use crate::trail::Trail;

/// What does not agree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Acknowledged leases that the ledger does not have, or that ended otherwise than by their worker's word.
    pub(super) lost: Vec<String>,
    /// Requests with more than one grant, or with one that nobody was told of.
    pub(super) twice: Vec<String>,
}

/// Compares them. All workers have given everything back and ended by now.
pub(super) fn judge(tally: &Tally, trail: &Trail) -> Verdict {
    let (grants, ends) = (trail.grants(), trail.ends());
    let told: BTreeMap<&str, u64> = tally
        .acknowledged
        .iter()
        .map(|(request, lease)| (request.as_str(), *lease))
        .collect();
    let mut verdict = Verdict::default();
    for (request, leases) in &grants {
        let why = match (told.get(request.as_str()), leases.as_slice()) {
            (_, [_, _, ..]) => format!("request {request} was granted leases {leases:?}"),
            (Some(_), _) => continue,
            (None, _) if tally.refused.contains(request) => {
                format!("request {request} was refused, and granted leases {leases:?}")
            }
            (None, _) => format!("nobody was told of leases {leases:?} of request {request}"),
        };
        verdict.twice.push(why);
    }
    for (request, lease) in &tally.acknowledged {
        if !grants.get(request).is_some_and(|l| l.contains(lease)) {
            let why = format!("the ledger has no lease {lease} of request {request}");
            verdict.lost.push(why);
            continue;
        }
        match ends.get(lease).map(Vec::as_slice) {
            Some([how]) if how == "released" => {}
            Some(ends) => verdict
                .lost
                .push(format!("lease {lease} ended as {ends:?}")),
            None => verdict.lost.push(format!("lease {lease} has not ended")),
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn granted(request: &str, id: u64) -> (&'static str, u64, serde_json::Value) {
        (
            "lease_granted",
            id,
            json!({"lease": {"id": id, "request": request}}),
        )
    }
    fn ended(id: u64, how: &str) -> (&'static str, u64, serde_json::Value) {
        ("lease_ended", id, json!({"id": id, "how": how}))
    }
    fn told(leases: &[(&str, u64)]) -> Tally {
        Tally {
            acknowledged: leases.iter().map(|(r, l)| ((*r).to_owned(), *l)).collect(),
            refused: ["r9".to_owned()].into(),
            ..Tally::default()
        }
    }

    #[test]
    fn the_ledger_is_the_judge() {
        let check = |tally: Tally, trail: Trail, lost: usize, twice: usize| {
            let verdict = judge(&tally, &trail);
            assert_eq!(
                (verdict.lost.len(), verdict.twice.len()),
                (lost, twice),
                "{verdict:?}"
            );
        };
        let (one, over) = (granted("r1", 1), ended(1, "released"));
        check(
            told(&[("r1", 1)]),
            Trail::of(vec![one.clone(), over.clone()]),
            0,
            0,
        );
        // A lost answer led to a second lease, which expires unseen.
        let second = vec![
            one.clone(),
            granted("r1", 2),
            over.clone(),
            ended(2, "expired"),
        ];
        check(told(&[("r1", 1)]), Trail::of(second), 0, 1);
        check(told(&[]), Trail::of(vec![one.clone(), over.clone()]), 0, 1);
        check(told(&[]), Trail::of(vec![granted("r9", 1)]), 0, 1);
        // Acknowledged, and not there; or taken from a worker that renewed it.
        check(told(&[("r1", 1)]), Trail::of(vec![]), 1, 0);
        check(
            told(&[("r1", 1)]),
            Trail::of(vec![one.clone(), ended(1, "expired")]),
            1,
            0,
        );
        check(told(&[("r1", 1)]), Trail::of(vec![one]), 1, 0);
    }
}
