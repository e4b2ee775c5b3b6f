//! Arrow schemas as Delta writes them, and back.
//!
//! Source: Delta protocol, "Schema Serialization Format".

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// The schema as Delta's JSON.
///
/// # Errors
/// A column's type is none that Tidegate writes.
pub fn to_delta(schema: &Schema) -> Result<String> {
    Ok(struct_to_delta(schema.fields())?.to_string())
}

/// The Arrow schema of Delta's JSON.
///
/// # Errors
/// It is not a schema, or holds a type Tidegate does not write.
pub fn from_delta(json: &str) -> Result<SchemaRef> {
    let wrong = || {
        Error::failed("the table's schema can't be read")
            .next("the table was changed by another program; re-seed it")
    };
    let value: Value = serde_json::from_str(json).map_err(|e| wrong().because(e))?;
    match type_from_delta(&value).ok_or_else(wrong)? {
        DataType::Struct(fields) => Ok(Arc::new(Schema::new(fields))),
        _ => Err(wrong()),
    }
}

/// Whether the schema needs the feature `timestampNtz`.
pub fn needs_ntz(schema: &Schema) -> bool {
    fn ntz(data_type: &DataType) -> bool {
        match data_type {
            DataType::Timestamp(_, None) => true,
            DataType::List(f) | DataType::LargeList(f) | DataType::Map(f, _) => ntz(f.data_type()),
            DataType::Struct(fields) => fields.iter().any(|f| ntz(f.data_type())),
            _ => false,
        }
    }
    schema.fields().iter().any(|f| ntz(f.data_type()))
}

fn struct_to_delta(fields: &Fields) -> Result<Value> {
    let fields = fields.iter().map(|field| {
        let metadata: Map<String, Value> =
            field.metadata().iter().filter(|(k, _)| !k.starts_with("PARQUET:")).map(|(k, v)| (k.clone(), json!(v))).collect();
        let data_type = type_to_delta(field.data_type()).map_err(|e| e.at(format!("column {:?}", field.name())))?;
        Ok(json!({"name": field.name(), "type": data_type, "nullable": field.is_nullable(), "metadata": metadata}))
    });
    Ok(json!({"type": "struct", "fields": fields.collect::<Result<Vec<_>>>()?}))
}

fn type_to_delta(data_type: &DataType) -> Result<Value> {
    Ok(match data_type {
        DataType::Boolean => json!("boolean"),
        DataType::Int8 => json!("byte"),
        DataType::Int16 => json!("short"),
        DataType::Int32 => json!("integer"),
        DataType::Int64 => json!("long"),
        DataType::Float32 => json!("float"),
        DataType::Float64 => json!("double"),
        DataType::Decimal128(precision, scale) if *scale >= 0 => {
            json!(format!("decimal({precision},{scale})"))
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => json!("string"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => json!("binary"),
        DataType::Date32 => json!("date"),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => json!("timestamp"),
        DataType::Timestamp(TimeUnit::Microsecond, None) => json!("timestamp_ntz"),
        DataType::List(element) | DataType::LargeList(element) => json!({
            "type": "array",
            "elementType": type_to_delta(element.data_type())?,
            "containsNull": element.is_nullable(),
        }),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => json!({
                "type": "map",
                "keyType": type_to_delta(fields[0].data_type())?,
                "valueType": type_to_delta(fields[1].data_type())?,
                "valueContainsNull": fields[1].is_nullable(),
            }),
            _ => return Err(Error::failed("a map without key and value can't be written")),
        },
        DataType::Struct(fields) => struct_to_delta(fields)?,
        other => return Err(Error::failed(format!("Delta has no type for {other}"))),
    })
}

fn type_from_delta(value: &Value) -> Option<DataType> {
    if let Some(name) = value.as_str() {
        return Some(match name {
            "boolean" => DataType::Boolean,
            "byte" => DataType::Int8,
            "short" => DataType::Int16,
            "integer" => DataType::Int32,
            "long" => DataType::Int64,
            "float" => DataType::Float32,
            "double" => DataType::Float64,
            "string" => DataType::Utf8,
            "binary" => DataType::Binary,
            "date" => DataType::Date32,
            "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
            other => {
                let (precision, scale) =
                    other.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
                DataType::Decimal128(precision.trim().parse().ok()?, scale.trim().parse().ok()?)
            }
        });
    }
    match value.get("type")?.as_str()? {
        "struct" => {
            let fields = value.get("fields")?.as_array()?.iter().map(|field| {
                let metadata: HashMap<String, String> = field
                    .get("metadata")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                    .map(|(k, v)| {
                        (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                    })
                    .collect();
                let nullable = field.get("nullable")?.as_bool()?;
                let data_type = type_from_delta(field.get("type")?)?;
                Some(
                    Field::new(field.get("name")?.as_str()?, data_type, nullable)
                        .with_metadata(metadata),
                )
            });
            Some(DataType::Struct(fields.collect::<Option<Vec<_>>>()?.into()))
        }
        "array" => {
            let element = type_from_delta(value.get("elementType")?)?;
            Some(DataType::List(Arc::new(Field::new(
                "element",
                element,
                value.get("containsNull")?.as_bool()?,
            ))))
        }
        "map" => {
            let key = Field::new("key", type_from_delta(value.get("keyType")?)?, false);
            let nullable = value.get("valueContainsNull")?.as_bool()?;
            let entry = Field::new("value", type_from_delta(value.get("valueType")?)?, nullable);
            let entries = DataType::Struct(vec![key, entry].into());
            Some(DataType::Map(Arc::new(Field::new("key_value", entries, false)), false))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_type() -> impl Strategy<Value = DataType> {
        let leaf = prop_oneof![
            Just(DataType::Boolean),
            Just(DataType::Int16),
            Just(DataType::Int32),
            Just(DataType::Int64),
            Just(DataType::Float32),
            Just(DataType::Float64),
            Just(DataType::Utf8),
            Just(DataType::Binary),
            Just(DataType::Date32),
            Just(DataType::Timestamp(TimeUnit::Microsecond, None)),
            Just(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
            (1u8..=38)
                .prop_flat_map(|p| (Just(p), 0..=p as i8))
                .prop_map(|(p, s)| DataType::Decimal128(p, s)),
        ];
        leaf.prop_recursive(3, 8, 3, |inner| {
            prop_oneof![
                (inner.clone(), any::<bool>())
                    .prop_map(|(t, n)| DataType::List(Arc::new(Field::new("element", t, n)))),
                (inner.clone(), inner.clone(), any::<bool>()).prop_map(|(k, v, n)| {
                    let entries = DataType::Struct(
                        vec![Field::new("key", k, false), Field::new("value", v, n)].into(),
                    );
                    DataType::Map(Arc::new(Field::new("key_value", entries, false)), false)
                }),
                prop::collection::vec((inner, any::<bool>()), 1..3).prop_map(|parts| {
                    DataType::Struct(
                        parts
                            .into_iter()
                            .enumerate()
                            .map(|(i, (t, n))| Field::new(format!("f{i}"), t, n))
                            .collect(),
                    )
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn schemas_come_back(types in prop::collection::vec((any_type(), any::<bool>(), ".{0,6}"), 0..5)) {
            let fields: Vec<Field> = types
                .into_iter()
                .enumerate()
                .map(|(i, (t, n, name))| Field::new(format!("{name}{i}"), t, n).with_metadata([("comment".to_owned(), "c".to_owned())].into()))
                .collect();
            let schema = Schema::new(fields);
            let back = from_delta(&to_delta(&schema).unwrap()).unwrap();
            prop_assert_eq!(back.as_ref(), &schema);
        }
    }

    #[test]
    fn types_delta_lacks_are_refused_by_name() {
        let schema = Schema::new(vec![Field::new(
            "t",
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            true,
        )]);
        assert!(to_delta(&schema).unwrap_err().to_string().contains("\"t\""));
        assert!(needs_ntz(&schema));
    }
}
