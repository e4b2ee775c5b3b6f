//! Reads a Parquet file from an object store.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// Bytes read from the end at once: most footers, with their page indexes, are in them.
const FOOTER_GUESS: usize = 64 << 10;

/// One Parquet object.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

impl RemoteFile {
    pub fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        RemoteFile { store, path }
    }
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for RemoteFile {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move { self.store.get_range(&self.path, range).await.map_err(external) }.boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            // The size first: not every store can read from the end.
            let size = self.store.head(&self.path).await.map_err(external)?.size;
            let mut reader = ParquetMetaDataReader::new().with_prefetch_hint(Some(FOOTER_GUESS));
            if let Some(options) = options {
                reader = reader
                    .with_metadata_options(Some(options.metadata_options().clone()))
                    .with_column_index_policy(options.column_index_policy())
                    .with_offset_index_policy(options.offset_index_policy());
            }
            Ok(Arc::new(reader.load_and_finish(self, size).await?))
        }
        .boxed()
    }
}
