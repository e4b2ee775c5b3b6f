//! The demo's tables: a year of flights out of New York, or rows made up in their image.
//!
//! Between them the tables have what matters to a replica: a key of one's own, natural keys, a
//! table without any key, and a wide column that PostgreSQL stores out of line.

use std::path::Path;

use crate::source::client::Client;
use bytes::Bytes;
use futures::SinkExt;
use tokio::io::AsyncReadExt;

use crate::error::{Error, Result};
use crate::source::client::query_error;

/// The tables, and the columns of their CSV files in their order.
pub const TABLES: [(&str, &str); 5] = [
    ("airlines", "carrier, name"),
    ("airports", "faa, name, lat, lon, alt, tz, dst, tzone"),
    ("planes", "tailnum, year, type, manufacturer, model, engines, seats, speed, engine"),
    (
        "weather",
        "origin, year, month, day, hour, temp, dewp, humid, wind_dir, wind_speed, wind_gust, \
         precip, pressure, visib, time_hour",
    ),
    (
        "flights",
        "year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, \
         arr_delay, carrier, flight, tailnum, origin, dest, air_time, distance, hour, minute, \
         time_hour",
    ),
];

/// The weather at one hour of the clock change stands there twice: no column set is a key.
const CREATE: &str = "
    CREATE TABLE airlines (carrier text PRIMARY KEY, name text NOT NULL);
    CREATE TABLE airports (faa text PRIMARY KEY, name text, lat double precision,
        lon double precision, alt int, tz int, dst text, tzone text);
    CREATE TABLE planes (tailnum text PRIMARY KEY, year int, type text, manufacturer text,
        model text, engines int, seats int, speed int, engine text);
    CREATE TABLE weather (origin text, year int, month int, day int, hour int,
        temp double precision, dewp double precision, humid double precision, wind_dir int,
        wind_speed double precision, wind_gust double precision, precip double precision,
        pressure double precision, visib double precision, time_hour timestamptz);
    ALTER TABLE weather REPLICA IDENTITY FULL;
    CREATE TABLE flights (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
        arr_time int, sched_arr_time int, arr_delay int, carrier text, flight int, tailnum text,
        origin text, dest text, air_time int, distance int, hour int, minute int,
        time_hour timestamptz, remarks text);
    -- Uncompressed, so that a wide value does lie out of line.
    ALTER TABLE flights ALTER remarks SET STORAGE EXTERNAL";

const MAKE_UP: &str = "
    SELECT setseed(0.42);
    INSERT INTO airlines SELECT 'A' || chr(64 + n), 'Airline ' || n FROM generate_series(1, 16) n;
    INSERT INTO airports SELECT 'X' || lpad(n::text, 4, '0'), 'Airport ' || n,
        180 * random() - 90, 360 * random() - 180, (random() * 5000)::int, (n % 24) - 12, 'A', NULL
        FROM generate_series(1, 1400) n;
    INSERT INTO planes SELECT 'N' || 10000 + n, 1980 + n % 40, 'Fixed wing multi engine',
        'Maker ' || n % 9, 'Model ' || n % 70, 2, 50 + n % 300, NULL, 'Turbo-fan'
        FROM generate_series(1, 3300) n;
    INSERT INTO weather SELECT origin, 2013, extract(month FROM at)::int, extract(day FROM at)::int,
        extract(hour FROM at)::int, 20 + 60 * random(), 40 * random(), 100 * random(),
        (36 * random())::int * 10, 20 * random(), NULL, 0, 1000 + 30 * random(), 10, at
        FROM unnest(ARRAY['EWR', 'JFK', 'LGA']) origin,
             generate_series(timestamptz '2013-01-01 00:00Z', '2013-12-30 23:00Z', '1 hour') at;
    INSERT INTO flights (year, month, day, dep_time, sched_dep_time, dep_delay, arr_time,
        sched_arr_time, arr_delay, carrier, flight, tailnum, origin, dest, air_time, distance,
        hour, minute, time_hour)
        SELECT 2013, extract(month FROM at)::int, extract(day FROM at)::int,
        extract(hour FROM at)::int * 100, extract(hour FROM at)::int * 100,
        CASE WHEN n % 40 > 0 THEN (80 * power(random(), 3))::int - 8 END, NULL, NULL,
        (90 * power(random(), 3))::int - 20, 'A' || chr(65 + floor(16 * power(random(), 2))::int),
        n % 6000, 'N' || 10001 + n % 3300, (ARRAY['EWR', 'JFK', 'LGA'])[1 + n % 3],
        'X' || lpad((1 + n % 1400)::text, 4, '0'), 30 + n % 400, 100 + n % 2500,
        extract(hour FROM at)::int, 0, at
        FROM generate_series(1, 300000) n,
             LATERAL (SELECT timestamptz '2013-01-01 00:00Z' + n * interval '105 seconds' AS at) t";

const FINISH: &str = "
    UPDATE flights SET remarks = (SELECT string_agg(md5(id::text || n), '')
        FROM generate_series(1, 150) n) WHERE id % 500 = 1;
    ANALYZE";

/// Bytes of a CSV file sent at a time.
const PIECE: usize = 256 << 10;

/// Makes the tables and fills them; gives each table's number of rows.
///
/// # Errors
/// A file can't be read or does not fit, or the server fails.
pub async fn load(client: &Client, data: Option<&Path>) -> Result<Vec<(&'static str, u64)>> {
    run(client, "making the tables", CREATE).await?;
    match data {
        Some(folder) => {
            for (table, columns) in TABLES {
                copy(client, table, columns, &folder.join(format!("{table}.csv"))).await?;
            }
        }
        None => run(client, "making up rows", MAKE_UP).await?,
    }
    run(client, "writing wide remarks", FINISH).await?;
    let mut rows = Vec::with_capacity(TABLES.len());
    for (table, _) in TABLES {
        let counted = client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await;
        let count: i64 = counted
            .and_then(|row| row.try_get(0))
            .map_err(|e| query_error(format!("counting {table}"), e))?;
        rows.push((table, count.unsigned_abs()));
    }
    Ok(rows)
}

async fn run(client: &Client, doing: &str, sql: &str) -> Result<()> {
    client.batch_execute(sql).await.map_err(|e| query_error(doing, e))
}

/// Loads a CSV file with a header, in which `NA` is no value.
async fn copy(client: &Client, table: &str, columns: &str, path: &Path) -> Result<()> {
    let unreadable = |e: std::io::Error| {
        Error::config(format!("{} can't be read", path.display()))
            .because(e)
            .next("give the folder of the nycflights13 files with --data, or leave it out")
    };
    let doing = |e| query_error(format!("loading {}", path.display()), e);
    let mut file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let sql = format!("COPY {table} ({columns}) FROM STDIN (FORMAT csv, HEADER, NULL 'NA')");
    let sink = client.copy_in::<_, Bytes>(&sql).await.map_err(doing)?;
    let mut sink = std::pin::pin!(sink);
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        (&mut file).take(PIECE as u64).read_to_end(&mut piece).await.map_err(unreadable)?;
        if piece.is_empty() {
            break;
        }
        sink.send(piece.into()).await.map_err(doing)?;
    }
    sink.finish().await.map(|_| ()).map_err(doing)
}
