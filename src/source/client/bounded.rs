//! A connection whose queries end: with an answer, or with the error of a connection that broke.
//!
//! The driver waits for an answer as long as the socket lives, and a network that swallows packets
//! without a word, or a proxy whose other side is gone, keeps a socket alive. What is asked over
//! this connection is small (the catalog), so a limit of time serves: when it is over the connection
//! is given up, and the query and all later ones fail as on any lost connection.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, SimpleQueryMessage, Statement, ToStatement};

/// The driver's client, with a limit for each query.
pub struct Client {
    inner: tokio_postgres::Client,
    /// The connection, and how long it may take; none for one that others opened.
    limit: Option<(AbortHandle, Duration)>,
}

impl Client {
    pub(super) fn new(
        inner: tokio_postgres::Client,
        connection: AbortHandle,
        limit: Duration,
    ) -> Self {
        Client { inner, limit: (!limit.is_zero()).then_some((connection, limit)) }
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some((connection, limit)) = &self.limit else { return work.await };
        let mut work = pin!(work);
        match tokio::time::timeout(*limit, &mut work).await {
            Ok(result) => result,
            Err(_) => {
                tracing::debug!("no answer within {limit:?}: the connection is given up");
                connection.abort();
                // Ends as soon as the connection is gone.
                work.await
            }
        }
    }

    /// As the driver's.
    ///
    /// # Errors
    /// The server's, or a connection that broke or was given up.
    pub async fn query<T: ?Sized + ToStatement>(
        &self,
        statement: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.bounded(self.inner.query(statement, parameters)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`]; not exactly one row.
    pub async fn query_one<T: ?Sized + ToStatement>(
        &self,
        statement: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.bounded(self.inner.query_one(statement, parameters)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`]; more than one row.
    pub async fn query_opt<T: ?Sized + ToStatement>(
        &self,
        statement: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.bounded(self.inner.query_opt(statement, parameters)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`].
    pub async fn execute<T: ?Sized + ToStatement>(
        &self,
        statement: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.bounded(self.inner.execute(statement, parameters)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`].
    pub async fn simple_query(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.bounded(self.inner.simple_query(sql)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`].
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.bounded(self.inner.batch_execute(sql)).await
    }

    /// As the driver's.
    ///
    /// # Errors
    /// As for [`Client::query`].
    pub async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        self.bounded(self.inner.prepare(sql)).await
    }
}

/// Without a limit.
impl From<tokio_postgres::Client> for Client {
    fn from(inner: tokio_postgres::Client) -> Self {
        Client { inner, limit: None }
    }
}

/// What else the driver can do, without a limit.
impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        &self.inner
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut tokio_postgres::Client {
        &mut self.inner
    }
}
