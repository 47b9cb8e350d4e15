//! What happens after a search: spare SMs are given out, a previous split that is as good is kept, marginals.
use alloc::vec::Vec;

use super::options::Budget;
use super::waterfill::{Pick, Search};
use super::{Marginals, Solution, ebrl, waterfill};
use crate::job::{Policy, SmMode};
use crate::unit::Total as _;

/// SMs that a combination leaves on each GPU.
pub(super) fn spare(search: &Search<'_>, picks: &[Pick]) -> u32 {
    let used: u32 = search
        .menus
        .stages
        .iter()
        .zip(picks)
        .map(|(m, p)| m.ladder[p.rung])
        .total();
    search.menus.budget.sms.saturating_sub(used)
}

/// The step to a stage's next rung, if it is there and fits into `spare`.
fn step(search: &Search<'_>, picks: &[Pick], i: usize, spare: u32) -> Option<u32> {
    let menu = &search.menus.stages[i];
    let step = menu.ladder.get(picks[i].rung + 1)? - menu.ladder[picks[i].rung];
    (menu.balanced && step <= spare).then_some(step)
}

/// In `reserve` no SM that some stage can take stays idle: guarantees first rise back to what the stages had,
/// then one rung at a time for the stage that binds, those whose rate still rises before those that are flat.
/// In `cap` guarantees stay; the caps are computed from the spare (see `explain`).
pub(super) fn spread(
    search: &Search<'_>,
    mut picks: Vec<Pick>,
    previous: Option<&Solution>,
) -> Vec<Pick> {
    if search.problem.sm_mode == SmMode::Cap {
        return picks;
    }
    let mut spare = spare(search, &picks);
    let had = |i: usize| {
        previous
            .and_then(|p| p.stages.get(i))
            .map_or(0, |s| s.sms.0)
    };
    while spare > 0 {
        let order = |i: usize| {
            let menu = &search.menus.stages[i];
            let (row, rung) = (&menu.rows[picks[i].row], picks[i].rung);
            let back = menu
                .ladder
                .get(rung + 1)
                .is_some_and(|next| *next <= had(i));
            let rises = row
                .rates
                .get(rung + 1)
                .is_some_and(|next| *next > row.rates[rung]);
            (!back, !rises, menu.weight * row.rates[rung])
        };
        let next = (0..picks.len())
            .filter_map(|i| Some((i, step(search, &picks, i, spare)?)))
            .min_by(|(a, _), (b, _)| {
                let (a, b) = (order(*a), order(*b));
                (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2))
            });
        let Some((i, step)) = next else { break };
        picks[i].rung += 1;
        spare -= step;
    }
    picks
}

/// The previous split as picks, if it fits, attains `theta`, and leaves nothing that `spread` would give out.
pub(super) fn kept(search: &Search<'_>, previous: &Solution, theta: f64) -> Option<Vec<Pick>> {
    let menus = &search.menus.stages;
    if previous.stages.len() != menus.len() {
        return None;
    }
    let mut left = search.menus.budget;
    let mut picks = Vec::with_capacity(menus.len());
    for (menu, had) in menus.iter().zip(&previous.stages) {
        let row = menu.rows.iter().position(|r| {
            r.cores == had.cores && r.batch == had.batch && r.memory == had.memory.0
        })?;
        let rung = menu.ladder.binary_search(&had.sms.0).ok()?;
        left = left.minus(had.cores, had.sms.0, had.memory.0)?;
        picks.push(Pick { row, rung });
    }
    if search.theta(&picks).total_cmp(&theta).is_ne() {
        return None;
    }
    let complete = match search.problem.sm_mode {
        SmMode::Reserve => (0..picks.len()).all(|i| step(search, &picks, i, left.sms).is_none()),
        SmMode::Cap => least_rungs(search, &picks, theta),
    };
    complete.then_some(picks)
}

/// Whether no guarantee could be one rung lower at the same Θ.
fn least_rungs(search: &Search<'_>, picks: &[Pick], theta: f64) -> bool {
    (0..picks.len())
        .filter(|i| search.menus.stages[*i].balanced)
        .all(|i| {
            let mut lower = picks.to_vec();
            lower[i].rung.checked_sub(1).is_none_or(|rung| {
                lower[i].rung = rung;
                search.theta(&lower) < theta
            })
        })
}

/// What one more core, SM granule and GiB would bring, by the same policy.
pub(super) fn marginals(search: &mut Search<'_>, theta: f64) -> Marginals {
    let Budget { cores, sms, memory } = search.menus.budget;
    let granule = search.menus.granule;
    let mut gain = |budget: Budget| {
        let more = match search.problem.policy {
            Policy::Waterfill => search.maximise(budget, Some(theta)).map(|(more, _)| more),
            Policy::Ebrl => ebrl::search(search, budget).map(|p| search.theta(&p)),
        };
        more.map_or(0.0, |more| (more - theta).max(0.0))
    };
    let core = gain(Budget {
        cores: cores.saturating_add(1),
        sms,
        memory,
    });
    let more_sms = gain(Budget {
        cores,
        sms: sms.saturating_add(granule),
        memory,
    });
    let gib = gain(Budget {
        cores,
        sms,
        memory: memory.saturating_add(1 << 30),
    });
    Marginals {
        core,
        sms: more_sms,
        granule: crate::unit::Sms(granule),
        gib,
    }
}

/// Falls back on the exact search where a published rule finds no split.
pub(super) fn fallback(search: &mut Search<'_>) -> Option<Vec<Pick>> {
    waterfill::solve(search, None)
}
