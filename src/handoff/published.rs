//! Whether the publication still sends every change of the tables, and has all the time.
//!
//! It must: what it left out while it did not is in no stream, so it is not enough to mend it. It is
//! asked at every start, and while the stream flows, since a server says nothing when a table is
//! taken out of a publication, and from PostgreSQL 18 on nothing when the publication is gone.

use crate::source::client::Client;

use crate::error::{Error, Result};
use crate::handoff::rules::{Refusal, same_membership, same_publication};
use crate::handoff::session::Session;
use crate::lake::{PipelineState, TableEntry};
use crate::source::catalog::{self, TableInfo};
use crate::source::check::Severity;
use crate::source::slot;

/// The publication as the pipeline knows it.
#[derive(Clone, Debug)]
pub struct Published {
    name: String,
    contract: String,
    /// Oid and membership of each table.
    members: Vec<(u32, String)>,
    version: u32,
}

impl Published {
    /// As recorded when the tables that are followed were copied.
    pub fn recorded(state: &PipelineState, server_version: u32) -> Published {
        Published {
            name: state.source.publication.clone(),
            contract: state.source.contract.clone(),
            members: state
                .tables
                .iter()
                .filter(|table| table.is_followed())
                .map(|table| (table.oid, table.membership.clone()))
                .collect(),
            version: server_version,
        }
    }

    /// # Errors
    /// A refusal of the kind [`HistoryLost`](crate::error::Kind::HistoryLost); a failing query.
    ///
    /// Of the tables, those in `tables` are looked at: one that is gone is no longer published, and
    /// sends nothing either.
    pub async fn still(&self, client: &Client, tables: &[TableInfo]) -> Result<()> {
        let refused = |refusal: Refusal| {
            let subject = refusal.subject(&self.name);
            Err(Error::from(refusal).at(subject))
        };
        let Some(publication) = slot::publication_info(client, &self.name, self.version).await?
        else {
            return refused(Refusal::PublicationGone);
        };
        let unfit: Vec<String> = slot::problems(&publication, tables)
            .into_iter()
            .filter(|finding| finding.severity == Severity::Error)
            .map(|finding| format!("{} {}", finding.subject, finding.what))
            .collect();
        if !unfit.is_empty() {
            return refused(Refusal::PublicationUnfit { what: unfit.join("; ") });
        }
        let found = publication.contract();
        if let Err(refusal) = same_publication(&self.contract, &found) {
            return refused(refusal);
        }
        for (oid, recorded) in &self.members {
            if !tables.iter().any(|table| table.oid == *oid) {
                continue;
            }
            if let Err(refusal) = same_membership(recorded, publication.membership(*oid)) {
                return refused(refusal);
            }
        }
        Ok(())
    }
}

/// The tables of the pipeline that are followed, as far as the source has them now.
///
/// # Errors
/// A failing query.
pub async fn tables(session: &Session, client: &Client) -> Result<Vec<TableInfo>> {
    let ledger = session.ledger()?;
    let followed: Vec<&TableEntry> =
        ledger.state().tables.iter().filter(|table| table.is_followed()).collect();
    if followed.is_empty() {
        return Ok(Vec::new());
    }
    let patterns: Vec<String> =
        followed.iter().map(|table| catalog::for_table(&table.schema, &table.name)).collect();
    let (treatments, version) = (&session.config.treatments, session.server.version);
    let found = catalog::select_tables(client, &patterns, treatments, version).await?;
    // One that was made anew under the name is another table.
    let same = |info: &TableInfo| followed.iter().any(|table| table.oid == info.oid);
    Ok(found.tables.into_iter().filter(same).collect())
}
