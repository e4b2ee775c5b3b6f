//! Reads a spool's messages in order, from the step that a drain needs on.

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::segment::{Header, Record, SegmentReader};
use super::{SegmentFile, Step, folder, steps};
use crate::error::{Error, Result};
use crate::lake::{Lake, Ledger, SpoolState};
use crate::position::Lsn;
use crate::source::wire::Frame;

/// A step's files, then the word that it is complete.
enum Item {
    File(SegmentFile),
    End(Lsn),
}

type Fetched = JoinHandle<Result<Bytes>>;

/// The messages of a spool.
pub struct SpoolReader {
    lake: Lake,
    runtime: Handle,
    run: String,
    items: std::vec::IntoIter<Item>,
    /// The file after the one that is read, on its way.
    ahead: Option<(SegmentFile, Fetched)>,
    open: Option<(SegmentFile, SegmentReader)>,
}

impl SpoolReader {
    /// The messages of every step that ends after `needed`; the steps before are in the tables.
    ///
    /// # Errors
    /// The ledger's records are missing or unreadable.
    pub async fn open(
        lake: &Lake,
        ledger: &Ledger,
        spool: &SpoolState,
        needed: Lsn,
    ) -> Result<SpoolReader> {
        let steps = steps(ledger, spool).await?;
        Ok(Self::of(lake, &spool.run, steps, needed))
    }

    fn of(lake: &Lake, run: &str, steps: Vec<Step>, needed: Lsn) -> SpoolReader {
        let items: Vec<Item> = steps
            .into_iter()
            .filter(|step| step.to > needed)
            .flat_map(|step| step.files.into_iter().map(Item::File).chain([Item::End(step.to)]))
            .collect();
        let mut reader = SpoolReader {
            lake: lake.clone(),
            runtime: Handle::current(),
            run: run.to_owned(),
            items: items.into_iter(),
            ahead: None,
            open: None,
        };
        reader.fetch_ahead();
        reader
    }

    /// Whether every message was given.
    pub fn is_at_end(&self) -> bool {
        self.open.is_none() && self.items.as_slice().is_empty()
    }

    /// The next message; after the last one of a step a keepalive says that nothing is missing up
    /// to its end. `None` after the last step. Blocking.
    ///
    /// # Errors
    /// A recorded file is missing, damaged, or of another run: definite. The store: transient.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>> {
        loop {
            if self.open.is_none() {
                match self.items.next() {
                    None => return Ok(None),
                    Some(Item::End(end)) => {
                        return Ok(Some(Frame::Keepalive { end, clock_us: 0, reply: false }));
                    }
                    Some(Item::File(file)) => self.open = Some(self.begin(file)?),
                }
            }
            let Some((file, segment)) = &mut self.open else { continue };
            if segment.left() == 0 {
                // Looks whether the file ends where its counts do.
                segment.next_record().map_err(|e| damaged(&self.run, file, e))?;
                self.open = None;
                continue;
            }
            break;
        }
        let Some((file, segment)) = &mut self.open else { return Ok(None) };
        let record = segment.next_record().map_err(|e| damaged(&self.run, file, e))?;
        Ok(record.map(|Record { start, end, message }| Frame::XLogData {
            start,
            end,
            clock_us: 0,
            data: message,
        }))
    }

    fn begin(&mut self, file: SegmentFile) -> Result<(SegmentFile, SegmentReader)> {
        let fetched = match self.ahead.take() {
            Some((ahead, fetched)) if ahead == file => fetched,
            _ => self.fetch(&file),
        };
        let bytes = self
            .runtime
            .block_on(fetched)
            .map_err(|e| Error::transient("a read of the spool was cancelled").because(e))??;
        self.fetch_ahead();
        let size = bytes.len() as u64;
        let segment = SegmentReader::new(bytes).map_err(|e| damaged(&self.run, &file, e))?;
        // Whole, but is it the one that was recorded?
        let same = size == file.size
            && segment.records() == file.records
            && segment.checksum() == file.checksum
            && segment.header().run == self.run;
        if !same {
            return Err(damaged(&self.run, &file, "it is not the file that was recorded"));
        }
        known_options(&self.run, &file, segment.header())?;
        Ok((file, segment))
    }

    fn fetch_ahead(&mut self) {
        let next = self.items.as_slice().iter().find_map(|item| match item {
            Item::File(file) => Some(file.clone()),
            Item::End(_) => None,
        });
        self.ahead = next.map(|file| {
            let fetched = self.fetch(&file);
            (file, fetched)
        });
    }

    fn fetch(&self, file: &SegmentFile) -> Fetched {
        let (lake, path) = (self.lake.clone(), format!("{}/{}", folder(&self.run), file.name));
        let gone = damaged(&self.run, file, "it is gone");
        self.runtime.spawn(async move { lake.get(&path).await?.ok_or(gone) })
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        if let Some((_, fetched)) = &self.ahead {
            fetched.abort();
        }
    }
}

fn damaged(run: &str, file: &SegmentFile, why: impl std::fmt::Display) -> Error {
    Error::failed(format!("{}/{}: {why}", folder(run), file.name)).next(
        "restore the file from a copy of the lake; without it the source's changes between \
         snapshot and now are lost: start a new generation with `tidegate run --resnapshot`",
    )
}

/// The stream's options may be others by now; those of the file must be ones that are understood.
fn known_options(run: &str, file: &SegmentFile, header: &Header) -> Result<()> {
    for (name, value) in &header.options {
        let known = match name.as_str() {
            "proto_version" => matches!(value.as_str(), "1" | "2" | "3" | "4"),
            "publication_names" | "binary" | "origin" => true,
            "messages" | "streaming" | "two_phase" => matches!(value.as_str(), "false" | "off"),
            _ => false,
        };
        if !known {
            return Err(Error::failed(format!(
                "{}/{}: it was written with the option {name} = {value:?}, which this version \
                 can't read",
                folder(run),
                file.name
            ))
            .next("go on with the version of Tidegate that wrote it, until the tables are live"));
        }
    }
    Ok(())
}
