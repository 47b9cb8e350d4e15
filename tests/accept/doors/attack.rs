//! Line 4: floods, slow readers and garbage, one at a time and together. Attackers and their victim are processes of
//! their own, of other users where this one is root. An attack that did not happen fails its row.
mod attacker;
mod bodies;
mod conn;
mod floods;
mod frames;
mod grants;
mod ground;
mod readers;
mod silent;
mod verdict;
mod victim;

use crate::Run;
use crate::row::Row;
use attacker::Attack;
pub(crate) use attacker::{AttackerArgs, attacker};
use ground::Ground;
pub(crate) use victim::{VictimArgs, victim};

/// How long each attack goes on, in seconds.
const SECONDS: u64 = 60;
/// In a short run.
const SECONDS_SHORT: u64 = 4;
/// And for all together at least.
const SECONDS_TOGETHER: u64 = 15;

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let seconds = if run.short { SECONDS_SHORT } else { SECONDS };
    let mut rows = Vec::new();
    for attack in Attack::ALL {
        // A daemon of its own: what one attack left is not laid to the next one's charge.
        let ground = Ground::open().await;
        let what = attack.in_words().0;
        rows.extend(verdict::rows(what, ground, &[attack], seconds, run.short).await);
    }
    // Ten at once on a few cores: each begins more slowly.
    let seconds = seconds.max(SECONDS_TOGETHER);
    let ground = Ground::open().await;
    rows.extend(
        verdict::rows(
            "all of them together",
            ground,
            &Attack::ALL,
            seconds,
            run.short,
        )
        .await,
    );
    Ok(rows)
}
