//! Streams and events (CUDA Driver API, "Stream Management", "Event Management").

use super::c_api;
use crate::driver::abi::{Handle, HostFn, HostOut, Out, StreamCallback};
use crate::driver::host_function;
use crate::driver::stream::Null;
use crate::driver::{call, state::Driver};
use crate::fault::{Code, Fault, Result};

fn no_capture() -> Result<()> {
    Err(Fault::new(Code::NotSupported, "stream capture is not emulated: launch the kernels directly"))
}

/// Runs a host function at its point of a stream, outside the lock: the function may wait for a thread that calls the
/// driver. It runs although a source of a copy was found changed: its program may wait for it.
fn at_point(
    name: &'static str,
    stream: Handle,
    null: Null,
    check: impl FnOnce() -> Result<()>,
    run: impl FnOnce(),
) -> u32 {
    let mut reached = false;
    let code = call(name, |d: &mut Driver| {
        check()?;
        let stream = d.stream_for_work(stream, null)?;
        let when = d.begin(stream)?;
        reached = true;
        d.reached(when).map_or(Ok(()), Err)
    });
    if reached {
        host_function(run);
    }
    code
}

fn launch_host_function(stream: Handle, null: Null, function: HostFn, data: HostOut) -> u32 {
    at_point("cuLaunchHostFunc", stream, null, || function.check(), || function.run(data))
}

fn add_callback(stream: Handle, null: Null, callback: StreamCallback, data: HostOut) -> u32 {
    at_point("cuStreamAddCallback", stream, null, || callback.check(), || callback.run(stream, 0, data))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(stream: Handle, function: HostFn, data: HostOut) -> u32 {
    launch_host_function(stream, Null::Legacy, function, data)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc_ptsz(stream: Handle, function: HostFn, data: HostOut) -> u32 {
    launch_host_function(stream, Null::PerThread, function, data)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamAddCallback(stream: Handle, callback: StreamCallback, data: HostOut, _flags: u32) -> u32 {
    add_callback(stream, Null::Legacy, callback, data)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamAddCallback_ptsz(
    stream: Handle,
    callback: StreamCallback,
    data: HostOut,
    _flags: u32,
) -> u32 {
    add_callback(stream, Null::PerThread, callback, data)
}

c_api! {
    fn cuStreamCreate(to: Out<Handle>, flags: u32) |d| {
        to.check("phStream")?;
        let stream = d.stream_create(flags, 0)?;
        to.put("phStream", stream)
    }
    fn cuStreamCreateWithPriority(to: Out<Handle>, flags: u32, priority: i32) |d| {
        to.check("phStream")?;
        let stream = d.stream_create(flags, priority)?;
        to.put("phStream", stream)
    }
    fn cuStreamDestroy_v2(stream: Handle) |d| { d.stream_destroy(stream) }
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: u32) |d| {
        d.stream(stream, Null::Legacy)?;
        no_capture()
    }
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle, _mode: u32) |d| {
        d.stream(stream, Null::PerThread)?;
        no_capture()
    }
    fn cuThreadExchangeStreamCaptureMode(_mode: Out<u32>) |_d| { Ok(()) }
    fn cuEventCreate(to: Out<Handle>, flags: u32) |d| {
        to.check("phEvent")?;
        let event = d.event_create(flags)?;
        to.put("phEvent", event)
    }
    fn cuEventDestroy_v2(event: Handle) |d| { d.events.remove(event).map(|_| ()) }
    fn cuEventSynchronize(event: Handle) |d| { d.event_synchronize(event) }
    // All work is done when it is submitted, so a query always finds it done: it counts as a wait.
    fn cuEventQuery(event: Handle) |d| { d.event_synchronize(event) }
    fn cuEventElapsedTime(to: Out<f32>, start: Handle, end: Handle) |d| {
        to.put("pMilliseconds", d.event_elapsed(start, end)?)
    }
    fn cuEventElapsedTime_v2(to: Out<f32>, start: Handle, end: Handle) |d| {
        to.put("pMilliseconds", d.event_elapsed(start, end)?)
    }
    twin cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: Handle, graph: Out<Handle>) |d, null| {
        d.stream(stream, null)?;
        graph.put_if_wanted(0);
        no_capture()
    }
    twin cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: Handle) |d, null| {
        let stream = d.stream(stream, null)?;
        d.wait_for_streams(&[stream])
    }
    twin cuStreamQuery, cuStreamQuery_ptsz(stream: Handle) |d, null| {
        let stream = d.stream(stream, null)?;
        d.wait_for_streams(&[stream])
    }
    twin cuStreamWaitEvent, cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, _flags: u32) |d, null| {
        let stream = d.stream(stream, null)?;
        d.stream_wait_event(stream, event)
    }
    twin cuStreamGetPriority, cuStreamGetPriority_ptsz(stream: Handle, priority: Out<i32>) |d, null| {
        let stream = d.stream(stream, null)?;
        priority.put("priority", d.streams.get(stream)?.priority)
    }
    twin cuStreamGetFlags, cuStreamGetFlags_ptsz(stream: Handle, flags: Out<u32>) |d, null| {
        let stream = d.stream(stream, null)?;
        flags.put("flags", d.streams.get(stream)?.flags)
    }
    twin cuStreamGetId, cuStreamGetId_ptsz(stream: Handle, id: Out<u64>) |d, null| {
        let stream = d.stream(stream, null)?;
        id.put("streamId", stream as u64)
    }
    twin cuStreamGetDevice, cuStreamGetDevice_ptsz(stream: Handle, device: Out<i32>) |d, null| {
        d.stream(stream, null)?;
        device.put("device", 0)
    }
    twin cuStreamGetCtx, cuStreamGetCtx_ptsz(stream: Handle, context: Out<Handle>) |d, null| {
        let stream = d.stream(stream, null)?;
        context.put("pctx", d.streams.get(stream)?.context)
    }
    twin cuStreamIsCapturing, cuStreamIsCapturing_ptsz(stream: Handle, status: Out<u32>) |d, null| {
        d.stream(stream, null)?;
        status.put("captureStatus", 0)
    }
    twin cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz(stream: Handle, address: u64, _bytes: usize, _flags: u32) |d, null| {
        d.stream_for_work(stream, null)?;
        d.device.allocation(address).map(|_| ())
    }
    twin cuEventRecord, cuEventRecord_ptsz(event: Handle, stream: Handle) |d, null| {
        let stream = d.stream(stream, null)?;
        d.event_record(event, stream)
    }
    twin cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, _flags: u32) |d, null| {
        let stream = d.stream(stream, null)?;
        d.event_record(event, stream)
    }
}
