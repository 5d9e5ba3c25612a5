// The packed way over pairs of bfloat16 with the bfmmla of ARM (FEAT_BF16), one instruction for two rows of a, two columns
// of b and four values of k: to a square of sums it adds one pair of products after the other. The two of a pair are
// added up first; all sums are rounded to odd, and what is below the smallest normal float32 counts as 0.
#include "base/integer.h"
#include "base/interrupt.h"
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_pairs.h"

namespace obn::OBN_TARGET::gemm {
namespace {

using obn::gemm::even_part;
using obn::gemm::Steps;

constexpr size_t kMostPairs = kTileRows / 2;   // of rows: with those of columns 24 squares of sums
constexpr size_t kAcross = kTileColumns / 2;   // pairs of columns
constexpr size_t kStepUnit = 2;                // words of a line in a vector

// Rows of all panels of a block but the last, which may have fewer.
OBN_INLINE size_t panel_height(size_t rows) { return 2 * even_part((rows + 1) / 2, kMostPairs); }

// ---- packing ----

// [depth / 2][width / 2] vectors: two words each of two lines.
[[gnu::noinline]] void pack_squares(const Lines& s, size_t width, size_t first, size_t depth, float* to) {
  for (size_t i = 0; i < width; i += kLanes) {
    for (size_t p = 0; p < depth; p += kLanes) {
      F v[kLanes];
      load_words<true>(s, i, first + p, v);
      for (size_t line = 0; line < kLanes && i + line < width; line += 2) {
        float* at = to + p * width + 2 * (i + line);
        store(at, __builtin_shufflevector(v[line], v[line + 1], 0, 1, 4, 5));
        if (p + kStepUnit < depth)
          store(at + kStepUnit * width, __builtin_shufflevector(v[line], v[line + 1], 2, 3, 6, 7));
      }
    }
  }
}

void pack_a(const Product& p, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
            float* to) {
  const size_t height = panel_height(rows), panels = divide_up(rows, height), end = panels * (part + 1) / parts;
  for (size_t r = panels * part / parts; r < end; ++r) {
    const size_t i = r * height, some = least(height, rows - i);
    pack_squares(rows_of_a(p, row + i, some), round_up(some, 2), first, depth, to + i * depth);
  }
}

void pack_b(const Product& p, size_t column, size_t columns, size_t first, size_t depth, float* to) {
  pack_squares(columns_of_b(p, column, columns), kTileColumns, first, depth, to);
}

// ---- multiplying ----

OBN_INLINE F add_square(F sum, F x, F w) {
  return reinterpret_cast<F>(vbfmmlaq_f32(reinterpret_cast<float32x4_t>(sum), reinterpret_cast<bfloat16x8_t>(x),
                                          reinterpret_cast<bfloat16x8_t>(w)));
}

// sums (2 · kPairs, kTileColumns) = the product of a panel of a and one of b.
template <size_t kPairs>
[[gnu::noinline]] void multiply(const float* a, const float* b, size_t depth, float* sums) {
  F sum[kPairs][kAcross];
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairs; ++i)
#pragma GCC unroll 4
    for (size_t j = 0; j < kAcross; ++j) sum[i][j] = F{};
  for (size_t p = 0; p < depth; p += kStepUnit, a += kPairs * kLanes, b += kAcross * kLanes) {
    prefetch_l1(a + 16 * kPairs * kLanes);
    F w[kAcross];
#pragma GCC unroll 4
    for (size_t j = 0; j < kAcross; ++j) w[j] = load(b + j * kLanes);
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairs; ++i) {
      const F x = load(a + i * kLanes);
#pragma GCC unroll 4
      for (size_t j = 0; j < kAcross; ++j) sum[i][j] = add_square(sum[i][j], x, w[j]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairs; ++i) {
#pragma GCC unroll 2
    for (size_t j = 0; j < kAcross; j += 2) {
      float* at = sums + 2 * i * kTileColumns + 2 * j;
      store(at, __builtin_shufflevector(sum[i][j], sum[i][j + 1], 0, 1, 4, 5));
      store(at + kTileColumns, __builtin_shufflevector(sum[i][j], sum[i][j + 1], 2, 3, 6, 7));
    }
  }
}

using Multiply = void (*)(const float* a, const float* b, size_t depth, float* sums);
constexpr Multiply multiply_pairs[kMostPairs + 1] = {nullptr,     multiply<1>, multiply<2>, multiply<3>,
                                                     multiply<4>, multiply<5>, multiply<6>};

void packed(const Product& p, const Block& block, const float* packed_a, const float* packed_b, float* work) {
  const Steps steps(p.k, 2, kStepUnit);
  const size_t width = round_up(p.n, kTileColumns), end = block.column + block.columns;
  const size_t group = columns_at_once(p, block, kTileColumns), height = panel_height(block.rows);
  float* own_b = work;
  float* own_a = packed_a ? nullptr : work + steps.depth * kTileColumns;
  alignas(64) float sums[kTileRows * kTileColumns];
  Tile t;
  for (size_t first = 0; first < steps.all && !is_interrupted(); first += steps.depth) {
    const size_t depth = least(steps.depth, steps.all - first);
    if (own_a) pack_a(p, block.row, block.rows, first, depth, 0, 1, own_a);
    const float* a = packed_a ? packed_a + first * round_up(block.rows, 2) : own_a;
    for (size_t from = block.column; from < end; from += group) {
      const size_t to = least(end, from + group);
      for (size_t j = from; j < to; j += kTileColumns) {
        const size_t columns = least(kTileColumns, end - j);
        const float* b = packed_b ? packed_b + first * width + j * depth : own_b;
        if (!packed_b) pack_b(p, j, columns, first, depth, own_b);
        for (size_t i = 0; i < block.rows; i += height) {
          const size_t rows = least(height, block.rows - i);
          multiply_pairs[(rows + 1) / 2](a + i * depth, b, depth, sums);
          begin(p, block.row + i, j, columns, first == 0, &t);
          finish(t, rows, sums, kTileColumns);
        }
      }
      if (first + depth == steps.all) activate(p, block.row, block.rows, from, to - from);
    }
  }
}

}  // namespace

extern const obn::gemm::Packing pairs;
const obn::gemm::Packing pairs = {kTileRows, kTileColumns, 2, 2, kStepUnit, 0, pack_a, pack_b, packed};

}  // namespace obn::OBN_TARGET::gemm
