use std::collections::HashMap;

use super::*;
use crate::source::catalog::tests::{column, table};
use crate::source::catalog::{ReplicaIdentity, Role, Selection, ServerInfo, TableInfo, TableKind};
use crate::source::slot::SlotInfo;
use crate::source::types::TypeCatalog;

fn healthy() -> ServerInfo {
    ServerInfo {
        version: 150_018,
        version_text: "15.18".into(),
        system_identifier: Some(7),
        timeline: Some(1),
        database: "app".into(),
        encoding: "UTF8".into(),
        wal_level: "logical".into(),
        in_recovery: false,
        slots_max: 10,
        slots_used: 0,
        senders_max: 10,
        senders_used: 0,
        slot_wal_keep_bytes: Some(100 << 30),
        idle_in_transaction_ms: Some(0),
        role: Role {
            name: "tide".into(),
            superuser: false,
            replication: true,
            bypass_rls: false,
            create_in_database: true,
        },
        clock_ahead_us: 0,
        clock_doubt_us: 100,
    }
}

fn facts(tables: Vec<TableInfo>) -> Facts {
    Facts {
        server: healthy(),
        selection: Selection {
            named: tables.iter().map(|table| table.oid).collect(),
            tables,
            findings: Vec::new(),
        },
        types: types(),
        publication: None,
        slot: None,
        rights: HashMap::new(),
        holders: Vec::new(),
    }
}

fn types() -> TypeCatalog {
    let row = |oid: &str, name: &str| {
        let row = [
            oid,
            "pg_catalog",
            name,
            "b",
            "N",
            "0",
            "0",
            "-1",
            "pg_catalog",
            "out",
            "0",
            "f",
            ",",
            "150018",
        ];
        row.map(|text| Some(text.to_owned()))
    };
    TypeCatalog::from_rows([row("23", "int4"), row("25", "text"), row("1043", "varchar")]).unwrap()
}

fn slot() -> SlotInfo {
    SlotInfo {
        name: "s".into(),
        plugin: Some("pgoutput".into()),
        database: Some("app".into()),
        active: false,
        active_pid: None,
        confirmed: crate::position::Lsn::new(10),
        restart: crate::position::Lsn::new(5),
        wal_status: Some("reserved".into()),
        safe_bytes: None,
        retained_bytes: 5,
        temporary: false,
        invalidation: None,
        inactive_since: None,
        failover: false,
        two_phase: false,
    }
}

const UNTREATED: &Treatments = &Treatments::none();
const REQUEST: CheckRequest<'static> = CheckRequest {
    tables: &[],
    treatments: UNTREATED,
    slot: "s",
    publication: "p",
    column_prefix: "_tg_",
    started: false,
    publication_ours: false,
    server: None,
};
const STARTED: CheckRequest<'static> = CheckRequest { started: true, ..REQUEST };

#[track_caller]
fn says(facts: &Facts, request: &CheckRequest<'_>, expected: &[(&str, Severity)]) {
    let report = report(&mut facts.clone(), request);
    let found: Vec<_> = report.findings.iter().map(|f| (f.id.as_str(), f.severity)).collect();
    assert_eq!(found, expected, "{}", report.to_text());
    for finding in &report.findings {
        let needs_fix = finding.severity == Severity::Error;
        assert!(!needs_fix || !finding.fix.is_empty(), "{finding:?}");
    }
}

use Severity::{Error, Info, Warning};

#[test]
fn a_healthy_source_has_no_findings() {
    says(&facts(vec![table("t")]), &REQUEST, &[]);
    assert!(report(&mut facts(vec![table("t")]), &REQUEST).to_text().ends_with("\nready\n"));
}

#[test]
fn each_server_fault_is_found() {
    type Change = fn(&mut ServerInfo);
    let cases: [(Change, &str, Severity); 14] = [
        (|s| s.version = 120_001, "server-version", Error),
        (|s| s.version = 190_000, "server-version", Warning),
        (|s| s.wal_level = "replica".into(), "wal-level", Error),
        (|s| s.slots_used = 10, "replication-slots", Error),
        (|s| s.slots_used = 9, "replication-slots", Warning),
        (|s| s.senders_used = 10, "wal-senders", Error),
        (|s| s.senders_used = 9, "wal-senders", Warning),
        (|s| s.slot_wal_keep_bytes = None, "max-slot-wal-keep-size", Warning),
        (|s| s.slot_wal_keep_bytes = Some(64 << 20), "max-slot-wal-keep-size", Warning),
        (|s| s.idle_in_transaction_ms = Some(9), "idle-in-transaction-timeout", Info),
        (|s| s.encoding = "SQL_ASCII".into(), "encoding", Warning),
        (|s| s.encoding = "LATIN1".into(), "encoding", Info),
        (|s| s.clock_ahead_us = -6_000_000, "clock-skew", Warning),
        (|s| s.role.replication = false, "role-replication", Error),
    ];
    for (change, id, severity) in cases {
        let mut facts = facts(vec![table("t")]);
        change(&mut facts.server);
        says(&facts, &REQUEST, &[(id, severity)]);
    }
}

#[test]
fn a_slow_link_is_no_clock_skew() {
    let mut facts = facts(vec![table("t")]);
    (facts.server.clock_ahead_us, facts.server.clock_doubt_us) = (7_000_000, 8_000_000);
    says(&facts, &REQUEST, &[]);
}

#[test]
fn a_standby_needs_16_and_a_publication_made_elsewhere() {
    let mut facts = facts(vec![table("t")]);
    facts.server.in_recovery = true;
    says(&facts, &REQUEST, &[("standby", Error)]);
    facts.server.version = 160_014;
    says(&facts, &REQUEST, &[("publication-on-standby", Error), ("standby", Info)]);
}

#[test]
fn a_slot_that_is_not_ours_or_not_whole_is_an_error() {
    type Change = fn(&mut SlotInfo);
    let cases: [(Change, &CheckRequest<'_>, &str, Severity); 7] = [
        (|_| (), &REQUEST, "slot-without-snapshot", Error),
        (|s| s.plugin = None, &STARTED, "slot-foreign", Error),
        (|s| s.plugin = Some("wal2json".into()), &STARTED, "slot-foreign", Error),
        (|s| s.database = Some("x".into()), &STARTED, "slot-database", Error),
        (|s| s.wal_status = Some("lost".into()), &STARTED, "slot-lost", Error),
        (|s| s.active = true, &STARTED, "slot-in-use", Warning),
        (|s| s.wal_status = Some("unreserved".into()), &STARTED, "slot-unreserved", Warning),
    ];
    for (change, request, id, severity) in cases {
        let mut facts = facts(vec![table("t")]);
        let mut slot = slot();
        change(&mut slot);
        facts.slot = Some(slot);
        says(&facts, request, &[(id, severity)]);
    }
    says(&facts(vec![table("t")]), &STARTED, &[("slot-missing", Error)]);
}

#[test]
fn a_table_whose_updates_postgres_would_refuse_is_found_first() {
    type Change = fn(&mut TableInfo);
    let cases: [(Change, &str, Severity); 7] = [
        (|t| t.key = None, "no-replica-identity", Error),
        (|t| (t.key, t.key_deferrable) = (None, true), "deferrable-key", Error),
        (|t| (t.key, t.identity) = (None, ReplicaIdentity::Index), "no-replica-identity", Error),
        (|t| (t.key, t.identity) = (None, ReplicaIdentity::Full), "no-key", Info),
        (
            |t| (t.key, t.identity) = (None, ReplicaIdentity::Nothing),
            "replica-identity-nothing",
            Warning,
        ),
        (|t| t.columns[0].generated = 's', "generated-key", Error),
        (|t| t.columns[1].generated = 's', "generated-columns", Info),
    ];
    for (change, id, severity) in cases {
        let mut table = table("t");
        change(&mut table);
        says(&facts(vec![table]), &REQUEST, &[(id, severity)]);
    }
}

#[test]
fn what_a_pattern_matches_and_can_not_be_replicated_is_left_out_alone() {
    let (mut bare, mut good) = (table("bare"), table("good"));
    (bare.key, good.oid) = (None, 16500);
    let mut both = facts(vec![bare.clone(), good.clone()]);
    both.selection.named = [good.oid].into();
    let found = report(&mut both, &REQUEST);
    assert_eq!(
        (found.tables, found.left_out),
        (vec!["public.good".into()], vec!["public.bare".into()])
    );
    assert_eq!(both.selection.tables, [good.clone()]);
    let finding = &found.findings[0];
    assert_eq!((&*finding.id, finding.severity), ("no-replica-identity", Warning));
    assert!(finding.fix.ends_with("exclude it: \"!public.bare\" under tables"), "{}", finding.fix);
    // A table that is named is wanted; where none is left there is nothing to do; and what is wrong
    // with the role or the configuration is no table's.
    says(&facts(vec![bare.clone(), good.clone()]), &REQUEST, &[("no-replica-identity", Error)]);
    let mut alone = facts(vec![bare]);
    alone.selection.named.clear();
    says(&alone, &REQUEST, &[("nothing-selected", Error), ("no-replica-identity", Warning)]);
    good.columns[0].options.left_out = true;
    let mut keyless = facts(vec![good]);
    keyless.selection.named.clear();
    says(&keyless, &REQUEST, &[("left-out-key", Error)]);
}

#[test]
fn a_name_that_no_lake_table_can_have_is_found_first() {
    let mut table = table("t");
    table.columns[1].name = "_TG_Lsn".into();
    says(&facts(vec![table.clone()]), &REQUEST, &[("column-name", Error)]);
    table.columns[1].name = "ID".into();
    says(&facts(vec![table.clone()]), &REQUEST, &[("column-name", Error)]);
    table.columns[1].options.left_out = true;
    says(&facts(vec![table.clone()]), &REQUEST, &[]);
    let mut keyless = table.clone();
    (keyless.key, keyless.identity) = (None, ReplicaIdentity::Full);
    keyless.keeps_deleted = true;
    says(&facts(vec![keyless]), &REQUEST, &[("soft-delete-key", Error), ("no-key", Info)]);
}

#[test]
fn a_partition_that_logs_otherwise_than_its_root_is_an_error() {
    let mut root = table("events");
    root.kind = TableKind::Partitioned;
    says(&facts(vec![root.clone()]), &REQUEST, &[]);
    root.leaves[0].identity = ReplicaIdentity::Full;
    says(&facts(vec![root.clone()]), &REQUEST, &[("partition-identity", Error)]);
    // FULL on the root does not reach its partitions.
    root.identity = ReplicaIdentity::Full;
    says(&facts(vec![root.clone()]), &REQUEST, &[]);
    root.leaves[0].identity = ReplicaIdentity::Default;
    says(&facts(vec![root]), &REQUEST, &[("partition-identity", Error)]);
}

#[test]
fn rights_that_lack_are_granted_by_the_fix() {
    let mut facts = facts(vec![table("t")]);
    let rights = TableRights {
        usage: false,
        select: false,
        unreadable: vec!["v".into()],
        owner: false,
        owner_name: "boss".into(),
        row_security: true,
    };
    facts.rights.insert(16400, rights);
    says(
        &facts,
        &REQUEST,
        &[("publication-rights", Error), ("table-rights", Error), ("row-security", Error)],
    );
    let text = report(&mut facts.clone(), &REQUEST).to_text();
    for line in [
        "fix: GRANT USAGE ON SCHEMA \"public\" TO \"tide\";",
        "fix: GRANT SELECT ON \"public\".\"t\" TO \"tide\";",
        "fix: as a superuser: ALTER ROLE \"tide\" BYPASSRLS;",
        "not ready: 3 errors",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn errors_come_first_and_the_report_survives_json() {
    let mut facts = facts(vec![table("t")]);
    facts.server.slot_wal_keep_bytes = None;
    facts.server.wal_level = "replica".into();
    facts.holders.push(Holder { who: "pid 7".into(), age_s: 61, fix: "end it".into() });
    let report = report(&mut facts.clone(), &REQUEST);
    assert_eq!(report.findings[0].id, "wal-level");
    assert!(report.has_errors() && report.to_text().contains("writing for 61 s"));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<CheckReport>(&json).unwrap(), report);
}

#[test]
fn many_errors_are_one_message_with_their_fixes() {
    let findings: Vec<Finding> =
        (0..12).map(|i| Finding::error("x", format!("t{i}"), "is bad", "mend it")).collect();
    let error = as_error(&findings).unwrap();
    assert_eq!(error.kind().exit_code(), 3);
    let text = error.to_string();
    assert!(text.contains("t9: is bad") && text.contains("and 2 more"), "{text}");
    assert_eq!(error.next_step(), Some("mend it"));
    assert!(as_error(&[Finding::info("x", "y", "z", "")]).is_none());
    let _ = column(1, "c", 23);
}
