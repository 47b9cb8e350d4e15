//! The daemon with its ledger switched off: the same library, wired as `evenkeeld` wires it, with commits that write
//! nothing. Only here: no setting of the daemon makes it forget.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_core::command::Command;
use evenkeeld::api::{self, Api};
use evenkeeld::audit::Audit;
use evenkeeld::clock::Clock;
use evenkeeld::config::Config;
use evenkeeld::controller::{self, Controller};
use evenkeeld::descriptors;
use evenkeeld::discover::{Sources, discover};
use evenkeeld::ledger::{self, History};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Serves until the process is killed. The pool has to be a synthetic one: nothing is enforced.
///
/// # Errors
/// When the configuration is wrong, or the ledger or a listener cannot be opened.
pub async fn serve(config: &Path) -> anyhow::Result<()> {
    let config = Config::load(Some(config))?;
    let clock = Clock::open()?;
    let open_files = descriptors::raise();
    let found = discover(&config, &Sources::default())?;
    let settings = ledger::Config::new(&config.ledger.path);
    let history = History::new(&settings);
    let opened = ledger::open(settings).await?;
    let mut ledger = opened.ledger;
    ledger.switch_off();
    let rules = controller::Config {
        settings: config.settings(),
        boot_id: clock.boot_id().to_owned(),
        caps: config.tenants.caps(),
        keep_events: Duration::from_secs(86_400),
    };
    let poke = Arc::new(Notify::new());
    let (controller, handle, _targets) =
        Controller::start(rules, ledger, opened.loaded, history, poke).await?;
    let stop = CancellationToken::new();
    let owner = tokio::spawn(controller.run(stop.clone()));
    let installed = Command::Discovered {
        node: found.node.into(),
        unavailable: found.unavailable.into(),
    };
    handle.run_patiently(installed).await?;
    let config = api::Config {
        connections: api::Connections::within(open_files),
        ..api::Config::new(&config, std::collections::BTreeMap::new(), Audit::off())
    };
    let _api = Api { config, handle }.spawn(stop).await?;
    owner.await.context("the controller panicked")??;
    Ok(())
}
