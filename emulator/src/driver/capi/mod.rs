//! The C functions, under the names that `cuda.h` of CUDA 13 and older programs look for.
//!
//! Two macros do what no function can: define C symbols, and list them for `cuGetProcAddress`.

#![allow(non_snake_case)] // the names are the interface's

mod context;
mod device;
mod launch;
mod memory;
mod module;
mod stream;
mod symbols;
mod unsupported;

/// Defines C functions that run under the driver's lock, and `SYMBOLS`, the list of them.
/// `twin` makes two: one for which the null stream is the legacy default stream, one for the thread's own.
macro_rules! c_api {
    (@one $name:ident ($($arg:ident: $ty:ty),*) |$driver:ident| $body:block) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::driver::call($crate::driver::capi::public_name(stringify!($name)), |$driver| $body)
        }
    };
    ($(fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) |$driver:ident| $body:block)*
     $(twin $twin:ident, $other:ident ($($targ:ident: $tty:ty),* $(,)?) |$tdriver:ident, $null:ident| $tbody:block)*) => {
        $(c_api! { @one $name ($($arg: $ty),*) |$driver| $body })*
        $(c_api! { @one $twin ($($targ: $tty),*) |$tdriver| { let $null = Null::Legacy; $tbody } })*
        $(c_api! { @one $other ($($targ: $tty),*) |$tdriver| { let $null = Null::PerThread; $tbody } })*
        pub const SYMBOLS: &[(&str, *const ())] = &[
            $((stringify!($name), $name as *const ()),)*
            $((stringify!($twin), $twin as *const ()), (stringify!($other), $other as *const ()),)*
        ];
    };
}
use c_api;

/// A function's name as documentation has it: without `_v2`, `_ptds`, `_ptsz`.
pub fn public_name(symbol: &'static str) -> &'static str {
    let name = symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz");
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    base.strip_suffix("_v").filter(|_| base.len() < name.len()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_versions() {
        assert_eq!(public_name("cuMemcpyHtoD_v2_ptds"), "cuMemcpyHtoD");
        assert_eq!(public_name("cuCtxCreate_v4"), "cuCtxCreate");
        assert_eq!(public_name("cuMemsetD32Async"), "cuMemsetD32Async");
        assert_eq!(public_name("cuMemcpy2D_v2"), "cuMemcpy2D");
        assert_eq!(public_name("cuMemsetD2D8_v2"), "cuMemsetD2D8");
    }
}
