//! A database per test, on a shared server, with names of its own for slot and publication.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate::demo::server::PrivateServer;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::servers::client_program;
use super::wait_until;

/// A database that goes, with its replication slots, when this is dropped.
pub struct TestDb {
    server: &'static PrivateServer,
    name: String,
}

impl TestDb {
    /// A new, empty database on a shared server; `name` is to be recognised in the server's log.
    pub fn new(server: &'static PrivateServer, name: &str) -> TestDb {
        TestDb::create(server, name, "")
    }

    /// A copy of `template`, to which nobody may be connected.
    pub fn from_template(server: &'static PrivateServer, name: &str, template: &TestDb) -> TestDb {
        TestDb::create(server, name, &format!(" TEMPLATE {}", template.name))
    }

    fn create(server: &'static PrivateServer, name: &str, how: &str) -> TestDb {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .take(40)
            .collect();
        let name = format!("{plain}_{number}");
        Sql::connect(&server.url("postgres")).run(&format!("CREATE DATABASE {name}{how}"));
        TestDb { server, name }
    }

    pub fn server(&self) -> &'static PrivateServer {
        self.server
    }

    /// The database's name; unique on the server, made of `[a-z0-9_]`, at most 50 bytes: also the
    /// name for the pipeline, its slot and its publication (slots are the whole server's).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A URL over TCP.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// A URL over the unix socket.
    pub fn socket_url(&self) -> String {
        self.server.socket_url(&self.name)
    }

    /// A new connection. A test with several writers opens several.
    pub fn sql(&self) -> Sql {
        Sql::connect(&self.url())
    }

    /// `pgbench` against this database, ready for more arguments and to be run.
    pub fn pgbench(&self) -> Command {
        let mut command = Command::new(client_program(self.server, "pgbench"));
        command
            .args(["-h", "127.0.0.1", "-U", "postgres", "-p"])
            .arg(self.server.port().to_string())
            .env("PGDATABASE", &self.name);
        command
    }

    /// The end of the WAL: everything that committed until now committed before it.
    pub fn wal_position(&self) -> String {
        self.sql().one("SELECT pg_current_wal_insert_lsn()")
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        // A failed test must show its own message: nothing here panics a second time.
        let dropping = std::panic::catch_unwind(|| {
            let mut sql = Sql::connect(&self.server.url("postgres"));
            let name = &self.name;
            let slots = format!("FROM pg_replication_slots WHERE database = '{name}'");
            wait_until("the test's slots to be free", Duration::from_secs(30), || {
                sql.run(&format!(
                    "SELECT pg_terminate_backend(active_pid) {slots} AND active_pid IS NOT NULL"
                ));
                sql.one(&format!("SELECT count(*) {slots} AND active")) == "0"
            });
            sql.run(&format!("SELECT pg_drop_replication_slot(slot_name) {slots}"));
            sql.run(&format!("DROP DATABASE {name} WITH (FORCE)"));
        });
        if dropping.is_err() {
            eprintln!("the database {} of a test could not be dropped", self.name);
        }
    }
}

/// A blocking connection for tests. Values are texts, as PostgreSQL prints them.
pub struct Sql {
    client: tokio_postgres::Client,
    runtime: tokio::runtime::Runtime,
}

impl Sql {
    pub fn connect(url: &str) -> Sql {
        Sql::attempt_connect(url).unwrap_or_else(|e| panic!("can't connect to {url}: {e}"))
    }

    /// As [`Sql::connect`], for a server that may be down.
    pub fn attempt_connect(url: &str) -> Result<Sql, tokio_postgres::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap_or_else(|e| panic!("no runtime: {e}"));
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Sql { client, runtime })
    }

    /// Runs statements and gives the rows of all of them, or the server's error.
    pub fn attempt(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        let answer = self.runtime.block_on(self.client.simple_query(sql)).map_err(|e| {
            e.as_db_error().map_or_else(
                || e.to_string(),
                |db| format!("{}: {}", db.code().code(), db.message()),
            )
        })?;
        let rows = answer.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// Runs statements that must succeed, and gives the rows of all of them.
    pub fn rows(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.attempt(sql).unwrap_or_else(|e| panic!("{e}\nin: {sql}"))
    }

    /// Runs statements that must succeed.
    pub fn run(&mut self, sql: &str) {
        self.rows(sql);
    }

    /// The one value of the one row; an empty string for NULL.
    pub fn one(&mut self, sql: &str) -> String {
        let rows = self.rows(sql);
        assert_eq!((rows.len(), rows[0].len()), (1, 1), "not one value: {sql}");
        rows[0][0].clone().unwrap_or_default()
    }

    /// The backend's process, to find or end it from another connection.
    pub fn backend(&mut self) -> String {
        self.one("SELECT pg_backend_pid()")
    }
}
