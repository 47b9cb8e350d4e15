//! Evenkeel's daemon: the shell around the decisions of `evenkeel-core`. Configuration, the controller and its
//! handle, the ledger, reconcilers and backends, and the API. The binary `evenkeeld` wires them; tests link this.
pub mod api;
pub mod audit;
pub mod backend;
mod bucket;
pub mod clock;
pub mod config;
pub mod controller;
pub mod descriptors;
pub mod discover;
pub mod handle;
pub mod ledger;
pub mod logging;
pub mod proc_tree;
pub mod reconcile;
pub mod service;
pub mod traces;
