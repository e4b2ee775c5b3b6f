//! Rules about the server, the role, the slot and the publication.

use super::{CheckRequest, Facts, Finding, Severity};
use crate::source::catalog::{ServerInfo, quote_ident, quote_literal};
use crate::source::slot::{SlotInfo, create_sql, problems, unusable_slot};

/// The oldest and the newest major version that Tidegate was tested with.
const TESTED: std::ops::RangeInclusive<u32> = 13..=18;
/// A slot that may keep less than this can be lost by one busy hour.
const SMALL_KEEP_BYTES: u64 = 1 << 30;
/// Clocks further apart than this make commit times misleading.
const CLOCK_SKEW_US: i64 = 5_000_000;

pub(super) fn findings(facts: &Facts, request: &CheckRequest<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    server(&facts.server, &mut findings);
    recovery(facts, request, &mut findings);
    room(facts, request, &mut findings);
    role(&facts.server, &mut findings);
    slot(facts, request, &mut findings);
    publication(facts, request, &mut findings);
    holders(facts, &mut findings);
    findings
}

fn server(server: &ServerInfo, findings: &mut Vec<Finding>) {
    let major = server.version / 10_000;
    if major < *TESTED.start() {
        findings.push(Finding::error(
            "server-version",
            "server",
            format!("PostgreSQL {} is not supported", server.version_text),
            "upgrade to PostgreSQL 13 or later",
        ));
    } else if major > *TESTED.end() {
        let what = format!("PostgreSQL {} is newer than any tested", server.version_text);
        findings.push(Finding::warning("server-version", "server", what, ""));
    }
    if server.wal_level != "logical" {
        findings.push(Finding::error(
            "wal-level",
            "server",
            format!("wal_level is {}; logical decoding needs logical", server.wal_level),
            "ALTER SYSTEM SET wal_level = 'logical'; then restart the server\n\
             managed services have a switch of their own, such as rds.logical_replication = 1 or \
             cloudsql.logical_decoding = on",
        ));
    }
    match server.slot_wal_keep_bytes {
        None => findings.push(Finding::warning(
            "max-slot-wal-keep-size",
            "server",
            "max_slot_wal_keep_size is -1: a stopped pipeline keeps WAL until the disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf(); with a \
             size the disk can spare",
        )),
        Some(bytes) if bytes < SMALL_KEEP_BYTES => findings.push(Finding::warning(
            "max-slot-wal-keep-size",
            "server",
            format!(
                "max_slot_wal_keep_size is {} MB: a short stop or a long copy loses the slot",
                bytes >> 20
            ),
            "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf(); with a \
             size the disk can spare",
        )),
        Some(_) => {}
    }
    if let Some(ms) = server.idle_in_transaction_ms.filter(|ms| *ms > 0) {
        findings.push(Finding::info(
            "idle-in-transaction-timeout",
            "server",
            format!(
                "idle_in_transaction_session_timeout is {ms} ms; tidegate sets it to 0 for its own \
                 sessions, as it would end the exported snapshot"
            ),
            "",
        ));
    }
    match server.encoding.as_str() {
        "UTF8" => {}
        "SQL_ASCII" => findings.push(Finding::warning(
            "encoding",
            "server",
            "the database's encoding is SQL_ASCII: bytes that are not UTF-8 can't be read as text",
            "",
        )),
        other => findings.push(Finding::info(
            "encoding",
            "server",
            format!("the database's encoding is {other}; the server converts it to UTF-8"),
            "",
        )),
    }
    let certain = server.clock_ahead_us.abs() - server.clock_doubt_us;
    if certain > CLOCK_SKEW_US {
        let way = if server.clock_ahead_us > 0 { "ahead of" } else { "behind" };
        findings.push(Finding::warning(
            "clock-skew",
            "server",
            format!(
                "the server's clock is {:.1} s {way} this machine's, so lag will be shown wrongly",
                server.clock_ahead_us.abs() as f64 / 1e6
            ),
            "set both clocks by NTP",
        ));
    }
}

fn recovery(facts: &Facts, request: &CheckRequest<'_>, findings: &mut Vec<Finding>) {
    if !facts.server.in_recovery {
        return;
    }
    if facts.server.version < 160_000 {
        findings.push(Finding::error(
            "standby",
            "server",
            "is a standby, and logical decoding on standbys came with PostgreSQL 16",
            "connect to the primary",
        ));
        return;
    }
    let what = "is a standby: a slot here waits for the primary to log its running transactions, \
                and is lost if the primary removes catalog rows it needs";
    let fix = "on the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();\n\
               on the primary, while the slot is being made: SELECT pg_log_standby_snapshot();";
    findings.push(Finding::info("standby", "server", what, fix));
    if facts.publication.is_none() && !facts.selection.tables.is_empty() {
        findings.push(Finding::error(
            "publication-on-standby",
            format!("publication {}", request.publication),
            "does not exist, and can't be made on a standby",
            format!(
                "on the primary: {};",
                create_sql(request.publication, &facts.selection.tables)
            ),
        ));
    }
}

fn room(facts: &Facts, request: &CheckRequest<'_>, findings: &mut Vec<Finding>) {
    let server = &facts.server;
    let free_slots = server.slots_max - server.slots_used;
    let unused = "SELECT slot_name FROM pg_replication_slots WHERE NOT active; shows what may be \
                  dropped; or ALTER SYSTEM SET max_replication_slots";
    if facts.slot.is_none() && free_slots < 1 {
        findings.push(Finding::error(
            "replication-slots",
            "server",
            format!("all {} replication slots are taken", server.slots_max),
            format!("{unused} = {}; then restart the server", server.slots_max + 5),
        ));
    } else if free_slots - i64::from(facts.slot.is_none()) < 1 {
        findings.push(Finding::warning(
            "replication-slots",
            "server",
            "no replication slot is left for `tidegate verify`, which needs one for a moment",
            format!("{unused} = {}; then restart the server", server.slots_max + 5),
        ));
    }
    let held = i64::from(facts.slot.as_ref().is_some_and(|s| s.active && request.started));
    let free_senders = server.senders_max - server.senders_used + held;
    let raise = format!(
        "ALTER SYSTEM SET max_wal_senders = {}; then restart the server",
        server.senders_max + 5
    );
    if free_senders < 1 {
        let what = format!("all {} WAL senders are at work", server.senders_max);
        findings.push(Finding::error("wal-senders", "server", what, raise));
    } else if free_senders < 2 && !request.started {
        let what = "one WAL sender is free; the first copy uses two when it spools changes";
        findings.push(Finding::warning("wal-senders", "server", what, raise));
    }
}

fn role(server: &ServerInfo, findings: &mut Vec<Finding>) {
    if !server.role.replication {
        findings.push(Finding::error(
            "role-replication",
            format!("role {}", server.role.name),
            "may not replicate",
            format!(
                "ALTER ROLE {role} REPLICATION; on Amazon RDS: GRANT rds_replication TO {role};",
                role = quote_ident(&server.role.name)
            ),
        ));
    }
}

fn slot(facts: &Facts, request: &CheckRequest<'_>, findings: &mut Vec<Finding>) {
    let subject = format!("slot {}", request.slot);
    let Some(slot) = &facts.slot else {
        if request.started {
            findings.push(Finding::error(
                "slot-missing",
                subject,
                "is gone, and with it the changes since the last commit",
                "a new generation is needed: a fresh snapshot of the tables",
            ));
        }
        return;
    };
    if let Some((id, what)) = foreign(slot, &facts.server.database) {
        findings.push(Finding::error(id, subject, what, "choose another slot name"));
        return;
    }
    if !request.started {
        findings.push(unusable_slot(slot));
        return;
    }
    if let Some(why) = slot.lost() {
        findings.push(Finding::error(
            "slot-lost",
            subject,
            format!("can't be used any more: {why}"),
            format!(
                "SELECT pg_drop_replication_slot({}); and take a new generation",
                quote_literal(&slot.name)
            ),
        ));
        return;
    }
    if slot.active {
        let pid = slot.active_pid.map_or_else(String::new, |pid| format!(" by pid {pid}"));
        findings.push(Finding::warning(
            "slot-in-use",
            &subject,
            format!("is in use{pid}: a pipeline is running"),
            "stop it before another one is started",
        ));
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        findings.push(Finding::warning(
            "slot-unreserved",
            subject,
            "is about to lose WAL that it needs",
            "run the pipeline now, or raise max_slot_wal_keep_size",
        ));
    }
}

fn foreign(slot: &SlotInfo, database: &str) -> Option<(&'static str, String)> {
    let Some(plugin) = &slot.plugin else {
        return Some(("slot-foreign", "is a physical slot of somebody else".to_owned()));
    };
    if plugin != "pgoutput" {
        return Some(("slot-foreign", format!("uses the plugin {plugin}, not pgoutput")));
    }
    if slot.temporary {
        return Some(("slot-foreign", "is another session's temporary slot".to_owned()));
    }
    match &slot.database {
        Some(other) if other != database => {
            Some(("slot-database", format!("belongs to database {other}, not {database}")))
        }
        _ => None,
    }
}

fn publication(facts: &Facts, request: &CheckRequest<'_>, findings: &mut Vec<Finding>) {
    let tables = &facts.selection.tables;
    if let Some(publication) = &facts.publication {
        let mut found = problems(publication, tables);
        if request.publication_ours {
            for finding in found.iter_mut().filter(|f| f.id == "publication-coverage") {
                finding.severity = Severity::Info;
                finding.what.push_str("; tidegate will add what is new");
            }
        }
        findings.append(&mut found);
        return;
    }
    if facts.server.in_recovery || tables.is_empty() {
        return;
    }
    let by_the_owner = |sql: String| format!("as the owner of the tables or a superuser: {sql};");
    let role = &facts.server.role;
    let subject = format!("publication {}", request.publication);
    if !role.create_in_database {
        findings.push(Finding::error(
            "publication-rights",
            &subject,
            format!("can't be made by role {}, which lacks CREATE on the database", role.name),
            format!(
                "GRANT CREATE ON DATABASE {} TO {};\nor {}",
                quote_ident(&facts.server.database),
                quote_ident(&role.name),
                by_the_owner(create_sql(request.publication, tables))
            ),
        ));
        return;
    }
    let others: Vec<String> = tables
        .iter()
        .filter(|t| !role.superuser && facts.rights.get(&t.oid).is_some_and(|r| !r.owner))
        .map(|t| t.display())
        .collect();
    if let Some(first) = others.first() {
        let more = if others.len() > 1 {
            format!(" and {} more", others.len() - 1)
        } else {
            String::new()
        };
        findings.push(Finding::error(
            "publication-rights",
            &subject,
            format!("can't be made by role {}, which does not own {first}{more}", role.name),
            by_the_owner(create_sql(request.publication, tables)),
        ));
    }
}

fn holders(facts: &Facts, findings: &mut Vec<Finding>) {
    if facts.slot.is_some() {
        return;
    }
    for holder in &facts.holders {
        findings.push(Finding::warning(
            "long-transaction",
            &holder.who,
            format!("has been writing for {} s; creating the slot waits for its end", holder.age_s),
            format!("wait for it, or {}", holder.fix),
        ));
    }
}
