//! Line 1: grants, renewals and TLS against peers in one run.
use crate::Run;
use crate::row::Row;

pub(crate) async fn measure(_run: &Run) -> anyhow::Result<Vec<Row>> {
    anyhow::bail!("nothing measures this line yet")
}
