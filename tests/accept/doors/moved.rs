//! Line 7: backup under load, restore elsewhere, an upgrade that is killed.
mod copy;
mod upgrade;

pub(crate) use upgrade::{NextArgs, next};

use crate::Run;
use crate::row::Row;

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = copy::measure(run.short).await?;
    rows.extend(upgrade::measure(run.short).await?);
    Ok(rows)
}
