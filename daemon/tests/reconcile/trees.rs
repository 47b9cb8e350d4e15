//! Which processes belong to a lease: descendants, children of parents that have ended, marked ones; and who does not.

use std::collections::BTreeSet;

use evenkeel_core::id::LeaseId;
use evenkeeld::proc_tree::{Forest, Group, LEASE_MARK, Process, SOCKET_MARK};

use crate::helper::{Tree, until};
use crate::socket;

const LEASE: LeaseId = LeaseId(7);

fn group(tree: &Tree) -> Group {
    Group {
        lease: LEASE,
        root: tree.root(),
        uid: tree.holder.uid,
    }
}

fn members(forest: &mut Forest, groups: &[Group]) -> BTreeSet<Process> {
    forest
        .look(groups)
        .unwrap()
        .remove(&LEASE)
        .unwrap()
        .processes
}

#[test]
fn descendants_belong_to_the_root() {
    let mut tree = Tree::shell("sh -c 'sleep 100 & echo $!; wait' & echo $!; wait", &[]);
    let (one, two) = (tree.pid(), tree.pid());
    let mut forest = Forest::new(socket());
    let found = members(&mut forest, &[group(&tree)]);
    assert_eq!(found, BTreeSet::from([tree.root(), one, two]));
}

#[test]
fn the_nearest_root_wins() {
    let mut tree = Tree::shell("sh -c 'sleep 100 & echo $!; wait' & echo $!; wait", &[]);
    let (a, b) = (tree.pid(), tree.pid());
    // The script's first line may come from either of them.
    let (below, leaf) = if a < b { (a, b) } else { (b, a) };
    let mut forest = Forest::new(socket());
    let outer = group(&tree);
    assert_eq!(members(&mut forest, &[outer]).len(), 3);
    let inner = Group {
        lease: LeaseId(8),
        root: below,
        uid: outer.uid,
    };
    let found = forest.look(&[outer, inner]).unwrap();
    assert_eq!(found[&LEASE].processes, BTreeSet::from([tree.root()]));
    assert_eq!(found[&LeaseId(8)].processes, BTreeSet::from([below, leaf]));
}

#[test]
fn a_child_that_nobody_saw_is_found_by_its_mark() {
    let own = socket().display().to_string();
    // The parent of the sleeper ends at once, so that it hangs below init.
    let script = "(sleep 100 & echo $!); exec sleep 100";
    let mut tree = Tree::shell(script, &[(LEASE_MARK, "7"), (SOCKET_MARK, &own)]);
    let hidden = tree.pid();
    let mut stranger = Tree::shell(script, &[(LEASE_MARK, "7"), (SOCKET_MARK, "/other.sock")]);
    let other = stranger.pid();
    let mut forest = Forest::new(socket());
    let found = until("the hidden child is found", || {
        Some(members(&mut forest, &[group(&tree)])).filter(|m| m.contains(&hidden))
    });
    assert_eq!(found, BTreeSet::from([tree.root(), hidden]));
    assert!(!found.contains(&other), "another daemon's lease 7");

    // It stays the lease's when the root has ended, and the tree is not gone before it is.
    tree.end_root();
    assert_eq!(
        members(&mut forest, &[group(&tree)]),
        BTreeSet::from([hidden])
    );
    crate::helper::end(hidden);
    until("nobody is left", || {
        let found = forest
            .look(&[group(&tree)])
            .unwrap()
            .remove(&LEASE)
            .unwrap();
        (found.processes.is_empty() && found.thorough).then_some(())
    });
}

#[test]
fn a_child_that_was_seen_stays_without_a_mark() {
    let mut tree = Tree::shell("sleep 100 & echo $!; wait", &[]);
    let child = tree.pid();
    let mut forest = Forest::new(socket());
    assert!(members(&mut forest, &[group(&tree)]).contains(&child));
    tree.end_root();
    assert_eq!(
        members(&mut forest, &[group(&tree)]),
        BTreeSet::from([child])
    );
}

#[test]
fn a_marked_ancestor_is_no_member() {
    let own = socket().display().to_string();
    let script = "sleep 100 & echo $!; wait";
    let mut tree = Tree::shell(script, &[(LEASE_MARK, "7"), (SOCKET_MARK, &own)]);
    let worker = tree.pid();
    let group = Group {
        lease: LEASE,
        root: worker,
        uid: tree.holder.uid,
    };
    let mut forest = Forest::new(socket());
    assert_eq!(members(&mut forest, &[group]), BTreeSet::from([worker]));
}

#[test]
fn a_pid_that_was_used_again_is_nobody() {
    let tree = Tree::shell("exec sleep 100", &[]);
    let root = Process {
        start_time: tree.root().start_time - 1,
        ..tree.root()
    };
    let mut forest = Forest::new(socket());
    let mut group = group(&tree);
    group.root = root;
    let found = forest.look(&[group]).unwrap().remove(&LEASE).unwrap();
    assert!(found.processes.is_empty() && found.thorough, "{found:?}");
}

#[test]
fn a_process_that_has_ended_and_was_not_collected_is_gone() {
    let mut command = std::process::Command::new("sh");
    // The child ends when it reads; its parent has not collected it then.
    let mut tree = Tree::start(command.args(["-c", "read line"]));
    let root = tree.root();
    let mut forest = Forest::new(socket());
    let group = group(&tree);
    assert_eq!(members(&mut forest, &[group]), BTreeSet::from([root]));
    tree.hang_up();
    until("a zombie is nobody", || {
        members(&mut forest, &[group]).is_empty().then_some(())
    });
    assert!(std::path::Path::new(&format!("/proc/{}", root.pid)).exists());
}
