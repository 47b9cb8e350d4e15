//! Benchmarks of Evenkeel, each beside its peers in one run on one machine. `bench-leases` (src/bin/leases) measures
//! durable leases; what it is made of is here, since `accept` judges the same figures.

/// The part of etcd's wire that is spoken here.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub(crate) mod etcd {
    tonic::include_proto!("etcdserverpb");
}

pub mod bare;
pub mod idle;
pub mod load;
pub mod machine;
pub mod off;
pub mod peers;
pub mod plot;
pub mod report;
pub mod server;
pub mod table;
pub mod usage;
