//! Opaque handles: numbers that are never dereferenced and never used twice, so a stale or foreign one is recognised.
//!
//! A handle is a mark, the kind and a serial number. A number that was given out but is no longer in its table was destroyed.

use std::collections::BTreeMap;

use super::abi::Handle;
use crate::fault::{Code, Fault, Result};

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    Pool,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::Context, "context"),
    (Kind::Stream, "stream"),
    (Kind::Event, "event"),
    (Kind::Module, "module"),
    (Kind::Function, "function"),
    (Kind::Library, "library"),
    (Kind::Kernel, "kernel"),
    (Kind::Pool, "memory pool"),
];

impl Kind {
    pub fn name(self) -> &'static str {
        KINDS[self as usize - 1].1
    }
}

/// The high bits of every handle: no address of user space has them.
const MARK: usize = 0x0e5;
const MARK_AT: u32 = 52;
const KIND_AT: u32 = 44;
const SERIAL_AT: u32 = 4;
/// The first serial number of implicit objects.
const IMPLICIT: u64 = 1 << 36;

fn encode(kind: Kind, serial: u64) -> Handle {
    MARK << MARK_AT | (kind as usize) << KIND_AT | (serial as usize) << SERIAL_AT
}

fn decode(handle: Handle) -> Option<(Kind, u64)> {
    if handle >> MARK_AT != MARK || handle & ((1 << SERIAL_AT) - 1) != 0 {
        return None;
    }
    let kind = KINDS.iter().find(|kind| kind.0 as usize == handle >> KIND_AT & 0xff)?.0;
    Some((kind, (handle >> SERIAL_AT & ((1 << (KIND_AT - SERIAL_AT)) - 1)) as u64))
}

/// The objects of one kind.
pub struct Table<T> {
    kind: Kind,
    next: u64,
    /// Serial numbers of objects that the program did not create.
    next_implicit: u64,
    live: BTreeMap<Handle, T>,
}

impl<T> Table<T> {
    pub fn new(kind: Kind) -> Table<T> {
        Table { kind, next: 1, next_implicit: IMPLICIT, live: BTreeMap::new() }
    }

    pub fn insert(&mut self, value: T) -> Handle {
        let handle = encode(self.kind, self.next);
        self.next += 1;
        self.live.insert(handle, value);
        handle
    }

    /// For objects that exist without the program's doing: they take no number of those that people count.
    pub fn insert_implicit(&mut self, value: T) -> Handle {
        let handle = encode(self.kind, self.next_implicit);
        self.next_implicit += 1;
        self.live.insert(handle, value);
        handle
    }

    /// The serial number that the next object gets: names for people count from 1.
    pub fn next_serial(&self) -> u64 {
        self.next
    }

    pub fn get(&self, handle: Handle) -> Result<&T> {
        self.live.get(&handle).ok_or_else(|| self.unknown(handle))
    }

    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut T> {
        if !self.contains(handle) {
            return Err(self.unknown(handle));
        }
        Ok(self.live.get_mut(&handle).expect("just found"))
    }

    pub fn remove(&mut self, handle: Handle) -> Result<T> {
        self.live.remove(&handle).ok_or_else(|| self.unknown(handle))
    }

    pub fn contains(&self, handle: Handle) -> bool {
        self.live.contains_key(&handle)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.live.iter().map(|(&handle, value)| (handle, value))
    }

    /// The handles whose objects fulfil a condition.
    pub fn select(&self, wanted: impl Fn(&T) -> bool) -> Vec<Handle> {
        self.iter().filter(|entry| wanted(entry.1)).map(|entry| entry.0).collect()
    }

    fn unknown(&self, handle: Handle) -> Fault {
        let code = if self.kind == Kind::Context { Code::InvalidContext } else { Code::InvalidHandle };
        let kind = self.kind.name();
        let article = if self.kind == Kind::Event { "an" } else { "a" };
        let message = match decode(handle) {
            _ if handle == 0 => format!("expected {article} {kind}, found a null handle"),
            Some((found, serial)) if found == self.kind && serial < self.next => {
                format!("{kind} {serial} was already destroyed")
            }
            Some((found, serial)) if found != self.kind => {
                format!("expected {article} {kind}, found the handle of {} {serial}", found.name())
            }
            _ => format!("{handle:#x} is not the handle of {article} {kind}"),
        };
        Fault::new(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_foreign_and_garbage_handles_are_told_apart() {
        let mut events = Table::new(Kind::Event);
        let mut streams = Table::new(Kind::Stream);
        let (a, b) = (events.insert("a"), events.insert("b"));
        let s = streams.insert(());
        assert_eq!(events.get(a), Ok(&"a"));
        assert_eq!(events.remove(a), Ok("a"));
        let message = |r: Result<&&str>| r.unwrap_err().message;
        assert_eq!(message(events.get(a)), "event 1 was already destroyed");
        assert_eq!(message(events.get(s)), "expected an event, found the handle of stream 1");
        assert_eq!(message(events.get(0)), "expected an event, found a null handle");
        assert_eq!(message(events.get(0xdead)), "0xdead is not the handle of an event");
        assert_eq!(message(events.get(b + 1)), format!("{:#x} is not the handle of an event", b + 1));
        assert_eq!(events.get(a).unwrap_err().code, Code::InvalidHandle);
        assert_ne!(events.insert("c"), a);
    }

    #[test]
    fn contexts_have_their_own_code() {
        let contexts: Table<()> = Table::new(Kind::Context);
        assert_eq!(contexts.get(0).unwrap_err().code, Code::InvalidContext);
    }
}
