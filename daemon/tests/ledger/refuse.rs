//! What the schema refuses by itself, whatever the code above it thinks; and that a refusal leaves nothing.
use evenkeel_core::event::Event;
use evenkeel_core::grant::{GpuShare, Member, Vector};
use evenkeel_core::id::{Fence, GpuId, JobId, LeaseId, StageId, WorkerId};
use evenkeel_core::lease::Lease;
use evenkeel_core::pool::Owner;
use evenkeel_core::state::Durable;
use evenkeel_core::unit::{Bytes, Sms};
use evenkeeld::ledger::{
    Batch, CommitError, CoreOwnerRow, LeaseGpuRow, Ledger, Refusal, SlotGpuRow, Tables, fold,
};
use sqlx::{Connection, Executor, SqliteConnection};

use super::kit::{Rng, block_on, config, job, lease, node, open, plan, vector};

/// A ledger with one lease (core 1, 100 SMs, 25 GiB) and one slot of a job (core 2, 20 SMs, 5 GiB).
struct Desk {
    ledger: Ledger,
    tables: Tables,
    durable: Durable,
    _folder: tempfile::TempDir,
}

const SLOT: Member = Member {
    job: JobId(1),
    stage: StageId(0),
    worker: WorkerId(0),
};

impl Desk {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(&config(folder.path())).await;
        let durable = Durable::load(opened.loaded.parts);
        let mut desk = Self {
            ledger: opened.ledger,
            tables: Tables::default(),
            durable,
            _folder: folder,
        };
        let plan = plan(vec![vec![vector([2], 20)]], &mut Rng(1));
        let events = [
            Event::NodeInstalled { node: node(4, 1) },
            Event::LeaseGranted {
                lease: lease(1, vector([1], 100)),
            },
            Event::JobSubmitted { job: job(1, 1) },
            Event::JobAdmitted {
                id: JobId(1),
                plan,
                promised: false,
            },
        ];
        events.iter().for_each(|event| desk.durable.evolve(event));
        let batch = fold(&events, &desk.durable, 1);
        desk.tables.apply(&batch).unwrap();
        desk.ledger.commit(&batch).await.unwrap();
        desk
    }

    /// A batch that does nothing, to put rows into.
    fn blank(&self) -> Batch {
        fold(&[], &self.durable, 1)
    }

    fn granting(&self, leases: &[Lease]) -> Batch {
        let mut after = self.durable.clone();
        let events: Vec<Event> = leases
            .iter()
            .map(|l| Event::LeaseGranted { lease: l.clone() })
            .collect();
        events.iter().for_each(|event| after.evolve(event));
        fold(&events, &after, 1)
    }
}

/// Both SQLite and the tables in memory must refuse `batch`; SQLite says `why` and goes on as before.
async fn check(what: &str, make: impl Fn(&Desk) -> Batch, why: &str, refusal: Option<Refusal>) {
    let mut desk = Desk::new().await;
    let batch = make(&desk);
    match desk.ledger.commit(&batch).await {
        Err(CommitError::Refused { constraint }) => {
            assert!(
                constraint.contains(why),
                "{what}: {constraint:?} does not say {why:?}"
            );
        }
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(desk.ledger.batches().await, 1, "{what}");
    if let Some(refusal) = refusal {
        assert_eq!(desk.tables.clone().apply(&batch), Err(refusal), "{what}");
    }
    let good = desk.granting(&[lease(2, vector([3], 12))]);
    desk.ledger
        .commit(&good)
        .await
        .unwrap_or_else(|e| panic!("after {what}: {e:?}"));
    assert_eq!(desk.ledger.batches().await, 2, "{what}");
}

fn owner(core: u32, owner: Owner) -> CoreOwnerRow {
    CoreOwnerRow {
        core,
        owner,
        held: true,
        target: true,
    }
}

fn share(lease: u64, gpu: u16, sms: u32, memory: Bytes) -> LeaseGpuRow {
    let share = GpuShare {
        guarantee: Sms(sms),
        cap: Sms(sms),
        memory,
    };
    LeaseGpuRow {
        lease: LeaseId(lease),
        gpu: GpuId(gpu),
        held: Some(share),
        target: None,
    }
}

#[test]
fn a_core_has_one_owner() {
    let taken = |core| Some(Refusal::CoreOwned(core));
    block_on(async {
        let two = |d: &Desk| d.granting(&[lease(2, vector([3], 0)), lease(3, vector([3], 0))]);
        check("two leases of a batch", two, "core_owner.core_id", taken(3)).await;
        let of_lease = |d: &Desk| d.granting(&[lease(2, vector([1], 0))]);
        check("a lease's core", of_lease, "core_owner.core_id", taken(1)).await;
        let of_slot = |d: &Desk| d.granting(&[lease(2, vector([2], 0))]);
        check("a slot's core", of_slot, "core_owner.core_id", taken(2)).await;
    });
}

#[test]
fn a_gpu_is_never_overcommitted() {
    let over = Some(Refusal::Overcommitted(GpuId(0)));
    block_on(async {
        let sms = |d: &Desk| d.granting(&[lease(2, vector([3], 13))]);
        check("100 + 20 + 13 of 132 SMs", sms, "sms_overcommitted", over).await;
        let bytes = |d: &Desk| Batch {
            lease_gpus: vec![share(2, 0, 0, Bytes::gib(50))],
            ..d.granting(&[lease(2, Vector::empty())])
        };
        check(
            "25 + 5 + 50 of 79.5 GiB",
            bytes,
            "bytes_overcommitted",
            over,
        )
        .await;
        let slot = |d: &Desk| {
            let gpu = GpuId(0);
            let share = GpuShare {
                guarantee: Sms(33),
                cap: Sms(33),
                memory: Bytes(0),
            };
            let slot_gpus = vec![SlotGpuRow {
                member: SLOT,
                gpu,
                share,
            }];
            Batch {
                refilled: vec![SLOT],
                slot_gpus,
                ..d.blank()
            }
        };
        check("a slot's 33 beside 100", slot, "sms_overcommitted", over).await;
    });
}

#[test]
fn held_and_target_count_as_the_larger() {
    block_on(async {
        let mut desk = Desk::new().await;
        let grown = |sms| {
            let share = |sms| GpuShare {
                guarantee: Sms(sms),
                cap: Sms(sms),
                memory: Bytes(0),
            };
            LeaseGpuRow {
                lease: LeaseId(1),
                gpu: GpuId(0),
                held: Some(share(100)),
                target: Some(share(sms)),
            }
        };
        let with = |desk: &Desk, sms| Batch {
            revectored: vec![LeaseId(1)],
            lease_gpus: vec![grown(sms)],
            ..desk.blank()
        };
        let too_much = with(&desk, 113);
        assert!(matches!(
            desk.ledger.commit(&too_much).await,
            Err(CommitError::Refused { .. })
        ));
        let fits = with(&desk, 112);
        desk.ledger.commit(&fits).await.unwrap();
        // A shrink is not free before it is held: 100 still count.
        let shrunk = with(&desk, 10);
        desk.ledger.commit(&shrunk).await.unwrap();
        let early = desk.granting(&[lease(2, vector([3], 13))]);
        assert!(matches!(
            desk.ledger.commit(&early).await,
            Err(CommitError::Refused { .. })
        ));
    });
}

#[test]
fn rows_refer_to_what_exists() {
    block_on(async {
        let dangling = |what| Some(Refusal::Dangling(what));
        let core = |d: &Desk| d.granting(&[lease(2, vector([99], 0))]);
        check(
            "a core that is not there",
            core,
            "FOREIGN KEY",
            dangling("the owner of a core"),
        )
        .await;
        let gpu = |d: &Desk| Batch {
            lease_gpus: vec![share(1, 7, 1, Bytes(0))],
            ..d.blank()
        };
        check(
            "a GPU that is not there",
            gpu,
            "FOREIGN KEY",
            dangling("a GPU share"),
        )
        .await;
        let nobody = |d: &Desk| Batch {
            cores: vec![owner(3, Owner::Lease(LeaseId(9)))],
            ..d.blank()
        };
        check(
            "nobody's core",
            nobody,
            "FOREIGN KEY",
            dangling("the owner of a core"),
        )
        .await;
    });
}

#[test]
fn amounts_and_fences_keep_to_their_ranges() {
    block_on(async {
        let huge = |d: &Desk| Batch {
            lease_gpus: vec![share(1, 0, 1, Bytes(u64::MAX))],
            ..d.blank()
        };
        check("bytes above what an integer holds", huge, "REAL", None).await;
        let falls = |d: &Desk| {
            let mut batch = d.granting(&[lease(1, vector([1], 100))]);
            batch.leases[0].fence = Fence(0);
            batch.cores.clear();
            batch.lease_gpus.clear();
            batch
        };
        check("a fence that falls", falls, "never falls", None).await;
        let again = |d: &Desk| Batch {
            next_lease: LeaseId(1),
            ..d.blank()
        };
        check("an id that would be used twice", again, "never falls", None).await;
    });
}

/// What a person with `sqlite3`, foreign keys on, could try.
#[test]
fn changes_by_hand_are_refused_as_well() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let ledger = open(&config).await.ledger;
        ledger.close().await;
        let url = format!("sqlite://{}", config.path.display());
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        conn.execute("INSERT INTO core VALUES (1, '1', 0, 0)")
            .await
            .unwrap();
        conn.execute(
            "INSERT INTO gpu VALUES (0, 'u', 'm', 10, 100, 0, 0, 'none', 'enforce', 0, 0)",
        )
        .await
        .unwrap();
        for (sql, why) in [
            ("UPDATE gpu SET used_sms = 11", "sms_overcommitted"),
            ("UPDATE gpu SET used_bytes = -1", "bytes_overcommitted"),
            ("UPDATE gpu SET sms = 'many'", "cannot store TEXT"),
            (
                "INSERT INTO core_owner VALUES (1, 1, 1, NULL, NULL, NULL, NULL)",
                "one_owner",
            ),
            (
                "INSERT INTO core_owner VALUES (1, 1, 1, 5, NULL, NULL, NULL)",
                "FOREIGN KEY",
            ),
            ("UPDATE counter SET batch = batch - 1", "never falls"),
            ("UPDATE node SET kind = 'cloud'", "CHECK"),
        ] {
            let error = conn.execute(sql).await.expect_err(sql).to_string();
            assert!(error.contains(why), "{sql}: {error}");
        }
    });
}
