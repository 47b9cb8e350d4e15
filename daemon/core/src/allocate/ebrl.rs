//! The allocator as EBRL publishes it (arXiv:2609.27547): the simulator takes its cores and the smallest SM quota
//! at its knee, then a binary search splits the remaining SMs between generation and training.
//!
//! The paper gives no pseudo-code; where it is silent this file decides:
//! - Other rollout stages (inference) take their knee as well, after the simulator, in the job's order.
//! - "Its cores": the fewest with which it reaches its knee, while every other stage keeps a least share.
//! - Batch sizes: a side takes the (batch, cores) with the highest rate that fits, generation before training.
//! - Several stages on one side: its slowest stage is raised, step by step, while that is possible.
//!
//! It searches the same menus as `waterfill` and can therefore never beat it. It does not look at the previous
//! split. Called by `solve`.
use alloc::vec::Vec;

use super::finish;
use super::options::Budget;
use super::waterfill::{Pick, Search};
use crate::curve::KNEE;
use crate::job::Role;
use crate::unit::Total as _;

/// The split, spare SMs given out. Where the rule finds none although one exists, the exact search answers.
pub(super) fn solve(s: &mut Search<'_>) -> Option<Vec<Pick>> {
    let picks = match search(s, s.menus.budget) {
        Some(picks) => picks,
        None => return finish::fallback(s),
    };
    Some(finish::spread(s, picks, None))
}

/// The split within `budget`, before spare SMs are given out.
pub(super) fn search(s: &mut Search<'_>, budget: Budget) -> Option<Vec<Pick>> {
    let mut picks = s.fits(0.0, budget, None)?;
    let stages = &s.problem.stages;
    let of = |want: &dyn Fn(Role) -> bool| -> Vec<usize> {
        (0..stages.len())
            .filter(|i| s.menus.stages[*i].balanced && want(stages[*i].role))
            .collect()
    };
    let simulation = of(&|r| r == Role::Simulation);
    let inference = of(&|r| r == Role::Inference);
    let (generation, training) = (of(&|r| r == Role::Generation), of(&|r| r == Role::Training));
    for i in simulation.into_iter().chain(inference) {
        s.evaluations += 1;
        picks[i] = at_knee(s, &picks, i, budget)?;
    }
    let both: Vec<usize> = generation.iter().chain(&training).copied().collect();
    let rest = left(s, &picks, budget, &both)?;
    let side_sms = |side: &[usize]| -> u32 { side.iter().map(|i| cost(s, &picks, *i).1).total() };
    let (mut low, mut high) = (
        side_sms(&generation),
        rest.sms.checked_sub(side_sms(&training))?,
    );
    if generation.is_empty() || training.is_empty() {
        return raise(s, picks, &both, budget, rest.sms);
    }
    let mut best: Option<(f64, Vec<Pick>)> = None;
    // Smallest share of generation at which the rollout is no longer the slower side.
    while low <= high {
        let x = low + (high - low) / 2;
        s.evaluations += 1;
        let tried = raise(s, picks.clone(), &generation, budget, x)?;
        let tried = raise(s, tried, &training, budget, rest.sms - x)?;
        let (t_r, t_train, theta) = s.problem.combine(&s.rates(&tried));
        if best.as_ref().is_none_or(|(b, _)| theta > *b) {
            best = Some((theta, tried));
        }
        if t_r < t_train {
            low = x.saturating_add(1);
            if low == x {
                break;
            }
        } else if let Some(less) = x.checked_sub(1) {
            high = less;
        } else {
            break;
        }
    }
    best.map(|(_, picks)| picks)
}

fn cost(s: &Search<'_>, picks: &[Pick], i: usize) -> (u32, u32, u64) {
    let (menu, pick) = (&s.menus.stages[i], picks[i]);
    let row = &menu.rows[pick.row];
    (row.cores, menu.ladder[pick.rung], row.memory)
}

/// What is left of `budget` for the stages in `without`, the others as picked.
fn left(s: &Search<'_>, picks: &[Pick], budget: Budget, without: &[usize]) -> Option<Budget> {
    (0..picks.len())
        .filter(|i| !without.contains(i))
        .try_fold(budget, |left, i| {
            let (cores, sms, memory) = cost(s, picks, i);
            left.minus(cores, sms, memory)
        })
}

/// For each row of stage `i` that fits: the least rung that reaches `rate` of the row's rungs that fit.
fn reaching<'s>(
    s: &'s Search<'_>,
    i: usize,
    room: Budget,
    rate: impl Fn(f64) -> f64 + 's,
) -> impl Iterator<Item = (f64, Pick, (u32, u32, u64))> + 's {
    let menu = &s.menus.stages[i];
    let rungs = menu.ladder.partition_point(|q| *q <= room.sms);
    menu.rows.iter().enumerate().filter_map(move |(row, r)| {
        let fits = r.cores <= room.cores && r.memory <= room.memory;
        let rates = if fits { &r.rates[..rungs] } else { &[] };
        let goal = rate(*rates.last()?);
        let rung = rates.partition_point(|x| *x < goal);
        let rate = *rates.get(rung)?;
        Some((
            rate,
            Pick { row, rung },
            (r.cores, menu.ladder[rung], r.memory),
        ))
    })
}

/// The fewest cores, then SMs, then bytes, with which stage `i` reaches 95 % of the best it can reach in the
/// room that the other picks leave.
fn at_knee(s: &Search<'_>, picks: &[Pick], i: usize, budget: Budget) -> Option<Pick> {
    let room = left(s, picks, budget, &[i])?;
    let best = reaching(s, i, room, |most| most)
        .map(|c| c.0)
        .fold(0.0, f64::max);
    reaching(s, i, room, |_| KNEE * best)
        .min_by_key(|c| (c.2, c.1))
        .map(|c| c.1)
}

/// Gives the stages of one side up to `sms` SMs together: a lone stage its best choice, several by raising the
/// slowest.
fn raise(
    s: &Search<'_>,
    mut picks: Vec<Pick>,
    side: &[usize],
    budget: Budget,
    sms: u32,
) -> Option<Vec<Pick>> {
    let room = |picks: &[Pick], i: usize| -> Option<Budget> {
        let mut room = left(s, picks, budget, &[i])?;
        let others: u32 = side
            .iter()
            .filter(|j| **j != i)
            .map(|j| cost(s, picks, *j).1)
            .total();
        room.sms = room.sms.min(sms.checked_sub(others)?);
        Some(room)
    };
    if let [i] = side {
        let room = room(&picks, *i)?;
        let best = reaching(s, *i, room, |most| most).max_by(|a, b| {
            a.0.total_cmp(&b.0)
                .then((b.2.1, b.2.2, b.2.0).cmp(&(a.2.1, a.2.2, a.2.0)))
        })?;
        picks[*i] = best.1;
        return Some(picks);
    }
    loop {
        let rates = s.rates(&picks);
        let slowest = side
            .iter()
            .copied()
            .min_by(|a, b| rates[*a].total_cmp(&rates[*b]));
        let Some(i) = slowest else { return Some(picks) };
        let room = room(&picks, i)?;
        let better = rates[i].next_up();
        let next = reaching(s, i, room, |_| better).min_by_key(|c| (c.2.1, c.2.0, c.2.2, c.1));
        match next {
            Some((_, pick, _)) => picks[i] = pick,
            None => return Some(picks),
        }
    }
}
