//! Writes changed rows as JSON lines, CSV or Parquet.
//!
//! Guarantee: what a format can't say is said otherwise and never left out. JSON has no NaN and
//! readers of it no long decimals, so these are texts there; CSV has no nested values, so these are
//! JSON there, and NULL is `\N`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::csv;
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{
    Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object a line
    #[default]
    Json,
    /// Comma-separated values with a header; NULL is \N
    Csv,
    /// Parquet; needs --output
    Parquet,
}

/// Where rows go.
pub struct Writer {
    encoder: Box<dyn Encode>,
    file: Option<(NamedTempFile, PathBuf)>,
    gone: Arc<AtomicBool>,
}

trait Encode {
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
    fn finish(self: Box<Self>) -> Result<()>;
}

impl Writer {
    /// To `path`, which is there only once all is written, or to standard output.
    ///
    /// # Errors
    /// The file can't be made; Parquet without a file.
    pub fn create(format: Format, path: Option<&Path>, schema: &SchemaRef) -> Result<Writer> {
        let gone = Arc::new(AtomicBool::new(false));
        let Some(path) = path else {
            let out = Pipe { to: io::stdout(), gone: gone.clone() };
            let out = BufWriter::with_capacity(1 << 16, out);
            let encoder: Box<dyn Encode> = match format {
                Format::Json => Box::new(json(out)),
                Format::Csv => Box::new(Csv::new(out)),
                Format::Parquet => {
                    return Err(Error::config("Parquet can't be written to standard output")
                        .next("name a file: --output FILE"));
                }
            };
            return Ok(Writer { encoder, file: None, gone });
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let temporary = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(|e| {
            Error::config(format!("{} can't be written", path.display()))
                .because(e)
                .next("name a file in a folder that exists and may be written to")
        })?;
        let file = temporary.reopen().map_err(|e| at(path, e))?;
        let encoder: Box<dyn Encode> = match format {
            Format::Json => Box::new(json(BufWriter::with_capacity(1 << 20, file))),
            Format::Csv => Box::new(Csv::new(BufWriter::with_capacity(1 << 20, file))),
            Format::Parquet => Box::new(parquet(file, schema)?),
        };
        Ok(Writer { encoder, file: Some((temporary, path.to_owned())), gone })
    }

    /// Writes rows.
    ///
    /// # Errors
    /// The disk is full; a reader of standard output has gone away ([`Writer::is_gone`]).
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.encoder.write(batch)
    }

    /// Whether whoever read standard output wants no more (`| head`), which is no error.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Ends the file and puts it in its place.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(self) -> Result<()> {
        match self.encoder.finish() {
            Err(_) if self.gone.load(Ordering::Relaxed) => return Ok(()),
            result => result?,
        }
        match self.file {
            None => Ok(()),
            Some((file, path)) => {
                file.as_file().sync_all().map_err(|e| at(&path, e))?;
                file.persist(&path).map_err(|e| at(&path, e.error)).map(|_| ())
            }
        }
    }
}

fn at(path: &Path, e: io::Error) -> Error {
    Error::failed(format!("writing {}", path.display()))
        .because(e)
        .next("free disk space, or name a file elsewhere")
}

fn wrong(e: ArrowError) -> Error {
    Error::failed("changed rows can't be written").because(e).next("free disk space")
}

/// Standard output, which remembers that nobody reads it.
struct Pipe {
    to: io::Stdout,
    gone: Arc<AtomicBool>,
}

impl Pipe {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            self.gone.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.to.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.flush();
        self.note(result)
    }
}

type Json<W> = arrow::json::Writer<W, LineDelimited>;

fn json<W: Write>(out: W) -> Json<W> {
    WriterBuilder::new()
        .with_explicit_nulls(true)
        .with_encoder_factory(Arc::new(Exact))
        .build::<_, LineDelimited>(out)
}

impl<W: Write> Encode for Json<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.write(batch).map_err(wrong)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        arrow::json::Writer::finish(&mut *self).map_err(wrong)?;
        self.into_inner().flush().map_err(|e| wrong(e.into()))
    }
}

/// Encodes what JSON's numbers can't hold, or what readers of JSON round.
#[derive(Debug)]
struct Exact;

impl EncoderFactory for Exact {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>();
                Box::new(Number(move |row| shown(&values.value(row), values.value(row).into())))
            }
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>();
                Box::new(Number(move |row| shown(&values.value(row), values.value(row))))
            }
            DataType::Decimal128(..) => {
                let options = FormatOptions::new();
                let formatter = ArrayFormatter::try_new(array, &options)?;
                Box::new(Number(move |row| format!("\"{}\"", formatter.value(row))))
            }
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// The shortest text that is read back as the number.
fn shown(value: &dyn std::fmt::Debug, as_double: f64) -> String {
    if as_double.is_nan() {
        "\"NaN\"".to_owned()
    } else if as_double.is_infinite() {
        (if as_double > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" }).to_owned()
    } else {
        format!("{value:?}")
    }
}

struct Number<F>(F);

impl<F: FnMut(usize) -> String> Encoder for Number<F> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice((self.0)(row).as_bytes());
    }
}

struct Csv<W: Write>(csv::Writer<W>);

impl<W: Write> Csv<W> {
    fn new(out: W) -> Self {
        Csv(csv::WriterBuilder::new().with_null("\\N".to_owned()).build(out))
    }
}

impl<W: Write> Encode for Csv<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let (mut fields, mut columns) = (Vec::new(), Vec::<ArrayRef>::new());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if field.data_type().is_nested() {
                fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
                columns.push(Arc::new(as_json(field, column)?));
            } else {
                fields.push(field.clone());
                columns.push(column.clone());
            }
        }
        let flat = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(wrong)?;
        self.0.write(&flat).map_err(wrong)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.into_inner().flush().map_err(|e| wrong(e.into()))
    }
}

/// Each value of a column as JSON.
fn as_json(field: &FieldRef, column: &ArrayRef) -> Result<StringArray> {
    let schema = Arc::new(Schema::new(vec![field.as_ref().clone().with_name("v")]));
    let batch = RecordBatch::try_new(schema, vec![column.clone()]).map_err(wrong)?;
    let mut lines = Vec::new();
    let mut writer = json(&mut lines);
    writer.write(&batch).map_err(wrong)?;
    writer.finish().map_err(wrong)?;
    drop(writer);
    let text = String::from_utf8_lossy(&lines);
    let value = |(row, line): (usize, &str)| {
        let inside = line.strip_prefix("{\"v\":").and_then(|line| line.strip_suffix('}'));
        inside.filter(|_| column.is_valid(row)).map(str::to_owned)
    };
    Ok(text.lines().enumerate().map(value).collect())
}

fn parquet(file: File, schema: &SchemaRef) -> Result<ArrowWriter<File>> {
    let level = ZstdLevel::try_new(1).map_err(as_parquet)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_bytes(Some(32 << 20))
        .build();
    ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(as_parquet)
}

fn as_parquet(e: parquet::errors::ParquetError) -> Error {
    Error::failed("changed rows can't be written as Parquet")
        .because(e)
        .next("free disk space, or choose another --format")
}

impl Encode for ArrowWriter<File> {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        ArrowWriter::write(self, batch).map_err(as_parquet)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.close().map(|_| ()).map_err(as_parquet)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Float32Array, Float64Array, Int64Array, ListArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn batch() -> RecordBatch {
        let decimals = vec![Some(-150), None, Some(12_345_678_901_234_567_890_123_456_789_i128)];
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("i", Arc::new(Int64Array::from(vec![Some(i64::MAX), None, Some(0)]))),
            ("f", Arc::new(Float64Array::from(vec![f64::NAN, f64::NEG_INFINITY, 0.1]))),
            ("r", Arc::new(Float32Array::from(vec![0.1, 1e30, f32::INFINITY]))),
            (
                "d",
                Arc::new(Decimal128Array::from(decimals).with_precision_and_scale(38, 2).unwrap()),
            ),
            ("t", Arc::new(StringArray::from(vec![Some("a \"b\"\nc"), None, Some("")]))),
            (
                "l",
                Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
                    Some(vec![Some(1), None]),
                    None,
                    Some(vec![]),
                ])),
            ),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap()
    }

    #[test]
    fn json_keeps_what_its_numbers_can_not() {
        let mut out = Vec::new();
        let mut writer = Box::new(json(&mut out));
        Encode::write(&mut *writer, &batch()).unwrap();
        writer.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = [
            r#"{"i":9223372036854775807,"f":"NaN","r":0.1,"d":"-1.50","t":"a \"b\"\nc","l":[1,null]}"#,
            r#"{"i":null,"f":"-Infinity","r":1e30,"d":null,"t":null,"l":null}"#,
            r#"{"i":0,"f":0.1,"r":"Infinity","d":"123456789012345678901234567.89","t":"","l":[]}"#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn csv_tells_null_from_an_empty_text_and_has_nested_values_as_json() {
        let mut out = Vec::new();
        let mut writer = Box::new(Csv::new(&mut out));
        writer.write(&batch()).unwrap();
        writer.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "i,f,r,d,t,l\n\
            9223372036854775807,NaN,0.1,-1.50,\"a \"\"b\"\"\nc\",\"[1,null]\"\n\
            \\N,-inf,1e30,\\N,\\N,\\N\n\
            0,0.1,inf,123456789012345678901234567.89,,[]\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_file_is_there_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        let batch = batch();
        for finished in [false, true] {
            let mut writer = Writer::create(Format::Parquet, Some(&path), &batch.schema()).unwrap();
            writer.write(&batch).unwrap();
            if finished {
                writer.finish().unwrap();
            } else {
                drop(writer);
            }
            assert_eq!(path.exists(), finished);
            assert_eq!(folder.path().read_dir().unwrap().count(), usize::from(finished));
        }
        assert!(Writer::create(Format::Parquet, None, &batch.schema()).is_err());
    }
}
