//! Forms batches for generation out of the environments of one group, first come, first served. While one group is
//! served, the others simulate (A2); fast environments enter the next batch early (A3).

use std::collections::VecDeque;

/// Environments that wait for actions, by group.
#[derive(Clone, Debug)]
pub struct BatchFormer {
    batch: usize,
    group_of: Vec<usize>,
    waiting: Vec<VecDeque<usize>>,
    next: usize,
}

impl BatchFormer {
    /// `envs` environments in `groups` groups of neighbours, served in batches of `batch` (at least 1). A group
    /// should be a multiple of the batch: what is left over waits for others of its group.
    pub fn new(envs: usize, groups: usize, batch: usize) -> Self {
        let groups = groups.clamp(1, envs.max(1));
        let group_of = (0..envs).map(|env| env * groups / envs.max(1)).collect();
        Self {
            batch: batch.max(1),
            group_of,
            waiting: vec![VecDeque::new(); groups],
            next: 0,
        }
    }

    /// An environment waits for its next chunk of actions.
    pub fn ready(&mut self, env: usize) {
        if let Some(queue) = self
            .group_of
            .get(env)
            .and_then(|group| self.waiting.get_mut(*group))
        {
            queue.push_back(env);
        }
    }

    /// The next full batch, if there is one: of the group whose turn it is, else of another.
    pub fn form(&mut self) -> Option<Vec<usize>> {
        let groups = self.waiting.len();
        let group = (0..groups)
            .map(|offset| (self.next + offset) % groups)
            .find(|group| self.waiting[*group].len() >= self.batch)?;
        self.next = (group + 1) % groups;
        Some(self.waiting[group].drain(..self.batch).collect())
    }

    /// The group of an environment.
    pub fn group(&self, env: usize) -> usize {
        self.group_of.get(env).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_of_one_group_and_groups_take_turns() {
        let mut former = BatchFormer::new(8, 2, 2);
        assert_eq!(former.form(), None, "nobody waits");
        for env in [0, 4, 1, 5, 2, 6, 3] {
            former.ready(env);
        }
        assert_eq!(former.form(), Some(vec![0, 1]));
        assert_eq!(former.form(), Some(vec![4, 5]), "the other group's turn");
        assert_eq!(former.form(), Some(vec![2, 3]));
        assert_eq!(former.form(), None, "6 is alone");
        former.ready(7);
        assert_eq!(former.form(), Some(vec![6, 7]));
    }

    #[test]
    fn the_fast_ones_go_early() {
        let mut former = BatchFormer::new(4, 1, 2);
        former.ready(3);
        former.ready(1);
        assert_eq!(
            former.form(),
            Some(vec![3, 1]),
            "0 and 2 are slow: nobody waits for them"
        );
    }

    #[test]
    fn more_groups_than_environments_are_as_many_as_environments() {
        let mut former = BatchFormer::new(1, 4, 1);
        former.ready(0);
        former.ready(9); // nobody knows it
        assert_eq!(former.form(), Some(vec![0]));
        assert_eq!(former.form(), None);
    }
}
