//! Streams and events (CUDA Driver API, "Stream Management", "Event Management"; CUDA C++ Programming Guide, "Default Stream").

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use super::abi::Handle;
use super::host::Among;
use super::order::{Clock, Use, UseConflict, When};
use super::state::{Driver, Event, Record, Role, Stream};
use crate::fault::{Code, Fault, Result};

/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;
/// `CU_STREAM_NON_BLOCKING`
pub const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;
/// What the null stream means: the legacy default stream, or the thread's own (`…_ptds` and `…_ptsz` functions).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Null {
    Legacy,
    PerThread,
}

/// Priorities as current cards report them: 0 is the lowest.
pub const LOWEST_PRIORITY: i32 = 0;
pub const HIGHEST_PRIORITY: i32 = -5;

impl Driver {
    pub fn new_stream(
        &mut self,
        context: Handle,
        role: Role,
        label: Arc<str>,
        flags: u32,
        priority: i32,
    ) -> Result<Stream> {
        let owner = self.contexts.get(context)?.owner;
        let actor = self.order.new_actor();
        Ok(Stream { context, owner, actor, label, flags, priority, role, fault: None })
    }

    pub fn stream_create(&mut self, flags: u32, priority: i32) -> Result<Handle> {
        if flags > NON_BLOCKING {
            return Err(Fault::new(Code::InvalidValue, format!("stream flags {flags:#x}: expected 0 or 1")));
        }
        let context = self.current()?;
        let label = format!("stream {}", self.streams.next_serial()).into();
        let role = if flags == NON_BLOCKING { Role::NonBlocking } else { Role::Blocking };
        let priority = priority.clamp(HIGHEST_PRIORITY, LOWEST_PRIORITY);
        let stream = self.new_stream(context, role, label, flags, priority)?;
        Ok(self.streams.insert(stream))
    }

    /// The stream that a handle means; the null stream and the two special ones belong to the current context.
    pub fn stream(&mut self, handle: Handle, null: Null) -> Result<Handle> {
        let handle = match (handle, null) {
            (0, Null::Legacy) => LEGACY,
            (0, Null::PerThread) => PER_THREAD,
            _ => handle,
        };
        if handle != LEGACY && handle != PER_THREAD {
            self.streams.get(handle)?;
            return Ok(handle);
        }
        let context = self.current()?;
        if handle == LEGACY {
            return Ok(self.contexts.get(context)?.legacy);
        }
        let thread = super::this_thread();
        if let Some(&stream) = self.contexts.get(context)?.per_thread.get(&thread) {
            return Ok(stream);
        }
        let stream = self.new_stream(context, Role::Blocking, "the per-thread default stream".into(), 0, 0)?;
        let stream = self.streams.insert_implicit(stream);
        self.contexts.get_mut(context)?.per_thread.insert(thread, stream);
        Ok(stream)
    }

    /// A stream of the current context, to submit work to.
    pub fn stream_for_work(&mut self, handle: Handle, null: Null) -> Result<Handle> {
        let stream = self.stream(handle, null)?;
        let (found, current) = (self.streams.get(stream)?.context, self.current()?);
        if found != current {
            let label = &self.streams.get(stream)?.label;
            return Err(Fault::new(
                Code::InvalidContext,
                format!("{label} belongs to another context than the current one"),
            ));
        }
        Ok(stream)
    }

    /// The streams whose work the default-stream rules order before the next operation of a stream.
    fn implied(&self, stream: Handle) -> Result<Vec<Handle>> {
        let this = self.streams.get(stream)?;
        Ok(match this.role {
            Role::NonBlocking => Vec::new(),
            Role::Blocking => vec![self.contexts.get(this.context)?.legacy],
            Role::Legacy => self.streams.select(|s| s.context == this.context && s.role == Role::Blocking),
        })
    }

    /// Starts an operation of a stream.
    pub fn begin(&mut self, stream: Handle) -> Result<When> {
        let others = self.implied(stream)?.into_iter().map(|other| Ok(self.streams.get(other)?.actor));
        let others = others.collect::<Result<Vec<_>>>()?;
        Ok(self.order.begin(self.streams.get(stream)?.actor, &others))
    }

    /// "cuMemcpyDtoH on stream 2"
    pub fn label(&self, call: &str, stream: Handle) -> Result<Arc<str>> {
        Ok(format!("{call} on {}", self.streams.get(stream)?.label).into())
    }

    /// Records what an operation uses; the first unordered use is a finding.
    pub fn record_uses(&mut self, when: When, uses: &[Use], what: &Arc<str>) -> Result<()> {
        let mut fault = None;
        for used in uses {
            if let Some(conflict) = self.order.access(when, *used, what) {
                fault.get_or_insert_with(|| self.unordered(&conflict, used, what));
            }
        }
        fault.map_or(Ok(()), Err)
    }

    fn unordered(&self, conflict: &UseConflict, used: &Use, what: &str) -> Fault {
        let start = conflict.block.0;
        let memory = match (self.host.holding(start), self.device.allocation(start)) {
            (Some(block), _) => format!("the {} bytes of {} at {start:#x}", block.len(), block.kind.name()),
            (None, Ok((start, bytes))) => format!("the {bytes}-byte allocation at {start:#x}"),
            (None, Err(_)) => format!("the allocation at {start:#x}"),
        };
        let message = format!(
            "missing synchronisation: {} {} bytes {}..{} of {memory}, and {what} {} them without waiting for it",
            conflict.earlier,
            past(&conflict.earlier, conflict.earlier_written),
            conflict.begin - start,
            conflict.end - start,
            present(what, used.written),
        );
        Fault::new(Code::IllegalState, message)
    }

    /// All that a wait for some streams waits for.
    pub fn clock_of(&self, streams: &[Handle]) -> Result<Clock> {
        let mut clock = Clock::default();
        for &stream in streams {
            for stream in self.implied(stream)?.into_iter().filter(|_| self.is_legacy(stream)).chain([stream]) {
                clock.join(self.order.clock(self.streams.get(stream)?.actor));
            }
        }
        Ok(clock)
    }

    fn is_legacy(&self, stream: Handle) -> bool {
        self.streams.get(stream).is_ok_and(|stream| stream.role == Role::Legacy)
    }

    /// The host waits for all that a clock covers: data arrives in pinned memory, and sources of copies may change again.
    pub fn wait(&mut self, clock: &Clock) -> Result<()> {
        self.order.wait(clock);
        self.trim_pools();
        let order = &self.order;
        let changed = self.host.check_sources(|when| order.host_waited_for(when));
        self.host.deliver(Among::All, |when| order.host_waited_for(when));
        self.report.write_sometimes();
        changed.map_or(Ok(()), Err)
    }

    /// The host waits for streams, and gets the errors of their launches once more.
    pub fn wait_for_streams(&mut self, streams: &[Handle]) -> Result<()> {
        let clock = self.clock_of(streams)?;
        let waited = self.wait(&clock);
        let fault = self.take_fault(streams)?;
        waited?;
        match fault {
            Some(fault) => {
                self.repeated = true;
                Err(fault)
            }
            None => Ok(()),
        }
    }

    fn take_fault(&mut self, streams: &[Handle]) -> Result<Option<Fault>> {
        let mut first = None;
        for &stream in streams {
            let others = if self.is_legacy(stream) { self.implied(stream)? } else { Vec::new() };
            for stream in others.into_iter().chain([stream]) {
                first = first.or(self.streams.get_mut(stream)?.fault.take());
            }
        }
        Ok(first)
    }

    pub fn stream_destroy(&mut self, handle: Handle) -> Result<()> {
        if handle <= PER_THREAD {
            return Err(Fault::new(Code::InvalidHandle, "a default stream can't be destroyed"));
        }
        let stream = self.streams.get(handle)?;
        let context = self.contexts.get(stream.context)?;
        if context.legacy == handle || context.per_thread.values().any(|&other| other == handle) {
            return Err(Fault::new(Code::InvalidHandle, "a default stream can't be destroyed"));
        }
        self.fold_in(handle)
    }

    /// A stream goes, its work goes on: the default stream and the context still wait for it.
    fn fold_in(&mut self, handle: Handle) -> Result<()> {
        let stream = self.streams.remove(handle)?;
        let legacy = self.contexts.get(stream.context)?.legacy;
        let clock = self.order.publish(stream.actor);
        if stream.role == Role::Blocking {
            let actor = self.streams.get(legacy)?.actor;
            self.order.join(actor, &clock);
        }
        self.contexts.get_mut(stream.context)?.gone.join(&clock);
        if stream.fault.is_some() {
            self.streams.get_mut(legacy)?.fault = stream.fault;
        }
        self.order.retire(stream.actor);
        Ok(())
    }

    /// The per-thread streams of threads that ended go.
    pub fn threads_ended(&mut self, threads: &[ThreadId]) -> Result<()> {
        for context in self.contexts.select(|_| true) {
            for thread in threads {
                if let Some(stream) = self.contexts.get_mut(context)?.per_thread.remove(thread) {
                    self.fold_in(stream)?;
                }
            }
        }
        Ok(())
    }

    pub fn stream_wait_event(&mut self, stream: Handle, event: Handle) -> Result<()> {
        let actor = self.streams.get(stream)?.actor;
        if let Some(record) = &self.events.get(event)?.record {
            self.order.join(actor, &record.clock);
        }
        Ok(())
    }

    pub fn event_create(&mut self, flags: u32) -> Result<Handle> {
        if flags > 7 {
            return Err(Fault::new(Code::InvalidValue, format!("event flags {flags:#x} are not known")));
        }
        let context = self.current()?;
        Ok(self.events.insert(Event { context, flags, record: None }))
    }

    pub fn event_record(&mut self, event: Handle, stream: Handle) -> Result<()> {
        let (context, label) = (self.streams.get(stream)?.context, Arc::clone(&self.streams.get(stream)?.label));
        if self.events.get(event)?.context != context {
            let message = format!("the event and {label} belong to different contexts");
            return Err(Fault::new(Code::InvalidHandle, message));
        }
        let when = self.begin(stream)?;
        let clock = self.order.publish(when.actor);
        self.events.get_mut(event)?.record = Some(Record { clock, at: Instant::now(), stream });
        Ok(())
    }

    pub fn event_synchronize(&mut self, event: Handle) -> Result<()> {
        let Some(record) = &self.events.get(event)?.record else { return Ok(()) };
        let (clock, stream) = (record.clock.clone(), record.stream);
        self.wait(&clock)?;
        if !self.streams.contains(stream) {
            return Ok(());
        }
        let fault = self.take_fault(&[stream])?;
        self.repeated = fault.is_some();
        fault.map_or(Ok(()), Err)
    }

    /// Milliseconds between two records: the emulator's own time, which says nothing about a card's.
    pub fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let at = |handle: Handle, which: &str| {
            let event = self.events.get(handle)?;
            if event.flags & DISABLE_TIMING != 0 {
                let message = format!("the {which} event was created without timing (CU_EVENT_DISABLE_TIMING)");
                return Err(Fault::new(Code::InvalidHandle, message));
            }
            let record = event.record.as_ref();
            let record = record
                .ok_or_else(|| Fault::new(Code::InvalidHandle, format!("the {which} event was never recorded")))?;
            if !record.clock.within(self.order.clock(super::order::HOST)) {
                let message = format!("the {which} event was not waited for: call cuEventSynchronize first");
                return Err(Fault::new(Code::NotReady, message));
            }
            Ok(record.at)
        };
        let (start, end) = (at(start, "start")?, at(end, "end")?);
        let (sign, span) = if end >= start { (1.0, end - start) } else { (-1.0, start - end) };
        Ok(sign * (span.as_secs_f64() * 1e3) as f32)
    }
}

fn past(what: &str, written: bool) -> &'static str {
    match (what.starts_with("cuMemAlloc"), written) {
        (true, _) => "allocated",
        (false, true) => "wrote",
        (false, false) => "read",
    }
}

fn present(what: &str, written: bool) -> &'static str {
    match (what.starts_with("cuMemFree"), written) {
        (true, _) => "frees",
        (false, true) => "writes",
        (false, false) => "reads",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{report::ReportFile, this_thread};
    use super::*;
    use crate::card::Card;
    use crate::device::Options;

    #[test]
    fn the_stream_of_a_thread_that_ended_is_folded_into_the_default_stream() {
        let card = Card::named("rtx4090").unwrap();
        let report = ReportFile::from_environment(card.clone());
        let mut driver = Driver::new(card, Options::default(), report);
        let context = driver.context_create(0).unwrap();
        let stream = driver.stream(0, Null::PerThread).unwrap();
        let when = driver.begin(stream).unwrap();
        driver.streams.get_mut(stream).unwrap().fault = Some(Fault::new(Code::LaunchFailed, "x"));
        driver.threads_ended(&[this_thread()]).unwrap();
        assert!(!driver.streams.contains(stream));
        let legacy = driver.stream(0, Null::Legacy).unwrap();
        let actor = driver.streams.get(legacy).unwrap().actor;
        assert!(driver.order.clock(actor).covers(when));
        assert_eq!(driver.context_synchronize(context).unwrap_err().message, "x");
        assert!(driver.order.host_waited_for(when));
        // The thread may go on, as far as the driver knows.
        assert_ne!(driver.stream(0, Null::PerThread).unwrap(), stream);
        driver.context_destroy(context).unwrap();
    }
}
