//! `evenkeel drain`: the node grants nothing new, or grants again.
use clap::Args;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Grant nothing new, and ask all holders to give their leases back now
///
/// `evenkeel run` ends its command with SIGTERM, and with SIGKILL after its --grace. To let work come to its end, wait
/// until `evenkeel leases` is empty first. Leases that are held stay held until their holders give them back. For admins.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Grant again
    #[arg(long)]
    undo: bool,
}

pub(crate) async fn run(globals: &Globals, args: DrainArgs) -> Result<(), Failure> {
    let doing = if args.undo {
        "undo the drain"
    } else {
        "drain the node"
    };
    let node = globals.client()?.drain(!args.undo).await.doing(doing)?;
    if globals.json() {
        out::json(&node);
    } else if node.draining {
        out::note(format_args!(
            "{} grants nothing new, and asks for what is held: {} lease{} until now (evenkeel leases)",
            node.name,
            node.live_leases,
            if node.live_leases == 1 { "" } else { "s" }
        ));
    } else {
        out::note(format_args!("{} grants again", node.name));
    }
    Ok(())
}
