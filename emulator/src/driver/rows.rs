//! Rows of memory, each a pitch behind the one before: what 2D copies and fills go through, and others as a single row.

use super::order::{MemoryBlock, Use};
use crate::fault::{Code, Fault, Result};

/// The bytes from the first of some rows to the end of the last.
pub fn span(rows: (u64, usize), size: (usize, usize)) -> Result<u64> {
    let before = size.1.saturating_sub(1).checked_mul(rows.1);
    let span = before.and_then(|before| before.checked_add(size.0)).map(|bytes| bytes as u64);
    span.filter(|&bytes| rows.0.checked_add(bytes).is_some()).ok_or_else(|| {
        let rows_of = if size.1 == 1 { String::new() } else { format!("{} rows, {} bytes apart, of ", size.1, rows.1) };
        let message = format!("{rows_of}{} bytes at {:#x} do not fit the address space", size.0, rows.0);
        Fault::new(Code::InvalidValue, message)
    })
}

pub fn block_use(start: u64, address: u64, bytes: u64, written: bool) -> Use {
    Use { block: MemoryBlock(start), begin: address, end: address.saturating_add(bytes), written }
}

/// One use for each row; of more rows than that, one for all with what lies between them.
pub fn rows_use(start: u64, rows: (u64, usize), size: (usize, usize), written: bool) -> Vec<Use> {
    const MOST_ROWS: usize = 256;
    if size.1 > MOST_ROWS || rows.1 <= size.0 {
        let bytes = (size.1 - 1) * rows.1 + size.0;
        return vec![block_use(start, rows.0, bytes as u64, written)];
    }
    let row = |row: usize| block_use(start, rows.0 + (row * rows.1) as u64, size.0 as u64, written);
    (0..size.1).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_used_one_by_one_or_as_a_whole() {
        let ends = |rows, size| -> Vec<(u64, u64)> {
            rows_use(100, rows, size, true).iter().map(|used| (used.begin, used.end)).collect()
        };
        assert_eq!(ends((100, 16), (8, 3)), [(100, 108), (116, 124), (132, 140)]);
        assert_eq!(ends((100, 8), (8, 3)), [(100, 124)], "no gaps");
        assert_eq!(ends((100, 0), (8, 1)), [(100, 108)]);
        assert_eq!(ends((100, 16), (8, 1000)), [(100, 100 + 999 * 16 + 8)]);
    }

    #[test]
    fn a_span_that_leaves_the_address_space_is_refused() {
        assert_eq!(span((100, 16), (8, 3)), Ok(40));
        assert_eq!(span((100, 0), (8, 1)), Ok(8));
        for (rows, size) in [((0, usize::MAX), (1, 3)), ((0, 1 << 40), (1, 1 << 40)), ((u64::MAX - 7, 0), (9, 1))] {
            assert!(span(rows, size).unwrap_err().message.contains("address space"));
        }
    }
}
