//! What commands answer to people: the same figures as in JSON, aligned, in human units.

use std::io;
use std::time::Duration;

use super::output::{CutOutput, DifferenceKind, StatusOutput, VerifyOutput, VersionOutput};
use super::table::{Cell, Side, Table};
use crate::lake::VersionKind;
use crate::observe::{human, log};
use crate::position::Lsn;

const GREEN: u8 = 32;
const RED: u8 = 31;
const YELLOW: u8 = 33;

/// Whether to use colour.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Colour on a terminal, unless NO_COLOR is set.
    pub fn detect() -> Self {
        Style { colour: log::colour(&io::stdout()) }
    }

    /// No colour.
    pub fn plain() -> Self {
        Style { colour: false }
    }

    fn sgr(self, code: u8) -> Option<u8> {
        self.colour.then_some(code)
    }

    fn paint(self, code: u8, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn counts(value: Option<u64>) -> String {
    or_dash(value.map(human::count))
}

/// `tidegate status`
pub fn status(status: &StatusOutput, style: Style) -> String {
    let mut out = format!(
        "pipeline {}  generation {}  {}\nbase {}  fence {}\n",
        status.pipeline,
        status.generation,
        style.paint(phase_colour(&status.phase), &status.phase),
        or_dash(status.base),
        or_dash(status.fence),
    );
    if let Some(failure) = &status.failure {
        out.push_str(&style.paint(RED, &format!("failed: {failure}")));
        out.push('\n');
    }
    for table in &status.tables {
        if let Some(why) = &table.why {
            let line = format!("{} ({}): {why}", table.table, table.phase);
            out.push_str(&style.paint(phase_colour(&table.phase), &line));
            out.push('\n');
        }
    }
    if let Some(boundary) = &status.boundary {
        let age = match boundary.age_seconds {
            Some(age) => format!("held for {}", human::duration(Duration::from_secs(age))),
            None => "let go".to_owned(),
        };
        out.push_str(&format!(
            "run {}  snapshot {} {} at {}  {age}\n",
            status.run, boundary.number, boundary.snapshot, boundary.base
        ));
    }
    match &status.slot {
        None => out.push_str("slot: not known (the source was not asked, or has no such slot)\n"),
        Some(slot) => {
            let lost =
                slot.wal_status.as_deref().is_some_and(|wal| wal == "lost" || wal == "unreserved");
            let wal = or_dash(slot.wal_status.as_deref());
            out.push_str(&format!(
                "slot {}  {}  confirmed {}  WAL retained {}  {}{}\n",
                slot.name,
                if slot.active { "in use" } else { "not in use" },
                or_dash(slot.confirmed),
                human::bytes(slot.retained_bytes),
                if lost { style.paint(RED, &wal) } else { wal },
                match slot.safe_bytes {
                    Some(safe) => format!(
                        "  lost after {} more",
                        human::bytes(u64::try_from(safe).unwrap_or(0))
                    ),
                    None => String::new(),
                },
            ));
        }
    }
    if let Some(spool) = &status.spool {
        out.push_str(&format!(
            "spool  {} in {} files  changes up to {}\n",
            human::bytes(spool.bytes),
            human::count(spool.files),
            spool.to
        ));
    }
    if status.tables.is_empty() {
        out.push_str("no tables yet\n");
        return out;
    }
    let mut table = Table::new(&[
        ("table", Side::Left),
        ("phase", Side::Left),
        ("version", Side::Right),
        ("base", Side::Left),
        ("applied", Side::Left),
        ("chunks", Side::Right),
        ("copied", Side::Right),
        ("estimated", Side::Right),
        ("bytes", Side::Right),
    ]);
    for t in &status.tables {
        table.row(vec![
            t.table.as_str().into(),
            Cell::from(t.phase.as_str()).coloured(style.sgr(phase_colour(&t.phase))),
            or_dash(t.version).into(),
            or_dash(t.base).into(),
            or_dash(t.applied).into(),
            match t.chunks {
                Some(chunks) => format!("{}/{chunks}", t.chunks_copied),
                None => t.chunks_copied.to_string(),
            }
            .into(),
            human::count(t.rows_copied).into(),
            counts(t.rows_estimated).into(),
            human::bytes(t.bytes_copied).into(),
        ]);
    }
    out.push('\n');
    out.push_str(&table.render());
    out.push_str(&storage(status));
    for pin in &status.pins {
        out.push_str(&format!("pin {}  at {}  since {}\n", pin.name, pin.lsn, pin.at));
    }
    out
}

/// What the tables are made of; empty before there are any.
fn storage(status: &StatusOutput) -> String {
    let mut table = Table::new(&[
        ("table", Side::Left),
        ("files", Side::Right),
        ("bytes", Side::Right),
        ("rows", Side::Right),
        ("masked", Side::Right),
        ("versions", Side::Right),
        ("log", Side::Right),
    ]);
    let mut any = false;
    for (name, s) in status.tables.iter().filter_map(|t| Some((&t.table, t.storage.as_ref()?))) {
        any = true;
        let percent = s.masked_rows * 100 / (s.rows + s.masked_rows).max(1);
        table.row(vec![
            name.as_str().into(),
            human::count(s.files).into(),
            human::bytes(s.bytes).into(),
            human::count(s.rows).into(),
            format!("{percent} %").into(),
            human::count(s.versions).into(),
            human::bytes(s.log_bytes).into(),
        ]);
    }
    if any { format!("\n{}", table.render()) } else { String::new() }
}

fn phase_colour(phase: &str) -> u8 {
    match phase {
        "live" | "ready" => GREEN,
        "failed" | "stopped" | "fenced" | "lost" => RED,
        _ => YELLOW,
    }
}

/// `tidegate versions`
pub fn versions(versions: &[VersionOutput], style: Style) -> String {
    let mut table = Table::new(&[
        ("version", Side::Right),
        ("kind", Side::Left),
        ("gen", Side::Right),
        ("base", Side::Left),
        ("applied", Side::Left),
        ("source time", Side::Left),
        ("committed at", Side::Left),
        ("inserted", Side::Right),
        ("deleted", Side::Right),
        ("pins", Side::Left),
    ]);
    for v in versions {
        let colour = match v.kind {
            VersionKind::Handoff | VersionKind::Reseed => Some(GREEN),
            VersionKind::Foreign | VersionKind::Takeover => Some(YELLOW),
            _ => None,
        };
        table.row(vec![
            v.version.to_string().into(),
            Cell::from(v.kind.as_str()).coloured(colour.and_then(|c| style.sgr(c))),
            or_dash(v.generation).into(),
            or_dash(v.base).into(),
            or_dash(v.applied).into(),
            or_dash(v.source_time.as_deref()).into(),
            or_dash(v.committed_at.as_deref()).into(),
            counts(v.inserted).into(),
            counts(v.deleted).into(),
            v.pins.join(", ").into(),
        ]);
    }
    table.render()
}

/// `tidegate versions --at`
pub fn cut(cut: &CutOutput) -> String {
    let mut table = Table::new(&[("table", Side::Left), ("version", Side::Right)]);
    for (name, version) in &cut.tables {
        table.row(vec![name.as_str().into(), version.to_string().into()]);
    }
    format!("all tables at {}\n\n{}", cut.lsn, table.render())
}

/// `tidegate verify`
pub fn verify(output: &VerifyOutput, style: Style) -> String {
    let mut out = String::new();
    let mut table = Table::new(&[
        ("table", Side::Left),
        ("result", Side::Left),
        ("source rows", Side::Right),
        ("lake rows", Side::Right),
        ("missing", Side::Right),
        ("extra", Side::Right),
        ("different", Side::Right),
    ]);
    for t in &output.tables {
        let (word, colour) = if t.equal { ("equal", GREEN) } else { ("NOT EQUAL", RED) };
        table.row(vec![
            t.table.as_str().into(),
            Cell::from(word).coloured(style.sgr(colour)),
            human::count(t.source_rows).into(),
            human::count(t.lake_rows).into(),
            human::count(t.missing).into(),
            human::count(t.extra).into(),
            human::count(t.different).into(),
        ]);
    }
    out.push_str(&table.render());
    let samples: Vec<_> =
        output.tables.iter().flat_map(|t| t.samples.iter().map(move |s| (t, s))).collect();
    if !samples.is_empty() {
        let mut table = Table::new(&[
            ("table", Side::Left),
            ("key", Side::Left),
            ("is", Side::Left),
            ("column", Side::Left),
            ("source", Side::Left),
            ("lake", Side::Left),
        ]);
        for (t, s) in samples {
            let null = if s.kind == DifferenceKind::Different { "NULL" } else { "" };
            table.row(vec![
                t.table.as_str().into(),
                shorten(&s.key).into(),
                s.kind.name().into(),
                s.column.as_deref().unwrap_or_default().into(),
                shorten(s.source.as_deref().unwrap_or(null)).into(),
                shorten(s.lake.as_deref().unwrap_or(null)).into(),
            ]);
        }
        out.push('\n');
        out.push_str(&table.render());
    }
    out.push('\n');
    out.push_str(&verdict(output.equal, output.at, style));
    out.push('\n');
    out
}

fn verdict(equal: bool, at: Lsn, style: Style) -> String {
    match equal {
        true => style.paint(GREEN, &format!("equal at {at}")),
        false => style.paint(RED, &format!("NOT EQUAL at {at}")),
    }
}

/// A value of any length must not wrap the table; JSON has it whole.
fn shorten(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{
        BoundaryStatus, SlotStatus, TableStatus, VerifySample, VerifyTable,
    };
    use super::*;

    #[test]
    fn a_status_fits_a_screen() {
        let output = StatusOutput {
            pipeline: "shop".into(),
            generation: 1,
            phase: "snapshot".into(),
            run: "r1".into(),
            failure: None,
            base: Some(Lsn::new(0x0151_94F8)),
            boundary: Some(BoundaryStatus {
                number: 2,
                base: Lsn::new(0x0151_94F8),
                snapshot: "00000004-00000012-1".into(),
                made_at: "2025-01-01T00:00:00Z".into(),
                age_seconds: Some(75),
            }),
            fence: Some(Lsn::new(0x1_0000_0000)),
            tables: vec![TableStatus {
                table: "public.orders".into(),
                phase: "live".into(),
                why: None,
                version: Some(7),
                base: Some(Lsn::new(0x0151_94F8)),
                applied: Some(Lsn::new(0x1_0000_0000)),
                rows_copied: 1_234_567,
                bytes_copied: 5 << 20,
                chunks_copied: 3,
                chunks: Some(12),
                rows_estimated: None,
                storage: None,
            }],
            pins: Vec::new(),
            slot: Some(SlotStatus {
                name: "shop".into(),
                active: false,
                confirmed: Some(Lsn::new(0x1_0000_0000)),
                retained_bytes: 3 << 20,
                wal_status: Some("reserved".into()),
                safe_bytes: Some(-5),
                limit_bytes: Some(3 << 20),
                margin_bytes: Some(0),
            }),
            spool: None,
        };
        assert_eq!(
            status(&output, Style::plain()),
            "pipeline shop  generation 1  snapshot\n\
             base 0/15194F8  fence 1/0\n\
             run r1  snapshot 2 00000004-00000012-1 at 0/15194F8  held for 1m15s\n\
             slot shop  not in use  confirmed 1/0  WAL retained 3.0 MiB  reserved  lost after 0 B more\n\
             \n\
             table          phase  version  base       applied  chunks     copied  estimated    bytes\n\
             public.orders  live         7  0/15194F8  1/0        3/12  1,234,567          -  5.0 MiB\n"
        );
        assert!(status(&output, Style { colour: true }).contains("\x1b[32mlive\x1b[0m"));
    }

    #[test]
    fn a_difference_is_shown_with_both_values() {
        let output = VerifyOutput {
            equal: false,
            at: Lsn::new(16),
            tables: vec![VerifyTable {
                table: "a.b".into(),
                equal: false,
                source_rows: 2,
                lake_rows: 2,
                missing: 0,
                extra: 0,
                different: 1,
                samples: vec![VerifySample {
                    key: "(1)".into(),
                    kind: DifferenceKind::Different,
                    column: Some("note".into()),
                    source: Some("x".repeat(100)),
                    lake: None,
                }],
            }],
        };
        let text = verify(&output, Style::plain());
        assert!(text.contains("a.b    (1)  different  note"), "{text}");
        assert!(text.contains("xxx…  NULL"), "{text}");
        assert!(text.ends_with("NOT EQUAL at 0/10\n"), "{text}");
    }

    #[test]
    fn a_foreign_version_has_dashes_for_what_it_does_not_say() {
        let version = VersionOutput {
            version: 3,
            kind: VersionKind::Foreign,
            generation: None,
            base: None,
            applied: None,
            source_time: None,
            committed_at: Some("2025-01-01T00:00:00Z".into()),
            inserted: None,
            deleted: Some(1000),
            pins: Vec::new(),
        };
        let text = versions(&[version], Style::plain());
        assert!(text.contains("3  foreign    -  -     -        -            2025-01-01T00:00:00Z         -    1,000"), "{text}");
    }
}
