//! The demo: a private server, real data, writers that go on writing, and the lake they end in.
//!
//! It uses the pipeline as `tidegate run` and `tidegate verify` do, in this process, and shows
//! only what it read back: positions from the tables' tags, figures from the lake's files. It ends
//! by itself, leaves no server behind whatever happens, and touches no folder but its own.

mod data;
mod place;
pub mod server;
mod then_and_now;
mod writers;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::source::client::Client;

use crate::cli::output::{VersionOutput, print};
use crate::cli::text::{self, Style};
use crate::config::{Config, Flags};
use crate::error::{Error, Kind, Result};
use crate::handoff::run::{self as pipeline, Until};
use crate::handoff::session::{blocking, connect_options};
use crate::lake::{self, Lake, VersionInfo};
use crate::observe::human::count;
use crate::observe::stop::StopSignal;
use crate::source::client::{self, query_error};
use crate::source::options::ConnectOptions;
use place::Place;
use server::{Options, PrivateServer, find_postgres};
use writers::{Writers, Written};

/// Names pipeline, slot and publication.
const NAME: &str = "demo";
const DATABASE: &str = "postgres";
/// How long the pipeline is shown following, and at most, if it has little to show by then.
const FOLLOW: Duration = Duration::from_secs(5);
const FOLLOW_MOST: Duration = Duration::from_secs(20);
/// Versions of `flights` to see while following.
const VERSIONS: usize = 3;
/// Between two looks at the lake.
const LOOK: Duration = Duration::from_millis(250);
/// Versions shown at the beginning and at the end of the list.
const SHOWN: usize = 4;

/// Shows the whole job in `dir`, with the files of `data` or with rows made up.
///
/// # Errors
/// There is no PostgreSQL, the folder is in use, a step failed or was stopped, or source and lake
/// differ at the end ([`Kind::Different`]).
pub async fn run(dir: &Path, data: Option<&Path>, stop: &StopSignal) -> Result<()> {
    let start = Instant::now();
    let bin = find_postgres()?;
    let place = Place::claim(dir)?;
    let folder = place.server()?;
    let options = Options {
        settings: vec![("max_slot_wal_keep_size".into(), "4GB".into())],
        ..Options::default()
    };
    let server = blocking(move || PrivateServer::start(bin, &folder, options)).await?;
    let shown = show(&place, &server, data, stop).await;
    // Stops it and removes its folder, whatever came of the rest.
    blocking(move || {
        drop(server);
        Ok(())
    })
    .await?;
    match shown {
        // Whatever it ended in, the reason is known.
        Err(error) if stop.is_set() && error.kind() != Kind::Different => {
            tracing::debug!("ended in: {error}");
            return Err(stopped());
        }
        shown => shown?,
    }
    say("")?;
    say(&format!("Done in {} s. The server is gone, the lake is yours.", start.elapsed().as_secs()))
}

async fn show(
    place: &Place,
    server: &PrivateServer,
    data: Option<&Path>,
    stop: &StopSignal,
) -> Result<()> {
    step(1, "A private PostgreSQL with data")?;
    let folder = server.data();
    say(&format!(
        "PostgreSQL {} on 127.0.0.1:{} in {}",
        server.major(),
        server.port(),
        folder.parent().unwrap_or(&folder).display()
    ))?;
    let config = configure(place, server)?;
    let source = connect_options(&config)?;
    let client = connect(&source).await?;
    let rows = tokio::select! {
        rows = data::load(&client, data) => rows?,
        () = stop.requested() => return Err(stopped()),
    };
    say(match data {
        Some(_) => "flights that left New York in 2013 (nycflights13):",
        None => "rows made up in the image of flights (--data loads real ones):",
    })?;
    let listed: Vec<String> =
        rows.iter().map(|(table, rows)| format!("{table} {}", count(*rows))).collect();
    say(&format!("  {} rows", listed.join(", ")))?;
    let flights = rows.iter().find(|(table, _)| *table == "flights").map_or(0, |(_, n)| *n);

    step(2, "Writers start, and won't wait for anybody")?;
    let writers = Writers::start(&source, flights).await?;
    say("three applications insert, update, delete, change keys, and write wide values")?;

    step(3, "Snapshot, handoff, drain - while they write")?;
    let began = Instant::now();
    pipeline::run(&config, Until::CaughtUp, false, stop).await?;
    going_on(stop)?;
    let lake = Lake::open(config.lake()?)?;
    let flights = Lake::table_folder("public", "flights");
    let handoff = lake::versions(&lake, &flights).await?;
    let base = handoff.first().and_then(|v| v.base).unwrap_or_default();
    say(&format!(
        "copied in {:.1} s: version 0 of every table shows the database exactly at {base}",
        began.elapsed().as_secs_f64()
    ))?;
    say(&format!("committed meanwhile: {}", words(writers.written())))?;
    let fence = pipeline::run(&config, Until::CaughtUp, false, stop).await?;
    going_on(stop)?;
    say(&format!(
        "drained: all of that is in the lake too, {:.1} s after the start, up to {fence}",
        began.elapsed().as_secs_f64()
    ))?;

    step(4, "Live: every committed change, in commits of its own")?;
    follow(&config, &lake, &flights, &writers, stop).await?;
    let written = writers.stop().await?;
    say(&format!("the writers stop; they committed {}", words(written)))?;
    let fence = pipeline::run(&config, Until::CaughtUp, false, stop).await?;
    going_on(stop)?;
    say(&format!("the lake has all of it, up to {fence}"))?;

    step(5, "Verify: every column of every row, database against lake")?;
    let verified = crate::verify::verify(&config, &[], stop).await?;
    say(&text::verify(&verified, Style::detect()))?;
    if let Some(different) = verified.error() {
        return Err(different);
    }
    // The rest is read from the lake alone.
    drop(client);

    step(6, "The versions of flights, and the positions they show")?;
    let versions = lake::versions(&lake, &flights).await?;
    let newest = versions.last().map_or(0, |v| v.version);
    say(&list(versions))?;
    say("")?;
    say(&format!("One query at version 0, the handoff, and the same at version {newest}, now:"))?;
    say(&indent(then_and_now::SQL))?;
    let airlines = Lake::table_folder("public", "airlines");
    say(&then_and_now::compare(&lake, &flights, &airlines, newest).await?)?;

    step(7, "Where it is, and how to open it")?;
    say(&how_to_open(&lake, &flights, config.lake()?))
}

fn configure(place: &Place, server: &PrivateServer) -> Result<Config> {
    let flags = Flags {
        // All that the caller's environment could change about the way to this server.
        source: Some(format!("{}?hostaddr=127.0.0.1&sslmode=disable", server.url(DATABASE))),
        lake: Some(place.lake().to_string_lossy().into_owned()),
        name: Some(NAME.to_owned()),
        tables: Some("public.*".to_owned()),
        state_dir: Some(place.state()),
        interval: Some(Duration::from_secs(1)),
        ..Flags::default()
    };
    Config::resolve(&flags, &|_| None, None)
}

/// A connection that finds the demo's tables by their names.
async fn connect(source: &ConnectOptions) -> Result<Client> {
    let client = client::connect(source).await?;
    let set = client.batch_execute("SET search_path = public").await;
    set.map_err(|e| query_error("setting the search path", e))?;
    Ok(client)
}

/// Runs the pipeline for some seconds beside the writers, and shows the versions as they come.
async fn follow(
    config: &Config,
    lake: &Lake,
    folder: &str,
    writers: &Writers,
    stop: &StopSignal,
) -> Result<()> {
    let enough = StopSignal::manual();
    let following = pipeline::run(config, Until::Forever, false, &enough);
    let watching = async {
        let watched = watch(lake, folder, writers, stop).await;
        enough.request();
        watched
    };
    // The pipeline ends before the watch only by failing: then there is nothing to wait for.
    let mut following = std::pin::pin!(following);
    let mut watching = std::pin::pin!(watching);
    tokio::select! {
        ended = &mut following => ended.map(|_| ()),
        watched = &mut watching => {
            let ended = following.await;
            watched?;
            ended.map(|_| ())
        }
    }?;
    going_on(stop)
}

async fn watch(lake: &Lake, folder: &str, writers: &Writers, stop: &StopSignal) -> Result<()> {
    let start = Instant::now();
    let known = lake::versions(lake, folder).await?.len();
    let mut seen = known;
    while writers.are_writing() {
        for version in lake::versions(lake, folder).await?.iter().skip(seen) {
            seen += 1;
            say(&format!(
                "flights version {} shows {}: {} rows in, {} out{}",
                version.version,
                version.applied.unwrap_or_default(),
                count(version.inserted),
                count(version.deleted),
                lag(version).map_or_else(String::new, |lag| format!(
                    ", {:.1} s after the source's commit",
                    lag.as_secs_f64()
                ))
            ))?;
        }
        let elapsed = start.elapsed();
        if elapsed > FOLLOW && (seen >= known + VERSIONS || elapsed > FOLLOW_MOST) {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.requested() => return Ok(()),
        }
    }
    // One of them failed; stopping them says why.
    Ok(())
}

/// From the last transaction's commit at the source to the version's commit in the lake.
fn lag(version: &VersionInfo) -> Option<Duration> {
    let at = |text: &Option<String>| chrono::DateTime::parse_from_rfc3339(text.as_ref()?).ok();
    at(&version.committed_at)?.signed_duration_since(at(&version.source_time)?).to_std().ok()
}

/// The first and the last versions.
fn list(versions: Vec<VersionInfo>) -> String {
    let versions: Vec<VersionOutput> = versions.into_iter().map(VersionOutput::from).collect();
    let whole = text::versions(&versions, Style::detect());
    let left_out = versions.len().saturating_sub(2 * SHOWN);
    if left_out == 0 {
        return whole;
    }
    let lines: Vec<&str> = whole.lines().collect();
    // The first line is the header.
    let (head, rest) = lines.split_at((SHOWN + 1).min(lines.len()));
    let between = format!("         {left_out} more");
    let tail = rest.iter().skip(left_out);
    head.iter().chain([&between.as_str()]).chain(tail).copied().collect::<Vec<_>>().join("\n")
}

fn how_to_open(lake: &Lake, folder: &str, place: &str) -> String {
    let table = lake.location(folder);
    let literal = table.replace('\'', "''");
    let quoted = table.replace('`', "``");
    format!(
        "{place}\n\
         \n\
         DuckDB:    INSTALL delta; LOAD delta;\n\
         \x20          SELECT count(*) FROM delta_scan('{literal}');\n\
         \x20          SELECT count(*) FROM delta_scan('{literal}', version => 0);\n\
         Spark SQL: SELECT count(*) FROM delta.`{quoted}`;\n\
         \x20          SELECT count(*) FROM delta.`{quoted}` VERSION AS OF 0;\n\
         all tables as views, at one consistent position:\n\
         \x20          tidegate views duckdb --name {NAME} --lake '{}'",
        place.replace('\'', "'\\''")
    )
}

fn words(written: Written) -> String {
    format!(
        "{} transactions ({} rows inserted, {} updated, {} deleted; {} keys changed, \
         {} wide values)",
        count(written.transactions),
        count(written.inserted),
        count(written.updated),
        count(written.deleted),
        count(written.keys),
        count(written.wide)
    )
}

fn going_on(stop: &StopSignal) -> Result<()> {
    if stop.is_set() { Err(stopped()) } else { Ok(()) }
}

fn stopped() -> Error {
    Error::failed("the demo was stopped before its end").next("run it again; it starts anew")
}

fn step(number: u32, title: &str) -> Result<()> {
    print(&format!("\n{number}. {title}"))
}

fn say(text: &str) -> Result<()> {
    print(&indent(text))
}

fn indent(text: &str) -> String {
    let lines = text.lines().map(|line| match line {
        "" => String::new(),
        line => format!("   {line}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::VersionKind;

    #[test]
    fn a_long_history_is_shown_by_its_ends() {
        let version = |version| VersionInfo {
            version,
            kind: VersionKind::Changes,
            operation: "MERGE".into(),
            generation: Some(1),
            base: None,
            applied: None,
            source_time: None,
            committed_at: None,
            inserted: 0,
            deleted: 0,
        };
        let numbers = |n| -> Vec<String> {
            let text = list((0..n).map(version).collect());
            let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
            text.lines().skip(1).filter_map(first).collect()
        };
        assert_eq!(numbers(8), ["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(numbers(11), ["0", "1", "2", "3", "3", "7", "8", "9", "10"]);
    }
}
