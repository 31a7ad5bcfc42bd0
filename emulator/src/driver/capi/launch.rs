//! Launches and occupancy (CUDA Driver API, "Execution Control", "Occupancy").

use std::sync::Arc;

use super::c_api;
use crate::driver::abi::{Handle, HostIn, In, KernelArguments, Out, SharedOfBlock};
use crate::driver::launch::{ExecutionConfiguration, LaunchConfig};
use crate::driver::state::Driver;
use crate::driver::stream::Null;
use crate::driver::{call, host_function, occupancy};
use crate::fault::{Code, Fault, Result};

fn active_blocks(d: &mut Driver, function: Handle, threads: i32, dynamic_shared: usize) -> Result<i32> {
    let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0);
    let threads = threads.ok_or_else(|| Fault::new(Code::InvalidValue, "a block needs at least one thread"))?;
    let function = d.function(function)?;
    let program = &d.functions.get(function)?.program;
    Ok(occupancy::blocks_per_multiprocessor(&d.device.card, program, threads, dynamic_shared as u64) as i32)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    shared_of: SharedOfBlock,
    constant: usize,
    limit: i32,
) -> u32 {
    let mut found = None;
    let code = call("cuOccupancyMaxPotentialBlockSize", |d| {
        grid.check("minGridSize")?;
        block.check("blockSize")?;
        let limit = u32::try_from(limit)
            .map_err(|_| Fault::new(Code::InvalidValue, format!("block size limit {limit}: expected 0 or more")))?;
        let function = d.function(function)?;
        found = Some((d.device.card.clone(), Arc::clone(&d.functions.get(function)?.program), limit));
        Ok(())
    });
    // Outside the lock: the program's function may wait for a thread that calls the driver.
    if let Some((card, program, limit)) = found {
        host_function(|| {
            let shared = |block| shared_of.of(block).unwrap_or(constant) as u64;
            let (size, blocks) = occupancy::best_block(&card, &program, limit, shared);
            grid.put_if_wanted(blocks as i32);
            block.put_if_wanted(size as i32);
        });
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<i32>,
    block: Out<i32>,
    function: Handle,
    shared_of: SharedOfBlock,
    constant: usize,
    limit: i32,
    _flags: u32,
) -> u32 {
    cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, constant, limit)
}

c_api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: Handle, threads: i32, shared: usize) |d| {
        let found = active_blocks(d, function, threads, shared)?;
        blocks.put("numBlocks", found)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: Handle, threads: i32, shared: usize, _flags: u32,
    ) |d| {
        let found = active_blocks(d, function, threads, shared)?;
        blocks.put("numBlocks", found)
    }
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: i32, threads: i32) |d| {
        if blocks < 1 || threads < 1 {
            return Err(Fault::new(Code::InvalidValue, format!("{blocks} blocks of {threads} threads: expected at least 1")));
        }
        let function = d.function(function)?;
        let program = &d.functions.get(function)?.program;
        let found = occupancy::available_dynamic_shared(&d.device.card, program, blocks as u32);
        bytes.put("dynamicSmemSize", found as usize)
    }
    twin cuLaunchKernel, cuLaunchKernel_ptsz(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, dynamic_shared: u32, stream: Handle,
        pointers: In<HostIn>, extra: In<HostIn>,
    ) |d, null| {
        let stream = d.stream_for_work(stream, null)?;
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        let shape = ExecutionConfiguration { grid, block, dynamic_shared, stream, cooperative: false };
        d.launch(function, shape, KernelArguments { pointers, extra })
    }
    twin cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, dynamic_shared: u32, stream: Handle,
        pointers: In<HostIn>,
    ) |d, null| {
        let stream = d.stream_for_work(stream, null)?;
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        let shape = ExecutionConfiguration { grid, block, dynamic_shared, stream, cooperative: true };
        d.launch(function, shape, KernelArguments { pointers, extra: In::null() })
    }
    twin cuLaunchKernelEx, cuLaunchKernelEx_ptsz(
        config: In<LaunchConfig>, function: Handle, pointers: In<HostIn>, extra: In<HostIn>,
    ) |d, null| {
        let config = config.get("config")?;
        let stream = d.stream_for_work(config.stream, null)?;
        let shape = ExecutionConfiguration {
            grid: config.grid,
            block: config.block,
            dynamic_shared: config.dynamic_shared,
            stream,
            cooperative: config.cooperative()?,
        };
        d.launch(function, shape, KernelArguments { pointers, extra })
    }
}
