//! The order of blocks, warps and time slices, permuted by a seed. (SplitMix64, Steele, Lea and Flood 2014.)

#[derive(Debug, Clone)]
pub struct Rng {
    /// 0: everything in launch order, slices of full length.
    seed: u64,
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { seed, state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        if self.seed == 0 {
            return;
        }
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }

    /// The length of a time slice of at most `full`.
    pub fn slice(&mut self, full: u64) -> u64 {
        if self.seed == 0 { full } else { 1 + self.below(full) }
    }
}
