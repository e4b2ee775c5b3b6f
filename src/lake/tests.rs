//! Whole tables and ledgers: what is written is what deltalake reads, and what goes wrong on the
//! way is recognised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use deltalake::kernel::EagerSnapshot;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use roaring::RoaringBitmap;
use tokio::runtime::Handle;
use url::Url;

use super::checkpoint::tests::{checkpoint, tag};
use super::faults::{Faulty, Rules};
use super::patience::Patience;
use super::*;
use crate::error::Kind;
use crate::position::Lsn;

const FOLDER: &str = "public/orders";

fn rows(from: i64, n: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + n));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((from..from + n).map(|i| format!("row {i}"))));
    RecordBatch::try_from_iter([("id", ids), ("note", texts)]).unwrap()
}

fn schema() -> SchemaRef {
    rows(0, 0).schema()
}

async fn write(
    lake: &Lake,
    folder: &str,
    number: FileNo,
    batches: Vec<RecordBatch>,
    options: FileOptions,
) -> NewFile {
    let (lake, folder, runtime) = (lake.clone(), folder.to_owned(), Handle::current());
    let task = move || {
        let mut writer =
            DataFileWriter::create(&lake, &runtime, &folder, number, batches[0].schema(), &options)
                .unwrap();
        batches.iter().for_each(|b| writer.write(b).unwrap());
        writer.finish().unwrap()
    };
    tokio::task::spawn_blocking(task).await.unwrap()
}

async fn file(lake: &Lake, number: FileNo, from: i64, n: i64) -> NewFile {
    let options =
        FileOptions { stats_columns: vec!["id".into(), "note".into()], ..Default::default() };
    write(lake, FOLDER, number, vec![rows(from, n)], options).await
}

async fn new_table(lake: &Lake) -> LakeTable {
    let files = vec![
        (file(lake, 0, 0, 10).await, RoaringBitmap::new()),
        (file(lake, 1, 10, 10).await, RoaringBitmap::new()),
    ];
    let tag = tag(VersionKind::Handoff, 100);
    LakeTable::create(lake, FOLDER, schema().into(), files, checkpoint(100), tag, &BTreeMap::new())
        .await
        .unwrap()
}

fn change(applied: u64) -> Change {
    Change::new(checkpoint(applied), tag(VersionKind::Changes, applied))
}

async fn ids(lake: &Lake, table: &LakeTable) -> Vec<i64> {
    let mut all = Vec::new();
    for file in table.files().values() {
        let batch = read_rows(lake, FOLDER, file, &schema(), None).await.unwrap();
        let ids = batch.column(0).as_primitive::<Int64Type>();
        all.extend(
            (0..ids.len())
                .filter(|i| !table.is_masked(file.number, *i as u32))
                .map(|i| ids.value(i)),
        );
    }
    all.sort_unstable();
    all
}

fn local() -> (tempfile::TempDir, Lake) {
    let dir = tempfile::tempdir().unwrap();
    let lake = Lake::open(dir.path().to_str().unwrap()).unwrap();
    (dir, lake)
}

/// A lake in memory, and the rules of its faults: none yet.
fn memory() -> (Rules, Lake) {
    let rules = Rules::default();
    let store = Arc::new(Faulty::with(Arc::new(InMemory::new()), rules.clone()));
    let patience = Patience::new(Duration::from_secs(1));
    let url = Url::parse("memory:///lake").unwrap();
    (rules, Lake::with_patience(&url, store, patience).unwrap())
}

/// A table with a handoff, two batches, a compaction and a truncate.
async fn a_life(lake: &Lake) -> LakeTable {
    let mut table = new_table(lake).await;
    assert_eq!(ids(lake, &table).await, (0..20).collect::<Vec<_>>());

    let mut first = change(120);
    first.masks =
        BTreeMap::from([(0, [1, 2, 3].into_iter().collect()), (1, [9].into_iter().collect())]);
    first.adds = vec![(file(lake, 2, 100, 3).await, [1].into_iter().collect())];
    assert_eq!(table.commit(&first).await.unwrap(), CommitOutcome::Done(1));

    let mut second = change(140);
    second.masks = BTreeMap::from([(0, [4].into_iter().collect()), (1, (0..9).collect())]);
    assert_eq!(table.commit(&second).await.unwrap(), CommitOutcome::Done(2));
    assert!(table.file(1).is_none(), "a file without rows is gone");
    assert_eq!(ids(lake, &table).await, vec![0, 5, 6, 7, 8, 9, 100, 102]);

    let mut merged = Change::new(checkpoint(140), tag(VersionKind::Compaction, 140));
    merged.removes = BTreeSet::from([0, 2]);
    let options = FileOptions::default();
    let keep = [rows(0, 1), rows(5, 5), rows(100, 1), rows(102, 1)];
    merged.adds =
        vec![(write(lake, FOLDER, 3, keep.to_vec(), options).await, RoaringBitmap::new())];
    assert_eq!(table.commit(&merged).await.unwrap(), CommitOutcome::Done(3));
    assert_eq!(ids(lake, &table).await, vec![0, 5, 6, 7, 8, 9, 100, 102]);

    let mut truncate = change(160);
    truncate.remove_all = true;
    truncate.adds = vec![(file(lake, 4, 200, 2).await, RoaringBitmap::new())];
    assert_eq!(table.commit(&truncate).await.unwrap(), CommitOutcome::Done(4));
    assert_eq!(ids(lake, &table).await, vec![200, 201]);
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_read_back_as_it_was_left() {
    for lake in [local().1, memory().1] {
        let mut table = a_life(&lake).await;
        let again = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
        assert_eq!(again.version(), 4);
        assert_eq!(again.checkpoint(), table.checkpoint());
        assert_eq!(again.checkpoint().applied, Lsn::new(160));
        assert_eq!(again.schema(), table.schema());
        assert_eq!(again.checkpoint().next_file_no, table.take_file_no());
        assert!(!again.was_rewritten());
        let show = |t: &LakeTable| {
            t.files()
                .values()
                .map(|f| (f.number, f.path.clone(), f.rows, f.mask.clone(), f.size))
                .collect::<Vec<_>>()
        };
        assert_eq!(show(&again), show(&table));
        let kinds: Vec<_> =
            versions(&lake, FOLDER).await.unwrap().into_iter().map(|v| v.kind).collect();
        use VersionKind::*;
        assert_eq!(kinds, [Handoff, Changes, Changes, Compaction, Changes]);
        assert!(LakeTable::open(&lake, "public/none").await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deltalake_sees_the_files_and_vectors_of_every_version() {
    let (_dir, lake) = local();
    a_life(&lake).await;
    let log = lake.log_store(FOLDER).unwrap();
    let mut last_time = 0;
    let expected: [&[(u64, u64)]; 5] = [
        &[(10, 0), (10, 0)],
        &[(10, 3), (10, 1), (3, 1)],
        &[(10, 4), (3, 1)],
        &[(8, 0)],
        &[(2, 0)],
    ];
    for (version, expected) in expected.iter().enumerate() {
        let snapshot = EagerSnapshot::try_new(log.as_ref(), Some(version as u64)).await.unwrap();
        let views: Vec<_> = snapshot.file_views(log.as_ref(), None).try_collect().await.unwrap();
        let mut views: Vec<_> = views
            .iter()
            .map(|v| {
                let vector = v.deletion_vector_descriptor();
                assert_eq!(
                    v.stats().unwrap().ends_with("\"tightBounds\":false}"),
                    vector.is_some()
                );
                (
                    v.path().into_owned(),
                    v.num_records().unwrap() as u64,
                    vector.map_or(0, |d| d.cardinality as u64),
                )
            })
            .collect();
        views.sort();
        assert_eq!(
            views.iter().map(|v| (v.1, v.2)).collect::<Vec<_>>(),
            *expected,
            "version {version}"
        );
        let text = String::from_utf8(
            log.read_commit_entry(version as u64).await.unwrap().unwrap().to_vec(),
        )
        .unwrap();
        let first = text.lines().next().unwrap();
        let info: serde_json::Value = serde_json::from_str(first).unwrap();
        let time = info["commitInfo"]["inCommitTimestamp"].as_i64().unwrap();
        assert!(time > last_time, "{first}");
        last_time = time;
    }
    assert_eq!(snapshot_txn(&lake).await, Some(160));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_is_read_with_the_masks_it_had() {
    for lake in [local().1, memory().1] {
        a_life(&lake).await;
        let expected: [&[i64]; 5] = [
            &(0..20).collect::<Vec<_>>(),
            &[0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 100, 102],
            &[0, 5, 6, 7, 8, 9, 100, 102],
            &[0, 5, 6, 7, 8, 9, 100, 102],
            &[200, 201],
        ];
        for (version, expected) in (0..).zip(expected) {
            let past = PastTable::open(&lake, FOLDER, Some(version)).await.unwrap().unwrap();
            assert_eq!((past.version(), past.live_rows()), (version, expected.len() as u64));
            let runtime = Handle::current();
            let scan = move || {
                let mut ids: Vec<i64> = Vec::new();
                past.scan(&runtime, &["id"], |batch| {
                    ids.extend(batch.column(0).as_primitive::<Int64Type>().values());
                    Ok(())
                })
                .unwrap();
                assert!(past.scan(&runtime, &["ID"], |_| Ok(())).is_err(), "no such column");
                ids.sort_unstable();
                ids
            };
            assert_eq!(tokio::task::spawn_blocking(scan).await.unwrap(), expected);
        }
        assert!(PastTable::open(&lake, FOLDER, Some(5)).await.is_err(), "no such version");
        assert!(PastTable::open(&lake, "public/none", None).await.unwrap().is_none());
    }
}

async fn snapshot_txn(lake: &Lake) -> Option<i64> {
    let log = lake.log_store(FOLDER).unwrap();
    let snapshot = EagerSnapshot::try_new(log.as_ref(), None).await.unwrap();
    snapshot.transaction_version(log.as_ref(), "tidegate.shop").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_recognised_as_done() {
    let (faults, lake) = memory();
    let mut table = new_table(&lake).await;
    faults.replace("create */_delta_log/* 1 lost").unwrap();
    let mut lost = change(120);
    lost.masks.insert(0, [5].into_iter().collect());
    assert_eq!(table.commit(&lost).await.unwrap(), CommitOutcome::Done(1));
    assert_eq!(table.commit(&change(130)).await.unwrap(), CommitOutcome::Done(2));
    let again = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
    assert_eq!((again.version(), again.live_rows()), (2, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_was_not_stored_is_tried_again() {
    let (faults, lake) = memory();
    let mut table = new_table(&lake).await;
    faults.replace("create */_delta_log/* 1-2 error").unwrap();
    assert_eq!(table.commit(&change(120)).await.unwrap(), CommitOutcome::Done(1));
    faults.replace("create */_delta_log/* 1+ error").unwrap();
    let error = table.commit(&change(130)).await.unwrap_err();
    // It was tried for as long as it may be: nobody else needs to.
    assert_eq!(error.kind(), Kind::Failed, "{error}");
    assert!(error.to_string().contains("did not recover within 1s"), "{error}");
    assert_eq!(error.to_string().matches("500 Internal").count(), 1, "{error}");
    faults.replace("").unwrap();
    assert!(table.commit(&change(130)).await.unwrap_err().to_string().contains("unknown"));
    let mut again = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
    assert_eq!(again.commit(&change(130)).await.unwrap(), CommitOutcome::Done(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_fences_the_first() {
    let (_store, lake) = memory();
    let mut first = new_table(&lake).await;
    let mut second = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
    second.commit(&change(120)).await.unwrap();
    let error = first.commit(&change(120)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Fenced, "{error}");
    assert_eq!(LakeTable::open(&lake, FOLDER).await.unwrap().unwrap().version(), 1);
    let tag = tag(VersionKind::Handoff, 100);
    let twice = LakeTable::create(
        &lake,
        FOLDER,
        schema().into(),
        vec![],
        checkpoint(100),
        tag,
        &BTreeMap::new(),
    )
    .await;
    assert_eq!(twice.err().unwrap().kind(), Kind::Fenced);
}

/// Commits as another program would.
async fn foreign(lake: &Lake, version: u64, operation: &str, actions: &[serde_json::Value]) {
    let info = serde_json::json!({"commitInfo": {"operation": operation, "engineInfo": "Apache-Spark/4.2.0",
        "inCommitTimestamp": chrono::Utc::now().timestamp_millis() + 5, "timestamp": 1}});
    let lines: Vec<String> = std::iter::once(&info).chain(actions).map(|a| a.to_string()).collect();
    lake.put(&format!("{FOLDER}/_delta_log/{version:020}.json"), lines.join("\n").into())
        .await
        .unwrap();
}

async fn optimize(lake: &Lake, table: &LakeTable, version: u64, rows_after: &[RecordBatch]) {
    optimize_as(lake, table, version, rows_after, ["part-00000-aaaa-c000.zstd.parquet"; 2]).await;
}

/// The file's name in the store, and as the log has it.
async fn optimize_as(
    lake: &Lake,
    table: &LakeTable,
    version: u64,
    rows_after: &[RecordBatch],
    [path, logged]: [&str; 2],
) {
    let new = write(lake, FOLDER, 0xffff, rows_after.to_vec(), FileOptions::default()).await;
    let bytes = lake.get(&format!("{FOLDER}/{}", new.path)).await.unwrap().unwrap();
    lake.put(&format!("{FOLDER}/{path}"), bytes).await.unwrap();
    let mut actions: Vec<_> = table
        .files()
        .values()
        .map(|f| serde_json::json!({"remove": {"path": f.path, "dataChange": false, "deletionTimestamp": 1}}))
        .collect();
    actions.push(serde_json::json!({"add": {"path": logged, "size": new.size, "modificationTime": 1, "dataChange": false,
        "partitionValues": {}, "stats": format!("{{\"numRecords\":{}}}", new.rows)}}));
    foreign(lake, version, "OPTIMIZE", &actions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_masked_during_an_optimize_do_not_come_back() {
    let (_store, lake) = memory();
    let mut table = new_table(&lake).await;
    optimize(&lake, &table, 1, &[rows(0, 20)]).await;
    foreign(&lake, 2, "VACUUM END", &[]).await;
    let mut delete = change(120);
    delete.masks.insert(1, [5].into_iter().collect());
    let outcome = table.commit(&delete).await.unwrap();
    assert_eq!(outcome, CommitOutcome::ForeignRewrite { replaced: vec![0, 1], added: vec![2] });
    assert_eq!(table.version(), 2);
    let mut again = change(120);
    again.masks.insert(2, [15].into_iter().collect());
    assert_eq!(table.commit(&again).await.unwrap(), CommitOutcome::Done(3));
    assert_eq!(ids(&lake, &table).await, (0..20).filter(|i| *i != 15).collect::<Vec<_>>());
    let reopened = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
    assert_eq!(
        reopened.files().keys().copied().collect::<Vec<_>>(),
        vec![2],
        "a foreign file keeps its number"
    );
    assert_eq!(ids(&lake, &reopened).await, ids(&lake, &table).await);
}

/// A remove takes a file out only under the very text that the add has, whatever it decodes to.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_the_name_that_another_program_encoded() {
    for names in
        [["r=a b/part-1.parquet", "r=a%20b/part-1.parquet"], ["part-x.parquet", "part%2Dx.parquet"]]
    {
        let (_store, lake) = memory();
        let mut table = new_table(&lake).await;
        optimize_as(&lake, &table, 1, &[rows(0, 20)], names).await;
        table = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
        let file = table.files().values().next().unwrap();
        assert!(file.path == names[0] && file.is_encoded());
        let mut delete = change(120);
        delete.masks.insert(file.number, [15].into_iter().collect());
        assert_eq!(table.commit(&delete).await.unwrap(), CommitOutcome::Done(2));
        let reopened = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
        assert_eq!((reopened.files().len(), reopened.live_rows()), (1, 19));
        assert_eq!(ids(&lake, &reopened).await, (0..20).filter(|i| *i != 15).collect::<Vec<_>>());
        let log = lake.get(&format!("{FOLDER}/_delta_log/{:020}.json", 2)).await.unwrap().unwrap();
        let log = String::from_utf8(log.to_vec()).unwrap();
        assert_eq!(log.matches(&format!("\"path\":\"{}\"", names[1])).count(), 2, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewrite_that_loses_rows_is_not_followed() {
    let (_store, lake) = memory();
    let mut table = new_table(&lake).await;
    optimize(&lake, &table, 1, &[rows(0, 19)]).await;
    assert!(table.commit(&change(120)).await.unwrap_err().to_string().contains("19 rows"));
    assert!(LakeTable::open(&lake, FOLDER).await.err().unwrap().to_string().contains("19 rows"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_keeps_our_checkpoint_and_is_noticed() {
    let (_store, lake) = memory();
    let mut table = new_table(&lake).await;
    let mut delete = change(120);
    delete.masks.insert(0, [5].into_iter().collect());
    table.commit(&delete).await.unwrap();
    let masked = table.file(0).unwrap();
    let remove = serde_json::json!({"remove": {"path": masked.path, "dataChange": true, "deletionTimestamp": 1}});
    foreign(&lake, 2, "RESTORE", &[remove]).await;
    let error = table.commit(&change(130)).await.unwrap_err();
    assert!(error.to_string().contains("version 2 (RESTORE)"), "{error}");
    let error = LakeTable::open(&lake, FOLDER).await.err().unwrap();
    assert!(error.to_string().contains("version 2 (RESTORE)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_changes_are_refused_before_anything_is_stored() {
    let (_store, lake) = memory();
    let mut table = new_table(&lake).await;
    let mut unknown = change(120);
    unknown.masks.insert(7, [0].into_iter().collect());
    assert!(table.commit(&unknown).await.unwrap_err().to_string().contains("file 7"));
    let mut beyond = change(120);
    beyond.masks.insert(0, [10].into_iter().collect());
    assert!(table.commit(&beyond).await.unwrap_err().to_string().contains("no row"));
    let mut twice = change(120);
    twice.adds.push((file(&lake, 1, 0, 1).await, RoaringBitmap::new()));
    assert!(table.commit(&twice).await.unwrap_err().to_string().contains("already"));
    assert_eq!(table.commit(&change(120)).await.unwrap(), CommitOutcome::Done(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_checkpoint_shows_what_the_log_shows() {
    let (_dir, lake) = local();
    let mut table = new_table(&lake).await;
    for i in 1..=100u64 {
        let mut step = change(100 + i);
        if i % 10 == 0 {
            step.masks.insert(0, [(i / 20) as u32].into_iter().collect());
        }
        table.commit(&step).await.unwrap();
    }
    table.settle().await;
    let hint = lake.get(&format!("{FOLDER}/_delta_log/_last_checkpoint")).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&hint).contains("\"version\":100"), "{hint:?}");
    let again = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
    assert_eq!(again.checkpoint(), table.checkpoint());
    assert_eq!(again.file(0).unwrap().mask, table.file(0).unwrap().mask);
}

/// Whatever becomes of a checkpoint of the log, the table shows what it showed.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_checkpoint_that_fails_anywhere_changes_nothing() {
    for step in [
        "put *.checkpoint.parquet 1",
        "put */_last_checkpoint 1",
        "get *.checkpoint.parquet 1",
        "get */_last_checkpoint 1",
    ] {
        for fault in ["error", "lost", "denied", "timeout:5"] {
            let (faults, lake) = memory();
            let table = a_life(&lake).await;
            let (before, rows) = (table.version(), ids(&lake, &table).await);
            let (log, _) = log::TableLog::load(&lake, FOLDER).await.unwrap().unwrap();
            faults.replace(&format!("{step} {fault}")).unwrap();
            let written = log_checkpoint::write(&log, Some(table.files().len())).await;
            assert!(faults.fired() > 0, "{step} never comes");
            faults.replace("").unwrap();
            let mut again = LakeTable::open(&lake, FOLDER).await.unwrap().unwrap();
            assert_eq!(again.version(), before, "{step} {fault} {written:?}");
            assert_eq!(ids(&lake, &again).await, rows, "{step} {fault} {written:?}");
            assert_eq!(
                again.commit(&change(900)).await.unwrap(),
                CommitOutcome::Done(before + 1),
                "{step} {fault} {written:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_found_by_number_over_pages_and_row_groups() {
    for lake in [local().1, memory().1] {
        let options = FileOptions {
            row_group_rows: 1000,
            page_rows: 100,
            stats_columns: vec!["id".into()],
            ..Default::default()
        };
        let new =
            write(&lake, FOLDER, 0, (0..10).map(|i| rows(i * 300, 300)).collect(), options).await;
        assert_eq!(new.rows, 3000);
        assert!(new.stats.starts_with(r#"{"numRecords":3000,"minValues":{"id":0},"maxValues":{"id":2999},"nullCount":{"id":0}"#), "{}", new.stats);
        let wanted = [0u32, 1, 99, 100, 999, 1000, 1001, 2500, 2999];
        let batch = read_rows(&lake, FOLDER, &new, &schema(), Some(&wanted)).await.unwrap();
        let found: Vec<u32> = batch
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .map(|v| *v as u32)
            .collect();
        assert_eq!(found, wanted);
        assert!(read_rows(&lake, FOLDER, &new, &schema(), Some(&[3000])).await.is_err());
        assert!(read_rows(&lake, FOLDER, &new, &schema(), Some(&[5, 4])).await.is_err());
        let (l, path, runtime) = (lake.clone(), new.path.clone(), Handle::current());
        let task = tokio::task::spawn_blocking(move || {
            let mask: RoaringBitmap = [3, 2999].into_iter().collect();
            let mut live = 0;
            for piece in
                scan_file(&l, &runtime, FOLDER, path.as_str(), &schema(), Some(&mask)).unwrap()
            {
                let piece = piece.unwrap();
                let ids = piece.batch.column(0).as_primitive::<Int64Type>();
                assert_eq!(ids.value(0), i64::from(piece.first_row));
                live += piece.live_rows().unwrap().num_rows();
            }
            assert_eq!(live, 2998);
            digest_file(&l, &runtime, FOLDER, path.as_str(), &schema()).unwrap()
        });
        let mut digest = RowDigest::default();
        (0..10).for_each(|i| digest.update(&rows(i * 300, 300)).unwrap());
        assert_eq!(task.await.unwrap(), digest);
    }
}

fn pipeline() -> PipelineState {
    PipelineState {
        format: 1,
        pipeline: "shop".into(),
        source: checkpoint(100).source,
        generation: 1,
        phase: Phase::Snapshot,
        run: "r1".into(),
        base: None,
        boundary: None,
        handoff: None,
        tables: vec![],
        created_publication: true,
        created_slot: true,
        options: "o1".into(),
        failure: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_keeps_state_events_and_fence() {
    let (_dir, lake) = local();
    assert!(Ledger::open(&lake).await.unwrap().is_none());
    let mut ledger = Ledger::create(&lake, pipeline()).await.unwrap();
    let second = Ledger::create(&lake, pipeline()).await;
    assert_eq!(second.err().unwrap().kind(), Kind::Fenced);
    let chunk = Event {
        chunk: Some(3),
        base: Some(Lsn::new(100)),
        rows: Some(7),
        ..Event::now("r1", "chunk", "public.orders", serde_json::json!({"digest": "ab"}))
    };
    ledger.append_events(std::slice::from_ref(&chunk)).await.unwrap();
    let live = PipelineState { phase: Phase::Live, base: Some(Lsn::new(100)), ..pipeline() };
    ledger
        .set_state(
            live.clone(),
            &[Event::now("r1", "published", "public.orders", serde_json::json!({}))],
        )
        .await
        .unwrap();
    ledger.commit_fence(Lsn::new(200), chrono::Utc::now()).await.unwrap();
    assert!(ledger.commit_fence(Lsn::new(150), chrono::Utc::now()).await.is_err());
    let again = Ledger::open(&lake).await.unwrap().unwrap();
    assert_eq!(again.state(), &live);
    assert_eq!(again.fence().unwrap().lsn, Lsn::new(200));
    assert_eq!(again.read_events(Some("r1"), Some("chunk")).await.unwrap(), vec![chunk]);
    assert_eq!(again.read_events(None, None).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_thought_dead_is_fenced_but_notes_are_not() {
    let (_store, lake) = memory();
    let mut old = Ledger::create(&lake, pipeline()).await.unwrap();
    let note = || [Event::now("", "pin", "public.orders", serde_json::json!({"version": 3}))];
    let mut beside = Ledger::open(&lake).await.unwrap().unwrap();
    assert!(beside.commit_fence(Lsn::new(1), chrono::Utc::now()).await.is_err(), "not the owner");
    beside.append_events(&note()).await.unwrap();
    old.commit_fence(Lsn::new(200), chrono::Utc::now()).await.unwrap();
    assert_eq!(old.read_events(None, Some("pin")).await.unwrap().len(), 1);
    let mut new = Ledger::open(&lake).await.unwrap().unwrap();
    new.claim().await.unwrap();
    let error = old.append_events(&note()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Fenced, "{error}");
    new.commit_fence(Lsn::new(300), chrono::Utc::now()).await.unwrap();
}
