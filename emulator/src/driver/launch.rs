//! Launching kernels (CUDA Driver API, "Execution Control").

use std::sync::Arc;

use super::abi::{Handle, In, KernelArguments};
use super::host::Among;
use super::rows::block_use;
use super::state::Driver;
use crate::device::{Launch, LaunchOutcome};
use crate::fault::{Code, Fault, Result};
use crate::memory::room;
use crate::program::Program;

/// `CU_LAUNCH_PARAM_…`: what an entry of `extra` is.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// Where and how wide.
#[derive(Clone, Copy)]
pub struct ExecutionConfiguration {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub stream: Handle,
    pub cooperative: bool,
}

impl Driver {
    pub fn launch(
        &mut self,
        function: Handle,
        shape: ExecutionConfiguration,
        arguments: KernelArguments,
    ) -> Result<()> {
        let handle = self.function(function)?;
        let function = self.functions.get(handle)?;
        let program = Arc::clone(&function.program);
        let limit = function.dynamic_shared_limit;
        let stream = self.streams.get(shape.stream)?;
        if function.context != stream.context {
            let message = format!("kernel {} and {} belong to different contexts", program.name, stream.label);
            return Err(Fault::new(Code::InvalidHandle, message));
        }
        let owner = stream.owner;
        let params = pack(&program, arguments)?;
        let launch = Launch {
            kernel: &program,
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared,
            dynamic_shared_limit: limit,
            params: &params,
            cooperative: shape.cooperative,
        };
        self.device.check_limits(&launch)?;
        self.map_arguments(&params)?;
        let result = self.run(&launch, shape.stream, owner);
        if let Err(fault) = &result {
            self.streams.get_mut(shape.stream)?.fault = Some(fault.clone());
        }
        result
    }

    fn run(&mut self, launch: &Launch, stream: Handle, owner: u32) -> Result<()> {
        let when = self.begin(stream)?;
        self.deliver_before(when, Among::Mapped);
        self.mirror_all_to_device(owner)?;
        let what = self.label(&format!("kernel {}", launch.kernel.name), stream)?;
        let outcome = self.device.launch(launch)?;
        self.report.launch(launch, &outcome);
        self.mirror_outcome(&outcome, owner)?;
        let uses: Vec<_> = outcome
            .touched
            .iter()
            .map(|touched| block_use(touched.allocation, touched.begin, touched.end - touched.begin, touched.written))
            .collect();
        self.record_uses(when, &uses, &what)
    }

    fn mirror_outcome(&mut self, outcome: &LaunchOutcome, owner: u32) -> Result<()> {
        for touched in outcome.touched.iter().filter(|touched| touched.written) {
            self.mirror_to_host(owner, touched.begin, touched.end - touched.begin)?;
        }
        Ok(())
    }

    /// Pinned and registered memory is usable by its host address: what an argument may point to is mapped.
    fn map_arguments(&mut self, params: &[u8]) -> Result<()> {
        for word in params.chunks_exact(8) {
            let address = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            if self.host.holding(address).is_some_and(|block| !block.mapped) {
                self.map(address)?;
            }
        }
        Ok(())
    }
}

/// The parameter buffer of a launch.
fn pack(program: &Program, arguments: KernelArguments) -> Result<Vec<u8>> {
    let refuse = |message: String| Err(Fault::new(Code::InvalidValue, format!("kernel {}: {message}", program.name)));
    match (arguments.pointers.is_null(), arguments.extra.is_null()) {
        (false, false) => refuse("both kernelParams and extra are given".to_string()),
        (true, true) if program.params.is_empty() => Ok(Vec::new()),
        (true, true) => refuse(format!("found no arguments, expected {}", signature(program))),
        (false, true) => from_pointers(program, arguments),
        (true, false) => from_buffer(program, arguments),
    }
}

fn from_pointers(program: &Program, arguments: KernelArguments) -> Result<Vec<u8>> {
    let mut buffer = room::zeroed(program.param_bytes as usize)?;
    for (i, slot) in program.params.iter().enumerate() {
        let what = format!("argument {i} ({}) of {}", slot.name, signature(program));
        let bytes =
            arguments.pointers.at(i, "kernelParams").and_then(|pointer| pointer.bytes(slot.bytes as usize, &what));
        let bytes = bytes.map_err(|fault| {
            let message = format!("kernel {}: {}; are fewer arguments given?", program.name, fault.message);
            Fault::new(Code::InvalidValue, message)
        })?;
        buffer[slot.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    Ok(buffer)
}

fn from_buffer(program: &Program, arguments: KernelArguments) -> Result<Vec<u8>> {
    let refuse = |message: String| Err(Fault::new(Code::InvalidValue, format!("kernel {}: {message}", program.name)));
    let (mut pointer, mut size) = (None, None);
    for i in (0..).step_by(2) {
        let key = arguments.extra.at(i, "extra")?.address();
        if key == END {
            break;
        }
        let value = arguments.extra.at(i + 1, "extra")?;
        match key {
            BUFFER_POINTER => pointer = Some(value),
            BUFFER_SIZE => {
                let bytes = value.bytes(size_of::<usize>(), "the size of the argument buffer")?;
                size = Some(usize::from_le_bytes(bytes.try_into().expect("8 bytes")));
            }
            _ => return refuse(format!("extra holds {key:#x}: expected 0, 1 or 2")),
        }
    }
    let (Some(pointer), Some(size)) = (pointer, size) else {
        return refuse("extra lacks the buffer's pointer or its size".to_string());
    };
    // A C struct ends padded to its alignment; the parameters do not.
    let padded = (program.param_bytes as usize).next_multiple_of(align(program));
    if size != program.param_bytes as usize && size != padded {
        return refuse(format!(
            "found an argument buffer of {size} bytes, expected {} for {}",
            program.param_bytes,
            signature(program)
        ));
    }
    room::copied(&pointer.bytes(size, "the argument buffer")?[..program.param_bytes as usize])
}

fn align(program: &Program) -> usize {
    program.params.iter().map(|slot| slot.align.max(1) as usize).max().unwrap_or(1)
}

/// "3 arguments of 4, 4 and 8 bytes"
fn signature(program: &Program) -> String {
    let sizes: Vec<_> = program.params.iter().map(|slot| slot.bytes.to_string()).collect();
    match sizes.as_slice() {
        [] => "no arguments".to_string(),
        [one] => format!("1 argument of {one} bytes"),
        [first @ .., last] => format!("{} arguments of {} and {last} bytes", sizes.len(), first.join(", ")),
    }
}

/// `cuLaunchKernelEx`: an attribute of the launch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub stream: Handle,
    attributes: In<LaunchAttribute>,
    attribute_count: u32,
}

impl LaunchConfig {
    /// Whether the launch is cooperative. Attributes that change nothing here are passed over; clusters are refused.
    pub fn cooperative(&self) -> Result<bool> {
        const IGNORE: u32 = 0;
        const ACCESS_POLICY: u32 = 1;
        const COOPERATIVE: u32 = 2;
        const CLUSTER: u32 = 4;
        const PRIORITY: u32 = 8;
        let mut cooperative = false;
        for i in 0..self.attribute_count as usize {
            let attribute = self.attributes.at(i, "the launch attributes")?;
            match attribute.id {
                IGNORE | ACCESS_POLICY | PRIORITY => {}
                COOPERATIVE => cooperative = attribute.value[0] != 0,
                CLUSTER if attribute.value[..3] == [1, 1, 1] => {}
                id => {
                    return Err(Fault::new(Code::NotSupported, format!("launch attribute {id} is not emulated")));
                }
            }
        }
        Ok(cooperative)
    }
}

#[cfg(test)]
mod tests {
    use super::super::abi::{HostIn, host_in, testing};
    use super::*;
    use crate::program::ParamSlot;

    fn program(slots: &[(u32, u32)]) -> Program {
        let mut program = Program { name: "k".to_string(), ..Program::default() };
        for (i, &(bytes, align)) in slots.iter().enumerate() {
            let offset = program.param_bytes.next_multiple_of(align);
            program.params.push(ParamSlot { name: format!("p{i}"), offset, bytes, align });
            program.param_bytes = offset + bytes;
        }
        program
    }

    fn pointers(program: &Program, values: &[HostIn]) -> Result<Vec<u8>> {
        pack(program, KernelArguments { pointers: testing::input(values), extra: In::null() })
    }

    fn buffer(program: &Program, bytes: &[u8]) -> Result<Vec<u8>> {
        let size = bytes.len().to_le_bytes();
        let extra = [host_in(1), testing::host_in(bytes), host_in(2), testing::host_in(&size), host_in(0)];
        pack(program, KernelArguments { pointers: In::null(), extra: testing::input(&extra) })
    }

    #[test]
    fn pointers_are_packed_at_their_offsets() {
        let program = program(&[(4, 4), (8, 8), (1, 1)]);
        let (a, b, c) = ([1u8, 2, 3, 4], [5u8; 8], [6u8]);
        let packed = pointers(&program, &[testing::host_in(&a), testing::host_in(&b), testing::host_in(&c)]).unwrap();
        assert_eq!(packed, [1, 2, 3, 4, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 6]);
    }

    #[test]
    fn a_missing_argument_is_named() {
        let program = program(&[(4, 4), (8, 8)]);
        let fault = pointers(&program, &[testing::host_in(&[0; 4]), host_in(0)]).unwrap_err();
        assert_eq!(fault.code, Code::InvalidValue);
        assert_eq!(
            fault.message,
            "kernel k: argument 1 (p1) of 2 arguments of 4 and 8 bytes is a null pointer; are fewer arguments given?"
        );
        let fault = pointers(&program, &[host_in(0x10), host_in(0)]).unwrap_err();
        assert!(fault.message.contains("argument 0 (p0)"), "{fault}");
        let none = KernelArguments { pointers: In::null(), extra: In::null() };
        assert!(pack(&program, none).unwrap_err().message.contains("found no arguments, expected 2"));
        assert!(pack(&Program::default(), none).unwrap().is_empty());
    }

    #[test]
    fn a_buffer_of_the_wrong_size_names_both_sizes() {
        let program = program(&[(8, 8), (4, 4)]);
        assert_eq!(buffer(&program, &[7; 12]).unwrap(), [7; 12]);
        assert_eq!(buffer(&program, &[7; 16]).unwrap(), [7; 12], "padded as a struct is");
        let fault = buffer(&program, &[7; 8]).unwrap_err();
        assert_eq!(
            fault.message,
            "kernel k: found an argument buffer of 8 bytes, expected 12 for 2 arguments of 8 and 4 bytes"
        );
    }
}
