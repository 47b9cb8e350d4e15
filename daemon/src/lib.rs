//! The shell around the decisions of `evenkeel-core`. The binary wires its parts; tests link this.

pub mod ledger;
