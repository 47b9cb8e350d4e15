//! Cores: every thread and descendant is bound and read back, drift is repaired, what is given back is left, and
//! nobody else is touched.

use evenkeel_core::converge::{Push, Want};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::LeaseId;
use evenkeel_core::node::Node;
use evenkeeld::backend::affinity;
use evenkeeld::backend::cpu::CpuBackend;
use evenkeeld::proc_tree::{self, LEASE_MARK, SOCKET_MARK};
use evenkeeld::reconcile::Looker;

use crate::helper::{Tree, until};
use crate::{cpus, look, looker, node, socket, target, targets};

const LEASE: LeaseId = LeaseId(7);

fn cpu_looker(node: &Node) -> Looker {
    looker(node, vec![Box::new(CpuBackend::new(socket()))])
}

/// The last CPU that may be used: with more than one, it is not where processes start.
fn last() -> CpuSet {
    let last = cpus().iter().last().unwrap();
    CpuSet::range(last, last)
}

fn where_is(pid: u32) -> Vec<CpuSet> {
    let threads = proc_tree::threads(pid).into_iter();
    threads
        .filter_map(|tid| affinity::read(tid).unwrap())
        .collect()
}

#[test]
fn every_thread_and_descendant_is_bound_and_read_back() {
    let threads = Tree::play("threads 5");
    let mut processes = Tree::shell("sh -c 'sleep 100 & echo $!; wait' & echo $!; wait", &[]);
    let (one, two) = (processes.pid(), processes.pid());
    let node = node(false, vec![]);
    let wanted = targets(
        &node,
        vec![
            target(7, &threads.holder, Want::Bound(last())),
            target(8, &processes.holder, Want::Bound(last())),
        ],
    );
    let seen = look(&mut cpu_looker(&node), &wanted);
    let found = where_is(threads.holder.pid);
    assert!(found.len() >= 6, "the threads are there: {found:?}");
    assert!(found.iter().all(|c| *c == last()), "{found:?}");
    for pid in [processes.holder.pid, one.pid, two.pid] {
        assert_eq!(where_is(pid), [last()], "process {pid}");
    }
    for lease in [LEASE, LeaseId(8)] {
        let seen = &seen[&lease];
        assert_eq!(seen.cores, Some(last()));
        assert!(!seen.gone);
        assert_eq!((seen.fence.0, seen.generation.0), (3, 2));
    }
}

#[test]
fn a_process_that_undoes_its_affinity_is_bound_again() {
    let tree = Tree::play("threads 1");
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    let wanted = targets(&node, vec![target(7, &tree.holder, Want::Bound(last()))]);
    look(&mut looker, &wanted);
    if cpus().len() < 2 {
        println!("one CPU: no drift is possible");
        return;
    }
    let thread = proc_tree::threads(tree.holder.pid).pop().unwrap();
    affinity::bind(thread, &cpus()).unwrap();
    assert_ne!(affinity::read(thread).unwrap(), Some(last()));
    let seen = look(&mut looker, &wanted);
    assert_eq!(affinity::read(thread).unwrap(), Some(last()));
    assert_eq!(seen[&LEASE].cores, Some(last()));
}

#[test]
fn a_new_target_moves_the_tree() {
    let tree = Tree::play("threads 2");
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    for set in [last(), cpus(), cpus().take(1)] {
        let wanted = targets(
            &node,
            vec![target(7, &tree.holder, Want::Bound(set.clone()))],
        );
        let seen = look(&mut looker, &wanted);
        assert_eq!(seen[&LEASE].cores, Some(set.clone()));
        assert!(where_is(tree.holder.pid).iter().all(|c| *c == set));
    }
}

#[test]
fn what_is_given_back_moves_to_the_shared_set_and_has_no_cores() {
    for reserve in [false, true] {
        let node = node(reserve && cpus().len() > 1, vec![]);
        let tree = Tree::play("threads 1");
        let mut looker = cpu_looker(&node);
        let held = targets(&node, vec![target(7, &tree.holder, Want::Bound(last()))]);
        look(&mut looker, &held);
        let back = targets(&node, vec![target(7, &tree.holder, Want::Shared)]);
        let seen = look(&mut looker, &back);
        assert_eq!(
            seen[&LEASE].cores,
            Some(CpuSet::new()),
            "reserve: {reserve}"
        );
        let shared = node.shared_cpus();
        assert!(where_is(tree.holder.pid).iter().all(|c| *c == shared));
    }
}

#[test]
fn one_process_with_two_leases_runs_on_the_cores_of_both() {
    if cpus().len() < 2 {
        println!("one CPU: there is nothing to share");
        return;
    }
    let tree = Tree::play("threads 1");
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    let two = targets(
        &node,
        vec![
            target(7, &tree.holder, Want::Bound(cpus().take(1))),
            target(8, &tree.holder, Want::Bound(last())),
        ],
    );
    let seen = look(&mut looker, &two);
    assert_eq!(seen[&LEASE].cores, Some(cpus().take(1)));
    assert_eq!(seen[&LeaseId(8)].cores, Some(last()));
}

#[test]
fn a_tree_is_gone_only_when_nobody_of_it_is_left() {
    let own = socket().display().to_string();
    let marks = [(LEASE_MARK, "7"), (SOCKET_MARK, own.as_str())];
    let mut tree = Tree::shell("(sleep 100 & echo $!); exec sleep 100", &marks);
    let hidden = tree.pid();
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    let wanted = targets(&node, vec![target(7, &tree.holder, Want::Bound(last()))]);
    until("the hidden child is bound, too", || {
        look(&mut looker, &wanted);
        (where_is(hidden.pid) == [last()]).then_some(())
    });
    tree.end_root();
    let seen = look(&mut looker, &wanted);
    assert!(!seen[&LEASE].gone, "a child lives");
    assert_eq!(seen[&LEASE].cores, Some(last()));
    crate::helper::end(hidden);
    until("nobody is left", || {
        look(&mut looker, &wanted)[&LEASE].gone.then_some(())
    });
}

#[test]
fn a_pid_that_was_used_again_is_never_touched() {
    let tree = Tree::play("threads 1");
    let before = where_is(tree.holder.pid);
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    let mut other = tree.holder.clone();
    other.start_time -= 1;
    for want in [Want::Bound(last()), Want::Shared, Want::Gone(Push::Kill)] {
        let seen = look(&mut looker, &targets(&node, vec![target(7, &other, want)]));
        assert!(seen[&LEASE].gone);
        assert_eq!(seen[&LEASE].cores, None);
    }
    assert_eq!(where_is(tree.holder.pid), before);
    assert!(proc_tree::is_alive(tree.root()));
}

#[test]
fn a_quarantined_tree_is_pushed_as_hard_as_is_asked() {
    // It ignores SIGTERM, and so does what it starts.
    let mut tree = Tree::shell("trap '' TERM; sleep 100 & echo $!; wait", &[]);
    let stubborn = tree.pid();
    let mut polite = Tree::shell("sleep 100 & echo $!; wait", &[]);
    let child = polite.pid();
    let node = node(false, vec![]);
    let mut looker = cpu_looker(&node);
    let both = |push| {
        let list = vec![
            target(7, &tree.holder, Want::Gone(push)),
            target(8, &polite.holder, Want::Gone(push)),
        ];
        targets(&node, list)
    };
    let (wait, term, end) = (both(Push::Wait), both(Push::Terminate), both(Push::Kill));
    look(&mut looker, &wait);
    assert!(proc_tree::is_alive(child));
    look(&mut looker, &term);
    until("SIGTERM ends the polite tree", || {
        (polite.has_ended() && !proc_tree::is_alive(child)).then_some(())
    });
    assert!(proc_tree::is_alive(stubborn));
    look(&mut looker, &end);
    until("SIGKILL ends any tree", || {
        (tree.has_ended() && !proc_tree::is_alive(stubborn)).then_some(())
    });
    until("both are gone", || {
        let seen = look(&mut looker, &end);
        (seen[&LEASE].gone && seen[&LeaseId(8)].gone).then_some(())
    });
}
