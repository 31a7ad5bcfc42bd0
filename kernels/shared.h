// The numbers that a kernel and its launch share. nvcc compiles this file, and build.rs reads each `constexpr int` into a
// Rust constant of the same name in `gpu::grid::shared`; so an expression has to mean the same in both languages.
#pragma once

constexpr int WARP = 32;

// Kernels on elements (elementwise.cuh): threads of a block.
constexpr int ELEMENTWISE_THREADS = 256;

// Kernels on rows (rows.cuh): threads of a block at most, and of a grid that sums over rows: a power of two that fills cards.
constexpr int ROW_THREADS = 256;
constexpr int SUMMING_THREADS = 65536;
// Columns up to which a warp takes a row, and columns that a thread of the backward kernel sums over the rows.
constexpr int RMS_NORM_WARP_COLS = 1024;
constexpr int RMS_NORM_OWN = 32;
constexpr int LAYER_NORM_WARP_COLS = 512;
constexpr int LAYER_NORM_OWN = 16;
constexpr int SOFTMAX_WARP_COLS = 1024;

// add.cu, second operand repeated: lanes and rows of threads of a block.
constexpr int ADD_LANES = 32;
constexpr int ADD_THREAD_ROWS = 8;

// qk_norm_rope.cu: channels of a block of the backward kernel, and blocks that share the heads.
constexpr int QK_NORM_WINDOW = 128;
constexpr int QK_NORM_MOST_BLOCKS = 256;
constexpr int ROPE_THREADS = 256;

// matmul.cu and matmul_f32.cu: a tile is 128 × 128, or in bf16 64 × 128 for few rows; depth of a step; stages of a pipeline.
constexpr int MATMUL_THREADS = 256;
constexpr int MATMUL_TILE = 128;
constexpr int MATMUL_SMALL_TILE = 64;
constexpr int MATMUL_BF16_STEP = 32;
constexpr int MATMUL_BF16_STAGES = 3;
constexpr int MATMUL_F32_STEP = 8;
constexpr int MATMUL_REDUCE_VECTOR = 4;

// attention_forward.cu and attention_forward_f32.cu: threads, queries and keys of a tile.
constexpr int ATTENTION_THREADS = 128;
constexpr int ATTENTION_KEYS = 64;
constexpr int ATTENTION_QUERIES_TO_64 = 128;  // head_dim up to 64
constexpr int ATTENTION_QUERIES = 64;         // beyond
constexpr int ATTENTION_F32_QUERIES = 64;
constexpr int ATTENTION_F32_KEYS = 32;

// attention_decode.cu: warps, rows of a warp, keys of a tile, stages (3 up to head_dim 64).
constexpr int DECODE_WARPS = 4;
constexpr int DECODE_BF16_ROWS = 16;
constexpr int DECODE_F32_ROWS = 4;
constexpr int DECODE_BF16_KEYS = 64;
constexpr int DECODE_F32_KEYS = 32;
constexpr int DECODE_STAGES_TO_64 = 3;
constexpr int DECODE_STAGES = 2;

// attention_backward_delta.cu: queries and heads of a block; the multiple that its output is padded to.
constexpr int DELTA_THREADS = 256;
constexpr int DELTA_QUERIES = 32;
constexpr int DELTA_HEADS = 8;
constexpr int STATISTICS_PAD = 128;
// attention_backward_f32.cu: rows of a tile, and by how much a row is padded.
constexpr int BACKWARD_F32_THREADS = 128;
constexpr int BACKWARD_F32_TILE = 32;
constexpr int BACKWARD_F32_PAD = 4;
// attention_backward_dq.cu, attention_backward_dkv.cu: the stationary rows of a block, two threads each, and the rows that
// are streamed past, by head_dim.
constexpr int BACKWARD_STATIONARY = 128;
constexpr int DQ_KEYS_32 = 64;
constexpr int DQ_KEYS_64 = 32;
constexpr int DQ_KEYS_96 = 64;
constexpr int DQ_KEYS_128 = 32;
constexpr int DKV_QUERIES_32 = 64;
constexpr int DKV_QUERIES_64 = 64;
constexpr int DKV_QUERIES_96 = 64;
constexpr int DKV_QUERIES_128 = 32;

// cross_entropy.cu: threads of a row, fewer up to SMALL_VOCAB; and of the one block that counts and averages.
constexpr int CROSS_ENTROPY_SMALL_VOCAB = 2048;
constexpr int CROSS_ENTROPY_SMALL_THREADS = 128;
constexpr int CROSS_ENTROPY_THREADS = 512;
constexpr int ONE_BLOCK_THREADS = 1024;

// embedding.cu: tokens of a block of the sort, digits of a pass and their bits; sorted tokens that a block adds up, and the
// neighbouring channels that a thread of it does.
constexpr int EMBEDDING_THREADS = 256;
constexpr int SORT_TILE = 1024;
constexpr int SORT_DIGIT_BITS = 8;
constexpr int SORT_DIGITS = 256;
constexpr int SUM_PIECE = 32;
constexpr int SUM_THREADS = 128;
constexpr int SUM_WIDTH = 4;

// global_norm.cu: elements that a block takes at least, and the most blocks of a gradient.
constexpr int NORM_THREADS = 256;
constexpr int NORM_SHARE = 16384;
constexpr int NORM_MOST_BLOCKS = 512;

// adamw.cu, cast.cu: elements of a thread.
constexpr int ADAMW_WIDTH = 4;
constexpr int CAST_WIDTH = 4;

// sample.cu: threads, bits of a digit, and the largest vocabulary: so many masses of 2⁴³ are 2⁶³, which leaves a bit to spare.
constexpr int SAMPLE_THREADS = 512;
constexpr int SAMPLE_DIGIT_BITS = 4;
constexpr int SAMPLE_MOST_VOCAB = 1048576;
