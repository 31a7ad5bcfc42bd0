//! What C callers pass: pointers wrapped in types that check for null before they read or write.
//!
//! Only C constructs these types (their fields are private), so the promise behind every one is the driver interface's
//! own: a pointer that is not null refers to memory of the documented size. Nothing can prove that promise, but host memory
//! whose size the caller gives is probed through the kernel first, so a stray pointer is an error and not a crash.

use std::ffi::{CStr, c_char, c_void};

use crate::fault::{Code, Fault, Result};

/// `CUdeviceptr`.
pub type DevicePtr = u64;
/// Any opaque handle: `CUcontext`, `CUstream`, …; never dereferenced.
pub type Handle = usize;

fn null(what: &str) -> Fault {
    Fault::new(Code::InvalidValue, format!("{what} is a null pointer"))
}

/// Where a result goes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// For calls that have an effect, before it.
    pub fn check(self, what: &str) -> Result<()> {
        if self.0.is_null() { Err(null(what)) } else { Ok(()) }
    }

    pub fn put(self, what: &str, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(null(what));
        }
        // SAFETY: not null, and the caller of the C function promises room for one T there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// For results that a caller may decline.
    pub fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and the caller of the C function promises room for one T there.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes several values in a row.
    pub fn put_all(self, what: &str, values: impl IntoIterator<Item = T>) -> Result<()> {
        if self.0.is_null() {
            return Err(null(what));
        }
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: not null, and the caller promises room for as many T as the count it passed, to which `values` is cut.
            unsafe { self.0.add(i).write_unaligned(value) };
        }
        Ok(())
    }
}

/// Where an argument comes from.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub fn null() -> In<T> {
        In(std::ptr::null())
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn get(self, what: &str) -> Result<T> {
        self.at(0, what)
    }

    /// Element `i` of an array.
    pub fn at(self, i: usize, what: &str) -> Result<T> {
        if self.0.is_null() {
            return Err(null(what));
        }
        let address = (self.0 as usize).wrapping_add(i * size_of::<T>());
        probe(address, size_of::<T>()).map_err(|e| bad_pointer(what, &e))?;
        // SAFETY: readable, as the probe found; the caller promises that a T lies there, and every T used here is made
        // of integers and pointers, for which all bits are valid.
        Ok(unsafe { (address as *const T).read_unaligned() })
    }
}

/// A NUL-terminated string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn get(self, what: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(HostIn(self.0 as *const c_void).c_string(what)?).into_owned())
    }
}

/// Host memory that is read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct HostIn(*const c_void);

impl HostIn {
    pub fn address(self) -> usize {
        self.0 as usize
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn plus(self, bytes: usize) -> HostIn {
        HostIn(self.0.wrapping_byte_add(bytes))
    }

    /// The bytes for the length of the call.
    pub fn bytes<'a>(self, bytes: usize, what: &str) -> Result<&'a [u8]> {
        check_range(self.address(), bytes, what)?;
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: not null, inside the address space, and readable at both ends; the caller promises the rest and that
        // nothing writes there during the call. Every user drops the slice before its C function returns.
        Ok(unsafe { std::slice::from_raw_parts(self.0 as *const u8, bytes) })
    }

    /// The bytes up to a NUL.
    pub fn c_string<'a>(self, what: &str) -> Result<&'a [u8]> {
        check_range(self.address(), 1, what)?;
        // SAFETY: not null and readable at the start; the caller promises that a NUL ends the text.
        Ok(unsafe { CStr::from_ptr(self.0 as *const c_char) }.to_bytes())
    }
}

/// Host memory that is written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct HostOut(*mut c_void);

impl HostOut {
    pub fn address(self) -> usize {
        self.0 as usize
    }

    pub fn plus(self, bytes: usize) -> HostOut {
        HostOut(self.0.wrapping_byte_add(bytes))
    }

    /// The bytes for the length of the call.
    pub fn bytes<'a>(self, bytes: usize, what: &str) -> Result<&'a mut [u8]> {
        check_range(self.address(), bytes, what)?;
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: not null, inside the address space, and mapped at both ends; the caller promises that the rest is
        // writable and that nothing else uses it during the call. Every user drops the slice before its C function returns.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, bytes) })
    }

    pub fn raw(self) -> *mut u8 {
        self.0 as *mut u8
    }
}

/// A host address as an integer, where the interface passes one (`cuMemcpy`).
pub fn host_in(address: u64) -> HostIn {
    HostIn(address as usize as *const c_void)
}

/// A host address as an integer, where the interface passes one (`cuMemcpy`).
pub fn host_out(address: u64) -> HostOut {
    HostOut(address as usize as *mut c_void)
}

fn check_range(address: usize, bytes: usize, what: &str) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if address == 0 {
        return Err(null(what));
    }
    if bytes > isize::MAX as usize || address.checked_add(bytes).is_none() {
        return Err(Fault::new(
            Code::InvalidValue,
            format!("{what}: {bytes} bytes do not fit the host's address space"),
        ));
    }
    let ends = probe(address, 1).and_then(|()| probe(address + bytes - 1, 1));
    ends.map_err(|e| bad_pointer(what, &e))
}

fn bad_pointer(what: &str, why: &str) -> Fault {
    Fault::new(Code::InvalidValue, format!("{what}: {why}"))
}

#[repr(C)]
struct IoVec {
    base: *mut c_void,
    bytes: usize,
}

unsafe extern "C" {
    fn getpid() -> i32;
    fn process_vm_readv(
        pid: i32,
        local: *const IoVec,
        local_count: usize,
        remote: *const IoVec,
        remote_count: usize,
        flags: usize,
    ) -> isize;
    fn atexit(function: extern "C" fn()) -> i32;
}

/// Whether up to 64 bytes of this process can be read, asked of the kernel, which answers where a load would crash.
/// Where the call itself is forbidden, everything counts as readable.
fn probe(address: usize, bytes: usize) -> std::result::Result<(), String> {
    const EFAULT: i32 = 14;
    let mut buffer = [0u8; 64];
    let bytes = bytes.min(buffer.len());
    let local = IoVec { base: buffer.as_mut_ptr().cast(), bytes };
    let remote = IoVec { base: address as *mut c_void, bytes };
    // SAFETY: `local` describes the live buffer; `remote` is only looked at by the kernel, which checks it.
    let read = unsafe { process_vm_readv(getpid(), &local, 1, &remote, 1, 0) };
    let failed = read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(EFAULT);
    if failed || (read >= 0 && read as usize != bytes) {
        return Err(format!("{address:#x} is not memory of this process"));
    }
    Ok(())
}

/// Has a function called when the process ends or unloads this library.
pub fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function lives as long as this library, and libc calls it before unloading the library.
    unsafe { atexit(function) };
}

/// A host function that the caller wants called: `CUhostFn`, `CUstreamCallback`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct HostFn(Option<unsafe extern "C" fn(*mut c_void)>);

impl HostFn {
    pub fn check(self) -> Result<()> {
        self.0.map(|_| ()).ok_or_else(|| null("the host function"))
    }

    pub fn run(self, user_data: HostOut) {
        if let Some(function) = self.0 {
            // SAFETY: the caller passed the function together with the data it is made for.
            unsafe { function(user_data.0) };
        }
    }
}

#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct StreamCallback(Option<unsafe extern "C" fn(Handle, u32, *mut c_void)>);

impl StreamCallback {
    pub fn check(self) -> Result<()> {
        self.0.map(|_| ()).ok_or_else(|| null("the callback"))
    }

    pub fn run(self, stream: Handle, status: u32, user_data: HostOut) {
        if let Some(function) = self.0 {
            // SAFETY: the caller passed the function together with the data it is made for.
            unsafe { function(stream, status, user_data.0) };
        }
    }
}

/// `CUoccupancyB2DSize`: dynamic shared memory for a block size; null where it is constant.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct SharedOfBlock(Option<unsafe extern "C" fn(i32) -> usize>);

impl SharedOfBlock {
    pub fn of(self, block: u32) -> Option<usize> {
        // SAFETY: the caller passed the function for this purpose; it takes any block size.
        self.0.map(|function| unsafe { function(block as i32) })
    }
}

/// What `cuLaunchKernel` gets its arguments from.
#[derive(Clone, Copy)]
pub struct KernelArguments {
    pub pointers: In<HostIn>,
    pub extra: In<HostIn>,
}

#[cfg(test)]
pub mod testing {
    //! Tests stand in for C callers.
    use super::*;

    pub fn out<T>(to: &mut T) -> Out<T> {
        Out(to)
    }

    pub fn input<T>(from: &[T]) -> In<T> {
        In(from.as_ptr())
    }

    pub fn host_in(from: &[u8]) -> HostIn {
        HostIn(from.as_ptr().cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_pointers_are_named() {
        let out: Out<u32> = Out(std::ptr::null_mut());
        assert_eq!(out.put("pdev", 1).unwrap_err().message, "pdev is a null pointer");
        assert_eq!(out.check("pdev").unwrap_err().message, "pdev is a null pointer");
        out.put_if_wanted(1);
        assert!(In::<u32>(std::ptr::null()).get("x").is_err());
        assert!(Text(std::ptr::null()).get("name").is_err());
    }

    #[test]
    fn stray_pointers_are_errors() {
        let stray = host_in(0x1000);
        assert!(stray.bytes(8, "source").unwrap_err().message.contains("0x1000 is not memory of this process"));
        assert!(host_out(16).bytes(8, "destination").is_err());
        assert!(host_in(u64::MAX - 3).bytes(8, "source").is_err());
        let bytes = [1u8, 2, 3];
        assert_eq!(testing::host_in(&bytes).bytes(3, "source").unwrap(), bytes);
        assert!(stray.bytes(0, "source").unwrap().is_empty());
    }

    #[test]
    fn values_pass_through() {
        let mut to = 0u32;
        testing::out(&mut to).put("x", 7).unwrap();
        assert_eq!(to, 7);
        assert_eq!(testing::input(&[1u64, 2, 3]).at(2, "x").unwrap(), 3);
    }
}
