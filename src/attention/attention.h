// Multi-head attention.
//
//   b sample, h head            t, s      rows of queries, rows of keys and values
//   q, k, v  projected rows     a         rows of P·v, all heads side by side
//   top, inverse                largest score of a row, 1 / Σ exp(score - top)
//   dq, dk, dv, da              their gradients
//
// Between the projections (products of the matrix engine) lies the part that mixes rows, done here one head of one
// sample at a time, in blocks of rows and columns of the scores. Those of long sequences are never kept: memory grows
// with t + s, not with t·s, and the backward pass computes them again from top and inverse. Those of short ones are,
// softened, for a backward pass to come: computing them again would cost more than reading them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "base/targets.h"
#include "openbnns/bnns/attention.h"

namespace obn::attention {

// What is added to the scores of the first s columns. Booleans: true is minus infinity, false nothing.
struct Added {
  const void* data = nullptr;  // NULL: nothing
  BNNSDataType type = BNNSDataTypeFloat32;
  size_t row = 0, column = 0;
};

// Which values of P are dropped, decided by a stream of random numbers: value (i, j) by number i·row + j behind start.
struct Dropout {
  void (*get)(const void* stream, uint64_t position, uint32_t* values, size_t n) = nullptr;  // NULL: none
  const void* stream = nullptr;
  uint64_t start = 0;
  size_t row = 0;
  uint32_t threshold = 0;  // numbers below it drop
  float factor = 1.0f;     // of those that stay
};

// One head of one sample. Rows are runs.
struct Head {
  size_t t = 0, s = 0;
  size_t extra = 0;  // columns behind the s of the sample, always visible: the bias row, the zero row
  size_t key_width = 0, value_width = 0;
  float scale = 1.0f;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  size_t q_row = 0, k_row = 0, v_row = 0;
  const float* extra_k = nullptr;  // (extra, key_width)
  const float* extra_v = nullptr;  // (extra, value_width)
  Added added;
  const uint8_t* hidden = nullptr;  // (s), true hides the column; NULL: none
  size_t hidden_step = 0;
  bool causal = false;  // column j < s is visible from row i >= j
  Dropout dropout;
};

struct HeadGradients {
  const float* da = nullptr;
  size_t da_row = 0;
  const float* top = nullptr;      // (t)
  const float* inverse = nullptr;  // (t)
  const float* dots = nullptr;     // (t): Σ a·da
  float* dq = nullptr;
  float* dk = nullptr;  // may be k
  float* dv = nullptr;  // may be v
  size_t dq_row = 0, dk_row = 0, dv_row = 0;
  float* extra_dk = nullptr;  // (extra, key_width)
  float* extra_dv = nullptr;  // (extra, value_width)
};

// Rows that the next head will read: fetched while this one is multiplied, a cache line per step of a product.
struct Coming {
  struct Rows {
    const float* data;
    size_t row, rows, width;
  };
  Rows rows[5] = {};
  size_t count = 0;

  void add(const float* data, size_t row, size_t n, size_t width) { rows[count++] = {data, row, n, width}; }
};

// How the scores of a head are cut. Borders depend on shapes alone; those of columns decide the bits.
struct Blocks {
  size_t rows = 0, columns = 0;
  size_t copied = rows;  // backward: rows that are copied at once; all, or those of a block
};

inline constexpr size_t kWidestTile = 32;  // of all targets

[[gnu::always_inline]] inline size_t whole_tiles(size_t n) { return round_up(n, kWidestTile); }
// From one row of scores to the next, in whole vectors of all targets: without gaps up to the width of a tile, which
// reads whole rows; else an odd number of cache lines, so that rows do not throw each other out.
[[gnu::always_inline]] inline size_t score_pitch(size_t columns) {
  const size_t lines = divide_up(columns, kLineFloats);
  return kLineFloats * (columns <= kWidestTile ? lines : lines | 1);
}

struct Kernels {
  // Rows [first, first + rows) of a, top and inverse; all of them point to row 0. work: forward_values().
  // kept: where p goes, turned, (s + extra, score_pitch(t)); for heads of a single block and no dropout. NULL: nowhere.
  void (*forward)(const Head& head, const Coming& coming, const Blocks& blocks, size_t first, size_t rows, float* a,
                  size_t a_row, float* top, float* inverse, float* kept, float* work);
  // All gradients of the head. work: backward_values().
  void (*backward)(const Head& head, const HeadGradients& gradients, const Blocks& blocks, float* work);
  // The same from p that was kept: top, inverse and dots are not read. work: kept_backward_values().
  void (*backward_kept)(const Head& head, const Coming& coming, const HeadGradients& gradients, const float* p,
                        float* work);
  // dots (rows): Σ a·da along n values
  void (*dots)(const float* a, size_t a_row, const float* da, size_t da_row, size_t rows, size_t n, float* dots);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// Floats of work.
size_t forward_values(const Blocks& blocks, size_t key_width, size_t value_width);
size_t backward_values(const Blocks& blocks, size_t key_width, size_t value_width);
size_t kept_backward_values(size_t t, size_t columns, size_t key_width, size_t value_width);

// ---- the obvious loops (attention_ref.cpp), in double precision; they serve heads too wide for the blocks ----

namespace ref {

void forward(const Head& head, size_t first, size_t rows, float* a, size_t a_row, float* top, float* inverse);
// dk and dv must not be k and v.
void backward(const Head& head, const HeadGradients& gradients);

}  // namespace ref
}  // namespace obn::attention
