//! The OpenMetrics text of the figures (OpenMetrics 1.0, section "Text Format").

use std::fmt::Write;

use super::Metrics;
use super::catalog::{FAMILIES, Family, Kind};
use super::histogram::Counted;

/// What `/metrics` answers with.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All figures, at this moment.
pub fn render(metrics: &Metrics) -> String {
    let mut out = String::with_capacity(16 << 10);
    for family in FAMILIES {
        let mut samples = Samples { family, out: String::new(), pipeline: &metrics.pipeline };
        (family.read)(metrics, &mut samples);
        if samples.out.is_empty() {
            continue;
        }
        // Writing to a String can't fail.
        let _ = writeln!(out, "# TYPE {} {}", family.name, family.kind.word());
        if !family.unit.is_empty() {
            let _ = writeln!(out, "# UNIT {} {}", family.name, family.unit);
        }
        let _ = writeln!(out, "# HELP {} {}", family.name, family.help);
        out.push_str(&samples.out);
    }
    out.push_str("# EOF\n");
    out
}

/// The samples of one family.
pub struct Samples<'a> {
    family: &'static Family,
    out: String,
    pipeline: &'a str,
}

impl Samples<'_> {
    /// The only one.
    pub fn one(&mut self, value: impl Number) {
        self.with(&[], value);
    }

    /// The only one, where it is known.
    pub fn maybe(&mut self, value: Option<impl Number>) {
        if let Some(value) = value {
            self.one(value);
        }
    }

    /// One of several.
    pub fn with(&mut self, labels: &[(&str, &str)], value: impl Number) {
        let suffix = match self.family.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram | Kind::StateSet => "",
        };
        self.line(suffix, labels, &value.text());
    }

    /// A histogram.
    pub fn histogram(&mut self, counted: &Counted) {
        for (bound, count) in &counted.buckets {
            self.line("_bucket", &[("le", &bound.text())], &count.text());
        }
        self.line("_bucket", &[("le", "+Inf")], &counted.count.text());
        self.line("_count", &[], &counted.count.text());
        self.line("_sum", &[], &counted.sum.text());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: &str) {
        let _ = write!(self.out, "{}{suffix}{{pipeline=\"{}\"", self.family.name, self.pipeline);
        for (name, label) in labels {
            let _ = write!(self.out, ",{name}=\"{}\"", escaped(label));
        }
        let _ = writeln!(self.out, "}} {value}");
    }
}

/// A label's value may be any text, between quotes.
fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// What can be the value of a sample.
pub trait Number {
    /// As OpenMetrics writes it.
    fn text(&self) -> String;
}

impl Number for u64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Number for bool {
    fn text(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Number for f64 {
    fn text(&self) -> String {
        match self {
            value if value.is_finite() => format!("{value:?}"),
            _ => "NaN".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SourceLook, TableFigures};
    use super::*;

    #[test]
    fn a_name_of_any_kind_stays_inside_its_label() {
        let metrics = Metrics::new("p");
        metrics
            .set_table("public.a\"b\\c\nd<script>", TableFigures { rows: 3, ..Default::default() });
        let text = render(&metrics);
        let line =
            "tidegate_table_rows{pipeline=\"p\",table=\"public.a\\\"b\\\\c\\nd<script>\"} 3\n";
        assert!(text.contains(line), "{text}");
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn what_is_not_known_is_left_out_and_not_zero() {
        let metrics = Metrics::new("p");
        metrics.set_source(Some(SourceLook { slot: true, retained: 7, ..SourceLook::default() }));
        let text = render(&metrics);
        assert!(text.contains("tidegate_wal_retained_bytes{pipeline=\"p\"} 7\n"), "{text}");
        for absent in
            ["tidegate_wal_margin_bytes", "tidegate_lag_seconds", "tidegate_verified_equal"]
        {
            assert!(!text.contains(absent), "{absent}");
        }
    }

    #[test]
    fn every_family_is_as_openmetrics_wants_it() {
        let mut names = std::collections::BTreeSet::new();
        for family in FAMILIES {
            assert!(names.insert(family.name), "{} stands twice", family.name);
            assert!(family.name.starts_with("tidegate_"), "{}", family.name);
            let suffix = format!("_{}", family.unit);
            assert!(family.unit.is_empty() || family.name.ends_with(&suffix), "{}", family.name);
            for reserved in ["_total", "_count", "_sum", "_bucket", "_info", "_created"] {
                assert!(!family.name.ends_with(reserved), "{}", family.name);
            }
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '"', '\\']));
        }
    }
}
