//! The memories of the device, and the records that the checks keep of them.

pub mod clock;
pub mod global;
pub mod init;
pub mod room;
pub mod shadow;
pub mod shared;
