//! Contexts: the primary one, created ones, and the thread's stack of current ones
//! (CUDA Driver API, "Context Management", "Primary Context Management").

use std::collections::HashMap;

use super::CONTEXTS;
use super::abi::Handle;
use super::host::HostKind;
use super::order::{Clock, MemoryBlock};
use super::report::leak_text;
use super::state::{Context, Driver, Role};
use crate::device::Leak;
use crate::fault::{Code, Fault, Result};

/// The handle of the thread's current context, 0 where there is none.
pub fn top() -> Handle {
    CONTEXTS.try_with(|stack| stack.borrow().last().copied()).ok().flatten().unwrap_or(0)
}

pub fn push(context: Handle) {
    let _ = CONTEXTS.try_with(|stack| stack.borrow_mut().push(context));
}

pub fn pop() -> Option<Handle> {
    CONTEXTS.try_with(|stack| stack.borrow_mut().pop()).ok().flatten()
}

/// `cuCtxSetCurrent`: replaces the top of the stack; 0 removes it.
pub fn set_top(context: Handle) {
    pop();
    if context != 0 {
        push(context);
    }
}

impl Driver {
    /// The calling thread's context.
    pub fn current(&self) -> Result<Handle> {
        let context = top();
        if context == 0 {
            return Err(Fault::new(
                Code::InvalidContext,
                "no context is current on this thread: call cuCtxSetCurrent or cuCtxCreate first",
            ));
        }
        if !self.contexts.contains(context) {
            return Err(Fault::new(Code::ContextIsDestroyed, "this thread's current context was destroyed"));
        }
        Ok(context)
    }

    /// The number under which the calling thread's context owns memory.
    pub fn owner(&self) -> Result<u32> {
        Ok(self.contexts.get(self.current()?)?.owner)
    }

    fn new_context(&mut self, primary: bool, flags: u32) -> Result<Handle> {
        let owner = self.contexts.next_serial() as u32;
        let context = self.contexts.insert(Context {
            owner,
            primary,
            flags,
            cache_config: 0,
            limits: HashMap::new(),
            legacy: 0,
            per_thread: HashMap::new(),
            gone: Clock::default(),
        });
        let legacy = self.new_stream(context, Role::Legacy, "the default stream".into(), 0, 0)?;
        self.contexts.get_mut(context)?.legacy = self.streams.insert_implicit(legacy);
        Ok(context)
    }

    pub fn context_create(&mut self, flags: u32) -> Result<Handle> {
        let context = self.new_context(false, flags)?;
        push(context);
        Ok(context)
    }

    pub fn context_destroy(&mut self, context: Handle) -> Result<()> {
        if self.contexts.get(context)?.primary {
            return Err(Fault::new(
                Code::InvalidContext,
                "cuCtxDestroy of the primary context: cuDevicePrimaryCtxRelease is its counterpart",
            ));
        }
        self.close(context)
    }

    pub fn primary_retain(&mut self) -> Result<Handle> {
        let context = match self.primary.context {
            Some(context) => context,
            None => self.new_context(true, self.primary.flags)?,
        };
        self.primary.context = Some(context);
        self.primary.retained += 1;
        Ok(context)
    }

    pub fn primary_release(&mut self) -> Result<()> {
        let Some(context) = self.primary.context else {
            return Err(Fault::new(Code::InvalidContext, "the primary context is released more often than retained"));
        };
        self.primary.retained -= 1;
        if self.primary.retained > 0 {
            return Ok(());
        }
        self.primary.context = None;
        self.close(context)
    }

    /// `cuDevicePrimaryCtxReset`: destroys it however often it is retained.
    pub fn primary_reset(&mut self) -> Result<()> {
        self.primary.retained = 0;
        self.primary.context.take().map_or(Ok(()), |context| self.close(context))
    }

    pub fn context_synchronize(&mut self, context: Handle) -> Result<()> {
        self.wait_for_context(context)?;
        self.wait_for_streams(&self.streams.select(|stream| stream.context == context))
    }

    /// Waits for all work of a context; errors of launches are left for a call that is there to wait.
    pub fn wait_for_context(&mut self, context: Handle) -> Result<()> {
        let mut clock = self.contexts.get(context)?.gone.clone();
        clock.join(&self.clock_of(&self.streams.select(|stream| stream.context == context))?);
        self.wait(&clock)
    }

    /// Ends a context: its work is waited for, its objects go, and what it still holds is a leak.
    fn close(&mut self, context: Handle) -> Result<()> {
        let waited = self.context_synchronize(context);
        let owner = self.contexts.get(context)?.owner;
        for module in self.modules.select(|module| module.context == context) {
            self.module_unload(module)?;
        }
        for stream in self.streams.select(|stream| stream.context == context) {
            let stream = self.streams.remove(stream)?;
            self.order.retire(stream.actor);
        }
        for event in self.events.select(|event| event.context == context) {
            self.events.remove(event)?;
        }
        let leaks = self.leaks(owner)?;
        self.contexts.remove(context)?;
        if top() == context {
            pop();
        }
        for leak in &leaks {
            self.report.leak(leak);
            super::tell(&leak_text(leak));
        }
        self.report.write();
        waited?;
        if leaks.is_empty() {
            return Ok(());
        }
        let bytes: u64 = leaks.iter().map(|leak| leak.bytes).sum();
        let message = format!(
            "the context is released with {} allocation{} ({bytes} bytes) never freed: {}{}",
            leaks.len(),
            if leaks.len() == 1 { "" } else { "s" },
            leaks.iter().take(4).map(|leak| leak.label.as_str()).collect::<Vec<_>>().join(", "),
            if leaks.len() > 4 { ", …" } else { "" },
        );
        Err(Fault::new(Code::IllegalState, message))
    }

    /// What a context still holds, on the device and on the host; it is freed.
    fn leaks(&mut self, owner: u32) -> Result<Vec<Leak>> {
        let blocks: Vec<_> =
            self.host.blocks().filter(|block| block.owner == owner).map(|block| block.start()).collect();
        let mut leaks = Vec::new();
        for start in blocks {
            let kinds = [HostKind::Pinned, HostKind::Registered, HostKind::Managed];
            let (block, _) = self.host.remove(start, &kinds)?;
            if block.mapped {
                self.device.free(owner, start)?;
            }
            self.order.forget(MemoryBlock(start));
            // Registered memory is the program's own; nothing of it is lost.
            if block.kind != HostKind::Registered {
                leaks.push(Leak { address: start, bytes: block.len(), label: block.kind.name().to_string() });
            }
            self.host.keep_freed(block);
        }
        self.give_back_all_to_pools(owner);
        leaks.extend(self.device.release(owner));
        Ok(leaks)
    }
}
