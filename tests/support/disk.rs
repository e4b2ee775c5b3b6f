//! What a power cut leaves on a disk: replays a record of steps (`TIDEGATE_DISK_RECORD`) up to any
//! of them, and loses of what was not synced what a disk may lose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One step on the disk.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub path: PathBuf,
    from: Option<PathBuf>,
    offset: u64,
    bytes: Vec<u8>,
}

/// What becomes of what was not synced.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// All of it is gone: names and content.
    Everything,
    /// The names are there, the content is not.
    Content,
    /// The names are there, and half of the content.
    HalfOfContent,
    /// Of each folder some of the new names, of each file some of the content, as the seed says.
    Some(u64),
}

type File = usize;

/// A disk: what programs see, and what is durable.
#[derive(Clone, Default)]
pub struct Disk {
    /// Content as programs see it, and as far as it is durable.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    names: Names,
    durable: Names,
    /// Per folder: names that came or went since it was synced.
    pending: BTreeMap<PathBuf, Vec<(PathBuf, Option<Entry>)>>,
}

type Names = BTreeMap<PathBuf, Entry>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File(File),
}

/// Reads a record.
pub fn read(record: &Path) -> Vec<Step> {
    let all = std::fs::read(record).unwrap();
    let mut rest = all.as_slice();
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|b| *b == b'\n').unwrap();
        let head: Value = serde_json::from_slice(&rest[..end]).unwrap();
        let length = head["bytes"].as_u64().unwrap_or(0) as usize;
        steps.push(Step {
            name: head["step"].as_str().unwrap().to_owned(),
            path: PathBuf::from(head["path"].as_str().unwrap()),
            from: head["from"].as_str().map(PathBuf::from),
            offset: head["offset"].as_u64().unwrap_or(0),
            bytes: rest[end + 1..end + 1 + length].to_vec(),
        });
        rest = &rest[end + 1 + length..];
    }
    steps
}

impl Disk {
    /// Does a step.
    pub fn take(&mut self, step: &Step) {
        let path = &step.path;
        match step.name.as_str() {
            "disk-folder" => self.name(path, Some(Entry::Folder)),
            "disk-create" => {
                self.files.push(Default::default());
                self.name(path, Some(Entry::File(self.files.len() - 1)));
            }
            "disk-write" => {
                let file = self.file(path).unwrap();
                let content = &mut self.files[file].0;
                let end = step.offset as usize + step.bytes.len();
                content.resize(content.len().max(end), 0);
                content[step.offset as usize..end].copy_from_slice(&step.bytes);
            }
            "disk-sync" => {
                // A file from before the record was durable already.
                if let Some(file) = self.file(path) {
                    self.files[file].1 = self.files[file].0.clone();
                }
            }
            "disk-sync-folder" => {
                for (name, entry) in self.pending.remove(path).unwrap_or_default() {
                    set(&mut self.durable, &name, entry);
                }
            }
            "disk-link" => {
                let entry = self.names[step.from.as_ref().unwrap()];
                self.name(path, Some(entry));
            }
            "disk-rename" => {
                let from = step.from.clone().unwrap();
                let entry = self.names[&from];
                self.name(path, Some(entry));
                self.name(&from, None);
            }
            "disk-remove" => self.name(path, None),
            other => panic!("unknown step {other}"),
        }
    }

    fn name(&mut self, path: &Path, entry: Option<Entry>) {
        set(&mut self.names, path, entry);
        let folder = path.parent().unwrap().to_owned();
        self.pending.entry(folder).or_default().push((path.to_owned(), entry));
    }

    fn file(&self, path: &Path) -> Option<File> {
        match self.names.get(path) {
            Some(Entry::File(file)) => Some(*file),
            _ => None,
        }
    }

    /// What is left of the folder `of`: its files by their paths below it.
    pub fn cut(&self, loss: Loss, of: &Path) -> Left {
        let mut random = match loss {
            Loss::Some(seed) => seed,
            _ => 0,
        };
        let mut next = |below: usize| {
            random = xxhash_rust::xxh3::xxh3_64_with_seed(b"next", random);
            (random % below.max(1) as u64) as usize
        };
        let mut names = self.durable.clone();
        for pending in self.pending.values() {
            let kept = match loss {
                Loss::Everything => 0,
                Loss::Content | Loss::HalfOfContent => pending.len(),
                Loss::Some(_) => next(pending.len() + 1),
            };
            for (name, entry) in &pending[..kept] {
                set(&mut names, name, *entry);
            }
        }
        let mut left = Left::new();
        for (path, entry) in &names {
            let (Ok(inside), Entry::File(file)) = (path.strip_prefix(of), entry) else { continue };
            // A folder whose own name is lost takes all in it along. The lake itself was there
            // before the record.
            let folders = path.ancestors().skip(1).take_while(|folder| *folder != of);
            if folders.into_iter().any(|folder| names.get(folder) != Some(&Entry::Folder)) {
                continue;
            }
            let (content, synced) = &self.files[*file];
            let unsynced = content.len().saturating_sub(synced.len());
            let kept = match loss {
                _ if content == synced => content.len(),
                Loss::Everything | Loss::Content => synced.len(),
                Loss::HalfOfContent => synced.len() + unsynced / 2,
                Loss::Some(_) => synced.len() + next(unsynced + 1),
            };
            let inside = inside.to_str().unwrap().to_owned();
            left.insert(inside, content[..kept].to_vec());
        }
        left
    }
}

/// Files by their paths.
pub type Left = BTreeMap<String, Vec<u8>>;

/// Lays files out on a real disk.
pub fn lay_out(left: &Left, to: &Path) {
    for (path, content) in left {
        let place = to.join(path);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, content).unwrap();
    }
}

fn set(names: &mut Names, path: &Path, entry: Option<Entry>) {
    match entry {
        Some(entry) => names.insert(path.to_owned(), entry),
        None => names.remove(path),
    };
}
