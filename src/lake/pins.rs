//! Pins: named cuts of all tables that no clean-up touches. They are events in the ledger.
//!
//! A pin and a clean-up may meet. Both write to the ledger first and look at it afterwards, so
//! that the ledger's order decides: a clean-up says what it gives up, and spares what was pinned by
//! then; a pin of what was given up by then is taken back with an error.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ledger::{Event, Ledger};
use super::retention::Kept;
use crate::error::{Error, Result};
use crate::position::Lsn;

/// Kind of the event that pins a cut.
pub const PIN_EVENT: &str = "pin";
/// Kind of the event that lets a cut go.
pub const UNPIN_EVENT: &str = "unpin";
/// Kind of the event by which a clean-up says what it gives up.
pub const CLEAN_EVENT: &str = "clean";

/// A named cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Its name.
    pub name: String,
    /// The position all tables show.
    pub lsn: Lsn,
    /// When it was pinned, RFC 3339.
    pub at: String,
    /// The version of each table, by the table's folder.
    pub tables: BTreeMap<String, u64>,
}

/// Versions of one table that a clean-up left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// All from this one on.
    pub oldest: u64,
    /// Older ones.
    pub alone: BTreeSet<u64>,
}

/// Pins, and what clean-ups left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// By name.
    pub pins: BTreeMap<String, Pin>,
    /// By the table's folder: what each clean-up so far left.
    left: BTreeMap<String, Vec<Left>>,
}

impl Pins {
    /// As the ledger has them.
    ///
    /// # Errors
    /// The ledger can't be read.
    pub async fn read(ledger: &Ledger) -> Result<Pins> {
        Pins::of(&ledger.read_events(None, None).await?)
    }

    /// Of the events of a ledger, oldest first.
    ///
    /// # Errors
    /// One is not as it should be.
    pub fn of(events: &[Event]) -> Result<Pins> {
        let mut found = Pins::default();
        for event in events {
            let wrong = |e: serde_json::Error| {
                Error::failed(format!("the ledger's record of {:?} can't be read", event.kind))
                    .because(e)
                    .next("use the version of tidegate that wrote it, or a newer one")
            };
            match event.kind.as_str() {
                PIN_EVENT => {
                    let pin: Pin = serde_json::from_value(event.detail.clone()).map_err(wrong)?;
                    found.pins.insert(pin.name.clone(), pin);
                }
                UNPIN_EVENT => {
                    let name = event.detail.get("name").and_then(|name| name.as_str());
                    found.pins.remove(name.unwrap_or_default());
                }
                CLEAN_EVENT => {
                    let left: BTreeMap<String, Left> =
                        serde_json::from_value(event.detail.clone()).map_err(wrong)?;
                    for (folder, left) in left {
                        found.left.entry(folder).or_default().push(left);
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Versions of a table that are pinned.
    pub fn of_table(&self, folder: &str) -> BTreeSet<u64> {
        self.pins.values().filter_map(|pin| pin.tables.get(folder)).copied().collect()
    }

    /// Names of the pins of a version.
    pub fn names(&self, folder: &str, version: u64) -> Vec<String> {
        let of = |pin: &&Pin| pin.tables.get(folder) == Some(&version);
        self.pins.values().filter(of).map(|pin| pin.name.clone()).collect()
    }

    /// Tables of a cut whose version a clean-up gave up.
    pub fn given_up(&self, tables: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
        let lost = |(folder, version): &(&String, &u64)| {
            let left = self.left.get(*folder).into_iter().flatten();
            left.into_iter().any(|l| **version < l.oldest && !l.alone.contains(version))
        };
        tables.iter().filter(lost).map(|(folder, version)| (folder.clone(), *version)).collect()
    }
}

impl From<&Kept> for Left {
    fn from(kept: &Kept) -> Left {
        Left { oldest: kept.oldest, alone: kept.alone.clone() }
    }
}

/// The event by which a clean-up says what it leaves of each table.
///
/// # Errors
/// Never for what is built here.
pub fn clean_event(left: &BTreeMap<String, Left>) -> Result<Event> {
    Ok(Event::now("", CLEAN_EVENT, "", detail(left)?))
}

/// Pins a cut, durably and only if none of it was given up.
///
/// # Errors
/// The name is taken or no name; a version was given up; the ledger can't be written.
pub async fn pin(ledger: &mut Ledger, pin: &Pin) -> Result<()> {
    check_name(&pin.name)?;
    let before = Pins::read(ledger).await?;
    if let Some(other) = before.pins.get(&pin.name) {
        return Err(Error::config(format!(
            "there is a pin {:?} at {} already",
            pin.name, other.lsn
        ))
        .next(format!("choose another name, or `tidegate unpin {}` first", pin.name)));
    }
    refuse(&before, pin)?;
    ledger.append_events(&[Event::now("", PIN_EVENT, "", detail(pin)?)]).await?;
    ledger.refresh().await?;
    if let Err(error) = refuse(&Pins::read(ledger).await?, pin) {
        unpin(ledger, &pin.name).await?;
        return Err(error);
    }
    Ok(())
}

fn refuse(pins: &Pins, pin: &Pin) -> Result<()> {
    match pins.given_up(&pin.tables).first() {
        None => Ok(()),
        Some((folder, version)) => Err(Error::failed(format!(
            "version {version} of {folder} is older than the retention, and is being removed"
        ))
        .next("pin a newer position; `tidegate versions` lists what is there")),
    }
}

/// Lets a cut go: the next clean-up removes what nothing else keeps.
///
/// # Errors
/// There is no such pin; the ledger can't be written.
pub async fn unpin(ledger: &mut Ledger, name: &str) -> Result<()> {
    let pins = Pins::read(ledger).await?;
    if !pins.pins.contains_key(name) {
        let names: Vec<&str> = pins.pins.keys().map(String::as_str).collect();
        let known = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
        return Err(Error::config(format!("there is no pin {name:?}"))
            .next(format!("choose one of the pins: {known}")));
    }
    ledger.append_events(&[Event::now("", UNPIN_EVENT, "", json!({ "name": name }))]).await
}

fn detail(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::failed("a record of the ledger can't be written").because(e))
}

fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_alphanumeric() || "-_.:@+".contains(c);
    if (1..=100).contains(&name.len()) && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::config(format!("{name:?} can't name a pin"))
        .next("use letters, digits and - _ . : @ +, at most 100 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(name: &str, version: u64) -> Pin {
        Pin {
            name: name.into(),
            lsn: Lsn::new(16),
            at: "2025-01-01T00:00:00Z".into(),
            tables: BTreeMap::from([("public/t".to_owned(), version)]),
        }
    }

    fn event(kind: &str, detail: serde_json::Value) -> Event {
        Event::now("", kind, "", detail)
    }

    #[test]
    fn pins_come_and_go_in_the_order_of_the_ledger() {
        let pinned = |pin: &Pin| event(PIN_EVENT, detail(pin).unwrap());
        let events = [
            pinned(&cut("a", 3)),
            pinned(&cut("b", 5)),
            event(UNPIN_EVENT, json!({"name": "a"})),
            pinned(&cut("a", 7)),
            event(UNPIN_EVENT, json!({"name": "b"})),
        ];
        let pins = Pins::of(&events).unwrap();
        assert_eq!(pins.of_table("public/t"), BTreeSet::from([7]));
        assert_eq!(pins.names("public/t", 7), ["a"]);
        assert!(Pins::of(&[event(PIN_EVENT, json!({"x": 1}))]).is_err());
    }

    #[test]
    fn what_a_clean_up_gave_up_can_not_be_pinned() {
        let left = |oldest, alone: &[u64]| {
            let left = Left { oldest, alone: alone.iter().copied().collect() };
            clean_event(&BTreeMap::from([("public/t".to_owned(), left)])).unwrap()
        };
        let pins = Pins::of(&[left(10, &[2, 4]), left(20, &[2])]).unwrap();
        for (version, lost) in [(2, false), (4, true), (5, true), (19, true), (20, false)] {
            assert_eq!(!pins.given_up(&cut("x", version).tables).is_empty(), lost, "{version}");
        }
        assert!(pins.given_up(&BTreeMap::from([("public/u".to_owned(), 0)])).is_empty());
    }

    #[test]
    fn names_are_plain() {
        assert!(check_name("friday-18:00").is_ok() && check_name("größe").is_ok());
        for name in ["", "a b", "a/b", &"x".repeat(101)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
