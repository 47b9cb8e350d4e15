//! What a plan in force is expected to do, as of now: its curves were refitted, its shares are the same.
//!
//! A plan keeps what it promised when it was made only until more is known; people and several jobs' fairness go by this.
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::options::Menus;
use super::waterfill::Search;
use super::{Marginals, Problem, Solution, explain, finish};
use crate::id::StageId;
use crate::job::Plan;
use crate::unit::Rate;

/// Predictions and reasons of a plan, anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// By stage; zero for one that was never measured.
    pub stages: Vec<Rate>,
    /// The rollout's throughput.
    pub t_r: Rate,
    /// Training's.
    pub t_train: Rate,
    /// The job's.
    pub theta: Rate,
    /// The stage that binds.
    pub binding: StageId,
    /// Sentences for a person.
    pub why: Vec<String>,
}

/// What the shares of `now` yield under `problem`, what binds them, and what more would bring.
pub fn outlook(problem: &Problem, now: &Solution) -> Outlook {
    let mut told = Solution {
        marginals: marginals(problem, now),
        ..now.clone()
    };
    explain::retell(problem, &mut told);
    Outlook {
        stages: told.stages.iter().map(|s| s.rate).collect(),
        t_r: told.t_r,
        t_train: told.t_train,
        theta: told.theta,
        binding: told.binding,
        why: told.why,
    }
}

/// What one more core, SM granule and GiB would bring, beside what is there.
fn marginals(problem: &Problem, now: &Solution) -> Marginals {
    let Ok(menus) = Menus::of(problem, Some(now)) else {
        return Marginals::default();
    };
    let mut search = Search::new(problem, &menus);
    let best = search.maximise(menus.budget, None);
    best.map_or_else(Marginals::default, |(theta, _)| {
        finish::marginals(&mut search, theta)
    })
}

impl Plan {
    /// The same shares, expected to do something else.
    pub fn expect(&mut self, outlook: &Outlook) {
        for (stage, rate) in self.stages.iter_mut().zip(&outlook.stages) {
            stage.predicted = *rate;
        }
        (self.t_r, self.t_train) = (outlook.t_r, outlook.t_train);
        self.theta = outlook.theta;
        self.binding = outlook.binding;
        self.why.clone_from(&outlook.why);
    }
}
