//! What `pg_type` says: enough to know how a type prints itself and what it is made of.

use std::collections::HashMap;

use tokio_postgres::SimpleQueryMessage;

use crate::error::{Error, Result};
use crate::source::client::{Client, query_error};

/// One row of `pg_type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeInfo {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// `typtype`: b base, c composite, d domain, e enum, p pseudo, r range, m multirange.
    pub kind: char,
    /// `typcategory`.
    pub category: char,
    /// `typelem`, 0 where there is none.
    pub elem: u32,
    /// `typbasetype` of a domain, else 0.
    pub base: u32,
    /// `typtypmod` of a domain, else -1.
    pub typmod: i32,
    /// Schema and name of `typoutput`.
    pub output: (String, String),
    /// The type `typoutput` is declared for; often a pseudo-type, or another type altogether.
    pub output_arg: u32,
    /// A true array: printed by `array_out`. `name`, `point` and `int2vector` have elements too, but are none.
    pub is_array: bool,
    /// `typdelim`: the character between elements in an array of this type.
    pub delimiter: u8,
}

/// The types of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeCatalog {
    pub by_oid: HashMap<u32, TypeInfo>,
    /// `server_version_num`, such as 150018.
    pub server_version: u32,
}

impl TypeCatalog {
    /// Loads the catalog on PostgreSQL 13 to 18; every column is text.
    pub const QUERY: &str = "SELECT t.oid::text, n.nspname::text, t.typname::text, t.typtype::text, t.typcategory::text, \
         t.typelem::text, t.typbasetype::text, t.typtypmod::text, fn.nspname::text, f.proname::text, \
         COALESCE(f.proargtypes[0], 0)::text, \
         CASE WHEN t.typtype = 'b' AND t.typelem <> 0 AND t.typlen = -1 AND fn.nspname = 'pg_catalog' AND f.proname = 'array_out' \
         THEN 't' ELSE 'f' END::text, t.typdelim::text, pg_catalog.current_setting('server_version_num')::text \
         FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
         JOIN pg_catalog.pg_proc f ON f.oid = t.typoutput JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace";

    /// Loads the types of the database that the client is in.
    ///
    /// # Errors
    /// A failing query.
    pub async fn load(client: &Client) -> Result<TypeCatalog> {
        let rows = client.simple_query(TypeCatalog::QUERY).await;
        let rows = rows.map_err(|e| query_error("reading the database's types", e))?;
        TypeCatalog::from_rows(rows.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect::<Vec<_>>())
            }
            _ => None,
        }))
    }

    /// Reads the rows of [`TypeCatalog::QUERY`].
    ///
    /// # Errors
    /// A row does not have the form of the query.
    pub fn from_rows<R, C>(rows: R) -> Result<TypeCatalog>
    where
        R: IntoIterator<Item = C>,
        C: AsRef<[Option<String>]>,
    {
        let mut catalog = TypeCatalog::default();
        for row in rows {
            let (info, version) = type_info(row.as_ref()).ok_or_else(|| {
                Error::failed(format!("a row of pg_type can't be read: {:?}", row.as_ref()))
                    .next("report this with the server's version")
            })?;
            catalog.server_version = version;
            catalog.by_oid.insert(info.oid, info);
        }
        Ok(catalog)
    }

    /// The type of that OID.
    ///
    /// # Errors
    /// It is not in the catalog: created after the catalog was loaded, or dropped.
    pub fn get(&self, oid: u32) -> Result<&TypeInfo> {
        self.by_oid.get(&oid).ok_or_else(|| {
            Error::failed(format!("the type with OID {oid} is not in the catalog that was loaded"))
                .next("run again, so that the catalog is read anew")
        })
    }

    /// Follows domains down to the type they are made of; the first modifier on the way counts.
    pub(super) fn base_of(&self, oid: u32, typmod: i32) -> Result<(&TypeInfo, i32)> {
        let (mut info, mut typmod) = (self.get(oid)?, typmod);
        // A chain longer than the catalog would be a circle, which PostgreSQL can't make.
        for _ in 0..=self.by_oid.len() {
            if info.kind != 'd' {
                return Ok((info, typmod));
            }
            if typmod == -1 {
                typmod = info.typmod;
            }
            info = self.get(info.base)?;
        }
        Err(Error::failed(format!("the domain with OID {oid} is made of itself")))
    }
}

fn type_info(row: &[Option<String>]) -> Option<(TypeInfo, u32)> {
    let text = |i: usize| row.get(i)?.as_deref();
    let info = TypeInfo {
        oid: text(0)?.parse().ok()?,
        schema: text(1)?.to_owned(),
        name: text(2)?.to_owned(),
        kind: text(3)?.chars().next()?,
        category: text(4)?.chars().next()?,
        elem: text(5)?.parse().ok()?,
        base: text(6)?.parse().ok()?,
        typmod: text(7)?.parse().ok()?,
        output: (text(8)?.to_owned(), text(9)?.to_owned()),
        output_arg: text(10)?.parse().ok()?,
        is_array: text(11)? == "t",
        delimiter: *text(12)?.as_bytes().first()?,
    };
    Some((info, text(13)?.parse().ok()?))
}
