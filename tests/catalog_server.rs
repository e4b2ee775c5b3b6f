//! Table selection, publication, slot and checks against a real server.
//!
//! Each test makes a database of its own and drops it again.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate::error::Kind;
use tidegate::source::catalog::{
    ReplicaIdentity, ServerInfo, TableKind, Treatments, current_lsn, insert_lsn, load_tables,
    select_tables,
};
use tidegate::source::check::{CheckReport, CheckRequest, Severity, check};
use tidegate::source::client::Client;
use tidegate::source::slot::{
    drop_publication, drop_slot, ensure_publication, list_own_slots, publication_info, slot_info,
};
use tokio_postgres::{Config, NoTls};

static NUMBER: AtomicU32 = AtomicU32::new(0);

async fn open(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client.into()
}

const UNTREATED: &Treatments = &Treatments::none();

struct Scratch {
    admin: Client,
    config: Config,
    client: Client,
    version: u32,
    name: String,
}

impl Scratch {
    async fn new() -> Option<Scratch> {
        let url = support::servers::usual().url("postgres");
        let mut config: Config = url.parse().unwrap();
        let admin = open(&config).await;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tg_catalog_{}_{number}", std::process::id());
        admin
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"))
            .await
            .unwrap();
        config.dbname(&name).options("-c search_path=");
        let client = open(&config).await;
        let version = ServerInfo::load(&client).await.unwrap().version;
        Some(Scratch { admin, config, client, version, name })
    }

    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// A role of this database alone, and a connection as it.
    async fn role(&self, attributes: &str) -> (String, Client) {
        let role = format!("{}_role", self.name);
        self.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x' {attributes}")).await;
        let mut config = self.config.clone();
        config.user(&role).password("x");
        (role, open(&config).await)
    }

    async fn refused(&self, pattern: &str, word: &str) {
        let error = load_tables(&self.client, &[pattern.into()], UNTREATED, self.version)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(word), "{pattern}: {error}");
        assert_eq!(error.kind(), Kind::Check, "{pattern}: {error}");
        assert!(error.next_step().is_some() || word == "excluded", "{pattern}: {error}");
    }

    async fn check_as(&self, client: &Client, tables: &str) -> CheckReport {
        let tables = [tables.to_owned()];
        let request = CheckRequest {
            tables: &tables,
            treatments: UNTREATED,
            column_prefix: "_tg_",
            slot: &self.name,
            publication: "tide",
            started: false,
            publication_ours: false,
            server: None,
        };
        check(client, &request).await.unwrap()
    }

    async fn finish(self) {
        drop(self.client);
        let name = &self.name;
        self.admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
        let _ = self.admin.batch_execute(&format!("DROP ROLE IF EXISTS {name}_role")).await;
    }
}

#[track_caller]
fn finding<'a>(
    report: &'a CheckReport,
    id: &str,
    severity: Severity,
) -> &'a tidegate::source::check::Finding {
    let found = report.findings.iter().find(|f| f.id == id && f.severity == severity);
    found.unwrap_or_else(|| panic!("no {id} in\n{}", report.to_text()))
}

#[track_caller]
fn lacks(report: &CheckReport, id: &str) {
    assert!(report.findings.iter().all(|f| f.id != id), "{}", report.to_text());
}

#[tokio::test]
async fn what_is_no_table_is_refused_by_name_and_left_out_by_globs() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "CREATE TABLE public.orders (id int PRIMARY KEY);
         CREATE SCHEMA \"My Schema\"; CREATE TABLE \"My Schema\".\"a.b\" (id int PRIMARY KEY);
         CREATE VIEW public.v AS SELECT 1; CREATE MATERIALIZED VIEW public.mv AS SELECT 1;
         CREATE SEQUENCE public.seq; CREATE UNLOGGED TABLE public.fast (id int PRIMARY KEY);
         CREATE TEMPORARY TABLE scratch (id int);
         CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER far FOREIGN DATA WRAPPER nothing;
         CREATE FOREIGN TABLE public.ft (id int) SERVER far;
         CREATE TABLE public.events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
         CREATE TABLE public.events_old PARTITION OF public.events DEFAULT;",
    )
    .await;
    for (pattern, word) in [
        ("orderz", "did you mean public.orders"),
        ("public.\"a.b\"", "\"My Schema\".\"a.b\""),
        ("v", "view"),
        ("mv", "materialized"),
        ("seq", "sequence"),
        ("ft", "foreign table"),
        ("fast", "SET LOGGED"),
        ("scratch", "temporary"),
        ("pg_catalog.pg_class", "system schema"),
        ("events_old", "name public.events instead"),
        ("nope*", "matches no table"),
        ("events_*", "partitions of public.events"),
        ("orders,!orders,fa*", "unlogged"),
    ] {
        s.refused(pattern, word).await;
    }
    let syntax = load_tables(&s.client, &["a b".into()], UNTREATED, s.version).await.unwrap_err();
    assert_eq!(syntax.kind(), Kind::Config);

    let all = select_tables(&s.client, &["*.*".into()], UNTREATED, s.version).await.unwrap();
    let names: Vec<_> = all.tables.iter().map(|t| t.display()).collect();
    assert_eq!(names, ["\"My Schema\".\"a.b\"", "public.events", "public.orders"]);
    assert_eq!(all.findings.len(), 1, "{:?}", all.findings);
    assert_eq!(all.findings[0].id, "unlogged-table");
    s.finish().await;
}

#[tokio::test]
async fn columns_keys_and_leaves_are_as_the_catalog_has_them() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "CREATE TYPE public.mood AS ENUM ('sad');
         CREATE TABLE public.wide (gone int, id bigint, code varchar(5) NOT NULL, m public.mood,
            n numeric(10,2), g int GENERATED ALWAYS AS (1 + 1) STORED, PRIMARY KEY (code, id));
         ALTER TABLE public.wide DROP COLUMN gone;
         INSERT INTO public.wide (id, code) VALUES (1, 'a');
         ALTER TABLE public.wide ADD COLUMN t text DEFAULT 'it''s, {\"x\"}';
         ALTER TABLE public.wide ADD COLUMN arr int[] DEFAULT '{1,2}';
         ALTER TABLE public.wide ADD COLUMN b box DEFAULT '(1,1),(0,0)';
         CREATE TABLE public.late (id int PRIMARY KEY DEFERRABLE);
         CREATE TABLE public.idx (a int NOT NULL, b int NOT NULL, c int);
         CREATE UNIQUE INDEX idx_b ON public.idx (b) INCLUDE (c);
         ALTER TABLE public.idx REPLICA IDENTITY USING INDEX idx_b;
         CREATE TABLE public.parent (id int PRIMARY KEY);
         CREATE TABLE public.child (PRIMARY KEY (id)) INHERITS (public.parent);
         CREATE TABLE public.ev (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
         CREATE TABLE public.ev1 (k int NOT NULL, junk int, id int NOT NULL);
         ALTER TABLE public.ev1 DROP COLUMN junk;
         ALTER TABLE public.ev ATTACH PARTITION public.ev1 FOR VALUES IN (1);
         CREATE TABLE public.ev2 PARTITION OF public.ev FOR VALUES IN (2) PARTITION BY LIST (id);
         CREATE TABLE public.ev2a PARTITION OF public.ev2 DEFAULT;
         INSERT INTO public.ev SELECT i, 1 + i % 2 FROM generate_series(1, 1000) i;
         ALTER TABLE public.ev ADD COLUMN x int DEFAULT 42;",
    )
    .await;
    let tables = load_tables(&s.client, &["*".into()], UNTREATED, s.version).await.unwrap();
    let table = |name: &str| tables.iter().find(|t| t.name == name).unwrap().clone();

    let wide = table("wide");
    let column = |name: &str| wide.columns.iter().find(|c| c.name == name).unwrap().clone();
    assert_eq!(wide.columns[0].name, "id");
    assert_eq!(wide.columns[0].attnum, 2);
    assert_eq!(wide.key_names().unwrap(), ["code", "id"]);
    assert_eq!(column("code").type_name, "character varying(5)");
    assert_eq!(column("m").type_name, "public.mood");
    assert_eq!(column("n").type_name, "numeric(10,2)");
    assert_eq!((column("g").generated, column("n").generated), ('s', '\0'));
    assert!(column("code").not_null && !column("n").not_null);
    assert_eq!(column("t").missing.as_deref(), Some("it's, {\"x\"}"));
    assert_eq!(column("arr").missing.as_deref(), Some("{1,2}"));
    assert_eq!(column("b").missing.as_deref(), Some("(1,1),(0,0)"));
    assert_eq!(column("n").missing, None);
    assert_eq!((wide.leaves.len(), wide.leaves[0].pages), (1, 1));

    let late = table("late");
    assert!(late.key.is_none() && late.key_deferrable);
    let idx = table("idx");
    assert_eq!((idx.identity, idx.key_names().unwrap()), (ReplicaIdentity::Index, vec!["b"]));
    assert_eq!(table("parent").leaves.len(), 1);
    assert_eq!(table("child").kind, TableKind::Plain);

    let ev = table("ev");
    assert_eq!(ev.kind, TableKind::Partitioned);
    let leaves: Vec<_> = ev.leaves.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(leaves, ["ev1", "ev2a"]);
    assert!(ev.leaves.iter().all(|l| l.pages > 0 && l.relfilenode != 0));
    assert_eq!(ev.columns[2].missing.as_deref(), Some("42"));
    assert!(ev.rows_estimated > 0.0 && ev.bytes > 0);

    let before = wide.fingerprint();
    s.sql("UPDATE public.wide SET n = 1").await;
    s.sql("VACUUM FULL public.wide").await;
    let again =
        load_tables(&s.client, &["wide".into()], UNTREATED, s.version).await.unwrap().remove(0);
    assert_eq!(again.fingerprint(), before);
    assert_ne!(again.leaves[0].relfilenode, wide.leaves[0].relfilenode);
    s.sql("ALTER TABLE public.wide ALTER n TYPE numeric(12,2)").await;
    let again =
        load_tables(&s.client, &["wide".into()], UNTREATED, s.version).await.unwrap().remove(0);
    assert_ne!(again.fingerprint(), before);
    s.finish().await;
}

#[tokio::test]
async fn a_publication_is_made_used_extended_and_refused() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "CREATE TABLE public.a (id int PRIMARY KEY, v int); CREATE TABLE public.b (id int PRIMARY KEY);
         CREATE TABLE public.c (CHECK (true)) INHERITS (public.a);
         ALTER TABLE public.c ADD PRIMARY KEY (id);
         CREATE TABLE public.ev (id int PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE TABLE public.ev1 PARTITION OF public.ev DEFAULT;",
    )
    .await;
    let load = |patterns: &'static str| async {
        load_tables(&s.client, &[patterns.to_owned()], UNTREATED, s.version).await.unwrap()
    };
    let first = load("a,ev").await;
    let made = ensure_publication(&s.client, "odd \"name", &first, true, "a run", s.version)
        .await
        .unwrap();
    assert!(made.created && made.via_root && !made.all_tables);
    let names: Vec<_> = made.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "ev"], "no child, and the root for its partitions");

    let more = load("*").await;
    let refused =
        ensure_publication(&s.client, "odd \"name", &more, false, "another run", s.version).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("ADD TABLE ONLY \"public\".\"b\", ONLY \"public\".\"c\""), "{text}");
    let grown = ensure_publication(&s.client, "odd \"name", &more, true, "a later run", s.version)
        .await
        .unwrap();
    assert_eq!((grown.created, grown.tables.len()), (false, 4));
    let contract = grown.contract();
    assert_eq!(contract, made.contract_digest, "more tables are no change");
    s.sql("ALTER PUBLICATION \"odd \"\"name\" DROP TABLE ONLY public.a").await;
    s.sql("ALTER PUBLICATION \"odd \"\"name\" ADD TABLE ONLY public.a").await;
    let back = publication_info(&s.client, "odd \"name", s.version).await.unwrap().unwrap();
    let a = first.iter().find(|t| t.name == "a").unwrap().oid;
    assert_ne!(back.membership(a), made.membership(a), "it was out for a while");

    s.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let error =
        ensure_publication(&s.client, "everything", &more, false, "another run", s.version).await;
    assert!(error.unwrap_err().to_string().contains("publish_via_partition_root = true"));
    s.sql("ALTER PUBLICATION everything SET (publish_via_partition_root = true)").await;
    let all = ensure_publication(&s.client, "everything", &more, false, "another run", s.version)
        .await
        .unwrap();
    assert!(all.all_tables && all.tables.len() == 4);
    s.sql("ALTER PUBLICATION everything SET (publish = 'insert')").await;
    let error =
        ensure_publication(&s.client, "everything", &more, false, "another run", s.version).await;
    assert!(error.unwrap_err().to_string().contains("UPDATE, DELETE, TRUNCATE"));

    if s.version >= 150_000 {
        s.sql("CREATE PUBLICATION lists FOR TABLE public.a (id) WHERE (id > 3), public.b").await;
        let info = publication_info(&s.client, "lists", s.version).await.unwrap().unwrap();
        let a = info.tables.iter().find(|t| t.name == "a").unwrap();
        assert_eq!(a.columns.as_deref(), Some([1].as_slice()));
        assert_eq!(a.row_filter.as_deref(), Some("(id > 3)"));
        let b = info.tables.iter().find(|t| t.name == "b").unwrap();
        assert_eq!((&b.columns, &b.row_filter), (&None, &None));
        s.sql("ALTER PUBLICATION lists SET TABLE public.a (id) WHERE (id > 4), public.b").await;
        let other = publication_info(&s.client, "lists", s.version).await.unwrap().unwrap();
        assert_ne!(other.membership(a.oid), info.membership(a.oid));
        assert_eq!(other.contract(), info.contract());
        s.sql(
            "CREATE PUBLICATION inside FOR TABLES IN SCHEMA public
               WITH (publish_via_partition_root = true)",
        )
        .await;
        let inside =
            ensure_publication(&s.client, "inside", &more, false, "another run", s.version)
                .await
                .unwrap();
        s.sql("ALTER PUBLICATION inside DROP TABLES IN SCHEMA public").await;
        s.sql("ALTER PUBLICATION inside ADD TABLES IN SCHEMA public").await;
        let back = publication_info(&s.client, "inside", s.version).await.unwrap().unwrap();
        let a = more.iter().find(|t| t.name == "a").unwrap().oid;
        assert_ne!(back.membership(a), inside.membership(a));
    }
    drop_publication(&s.client, "odd \"name").await.unwrap();
    drop_publication(&s.client, "odd \"name").await.unwrap();
    assert!(publication_info(&s.client, "odd \"name", s.version).await.unwrap().is_none());
    s.finish().await;
}

#[tokio::test]
async fn a_slot_is_described_and_dropped() {
    let Some(s) = Scratch::new().await else { return };
    let slot = format!("{}_one", s.name);
    assert_eq!(slot_info(&s.client, &slot).await.unwrap(), None);
    s.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
    let info = slot_info(&s.client, &slot).await.unwrap().unwrap();
    assert_eq!(info.plugin.as_deref(), Some("pgoutput"));
    assert_eq!(info.database.as_deref(), Some(s.name.as_str()));
    assert_eq!((info.active, info.temporary, info.lost()), (false, false, None));
    assert!(info.restart < info.confirmed && info.retained_bytes >= 0);
    let flushed = current_lsn(&s.client, false).await.unwrap();
    assert!(info.confirmed <= flushed);
    assert!(flushed <= insert_lsn(&s.client, false).await.unwrap());
    let own = list_own_slots(&s.client, &s.name).await.unwrap();
    assert_eq!(own.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), [slot.as_str()]);
    assert!(list_own_slots(&s.client, "tg%").await.unwrap().is_empty());

    s.sql("CREATE TABLE public.t (id int PRIMARY KEY)").await;
    let tables = ["t".to_owned()];
    let mut request = CheckRequest {
        treatments: UNTREATED,
        column_prefix: "_tg_",
        tables: &tables,
        slot: &slot,
        publication: "tide",
        started: false,
        publication_ours: false,
        server: None,
    };
    let report = check(&s.client, &request).await.unwrap();
    finding(&report, "slot-without-snapshot", Severity::Error);
    request.started = true;
    lacks(&check(&s.client, &request).await.unwrap(), "slot-without-snapshot");

    // A temporary slot is held by its session for as long as that lives.
    let (other, held) = (open(&s.config).await, format!("{}_held", s.name));
    let sql = format!("SELECT pg_create_logical_replication_slot('{held}', 'pgoutput', true)");
    other.batch_execute(&sql).await.unwrap();
    let error = drop_slot(&s.client, &held).await.unwrap_err().to_string();
    assert!(error.contains("in use by pid"), "{error}");
    drop(other);
    assert!(drop_slot(&s.client, &slot).await.unwrap());
    assert!(!drop_slot(&s.client, &slot).await.unwrap());
    s.finish().await;
}

#[tokio::test]
async fn a_check_as_superuser_says_what_is_wrong_with_each_table() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "CREATE TABLE public.good (id int PRIMARY KEY);
         CREATE TABLE public.bare (id int);
         CREATE TABLE public.late (id int PRIMARY KEY DEFERRABLE);
         CREATE TABLE public.log (id int); ALTER TABLE public.log REPLICA IDENTITY NOTHING;
         CREATE TABLE public.whole (id int); ALTER TABLE public.whole REPLICA IDENTITY FULL;
         CREATE TABLE public.gen (id int, d int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY);
         CREATE TABLE public.ev (id int) PARTITION BY RANGE (id);
         CREATE TABLE public.ev1 PARTITION OF public.ev DEFAULT;
         ALTER TABLE public.ev REPLICA IDENTITY FULL;
         CREATE TABLE public.walled (id int PRIMARY KEY);
         ALTER TABLE public.walled ENABLE ROW LEVEL SECURITY;",
    )
    .await;
    let clean = s.check_as(&s.client, "good").await;
    assert!(!clean.has_errors(), "{}", clean.to_text());
    let report = s.check_as(&s.client, "*").await;
    let subjects = |id: &str| -> Vec<&str> {
        report.findings.iter().filter(|f| f.id == id).map(|f| f.subject.as_str()).collect()
    };
    assert_eq!(subjects("no-replica-identity"), ["public.bare"]);
    assert_eq!(subjects("deferrable-key"), ["public.late"]);
    assert_eq!(subjects("replica-identity-nothing"), ["public.log"]);
    assert_eq!(subjects("no-key"), ["public.ev", "public.whole"]);
    assert_eq!(subjects("partition-identity"), ["public.ev"]);
    assert_eq!(subjects("generated-key"), ["public.gen"]);
    assert!(subjects("row-security").is_empty(), "a superuser sees every row");
    assert_eq!(report.tables, ["public.good", "public.log", "public.walled", "public.whole"]);
    assert_eq!(report.left_out, ["public.bare", "public.ev", "public.gen", "public.late"]);

    // Each fix does what it says.
    let named = s.check_as(&s.client, "ev").await;
    let fix = finding(&named, "partition-identity", Severity::Error).fix.clone();
    s.sql(&fix).await;
    lacks(&s.check_as(&s.client, "ev").await, "partition-identity");

    let writer = open(&s.config).await;
    writer.batch_execute("BEGIN; INSERT INTO public.good VALUES (1)").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let report = s.check_as(&s.client, "good").await;
    finding(&report, "long-transaction", Severity::Warning);
    s.finish().await;
}

#[tokio::test]
async fn a_role_without_rights_is_told_each_one_and_the_fixes_suffice() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int);
         CREATE TABLE app.ev (id int PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE TABLE app.ev1 PARTITION OF app.ev DEFAULT;
         ALTER TABLE app.t ENABLE ROW LEVEL SECURITY;",
    )
    .await;
    let (role, client) = s.role("NOREPLICATION").await;
    let report = s.check_as(&client, "app.*").await;
    for id in ["role-replication", "publication-rights", "table-rights", "row-security"] {
        finding(&report, id, Severity::Error);
    }
    for grant in report.findings.iter().flat_map(|f| f.fix.lines()) {
        if grant.starts_with("GRANT") {
            s.sql(grant).await;
        }
    }
    s.sql(&format!("ALTER ROLE {role} REPLICATION BYPASSRLS")).await;
    let report = s.check_as(&client, "app.*").await;
    // CREATE on the database is there now, but the tables still belong to somebody else.
    let owner = finding(&report, "publication-rights", Severity::Error);
    let sql = owner.fix.split_once(": ").unwrap().1.to_owned();
    let errors = report.findings.iter().filter(|f| f.severity == Severity::Error).count();
    assert_eq!(errors, 1, "{}", report.to_text());
    let tables = load_tables(&client, &["app.*".into()], UNTREATED, s.version).await.unwrap();
    let refused = ensure_publication(&client, "tide", &tables, false, "another run", s.version)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), Kind::Check, "{refused}");
    s.sql(&sql).await;
    let report = s.check_as(&client, "app.*").await;
    assert!(!report.has_errors(), "{}", report.to_text());
    assert!(
        !ensure_publication(&client, "tide", &tables, false, "another run", s.version)
            .await
            .unwrap()
            .created
    );

    s.sql(&format!("REVOKE SELECT ON app.t FROM {role}; GRANT SELECT (id) ON app.t TO {role}"))
        .await;
    let report = s.check_as(&client, "app.t").await;
    assert!(finding(&report, "table-rights", Severity::Error).what.contains("app.t (v)"));
    drop(client);
    s.sql(&format!("DROP OWNED BY {role}")).await;
    s.finish().await;
}

#[tokio::test]
async fn the_server_says_who_it_is() {
    let Some(s) = Scratch::new().await else { return };
    let info = ServerInfo::load(&s.client).await.unwrap();
    assert_eq!((info.database.as_str(), info.encoding.as_str()), (s.name.as_str(), "UTF8"));
    assert_eq!(info.wal_level, "logical");
    assert!(info.system_identifier.is_some() && info.timeline >= Some(1));
    assert!(info.role.superuser && info.role.replication && info.role.create_in_database);
    assert!(!info.in_recovery && info.slots_max > 0 && info.senders_max > 0);
    assert!(info.clock_ahead_us.abs() < 1_000_000 + info.clock_doubt_us);
    s.finish().await;
}

#[tokio::test]
async fn many_tables_take_no_more_queries_than_few() {
    let Some(s) = Scratch::new().await else { return };
    s.sql(
        "DO $$ BEGIN FOR i IN 1..300 LOOP
           EXECUTE format('CREATE TABLE public.t%s (id int PRIMARY KEY, v text)', i);
         END LOOP; END $$",
    )
    .await;
    let start = std::time::Instant::now();
    let tables = load_tables(&s.client, &["*".into()], UNTREATED, s.version).await.unwrap();
    println!("300 tables described in {:?}", start.elapsed());
    assert_eq!(tables.len(), 300);
    assert!(tables.iter().all(|t| t.columns.len() == 2 && t.key == Some(vec![0])));
    s.finish().await;
}
