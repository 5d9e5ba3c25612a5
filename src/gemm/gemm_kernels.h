// What gemm.cpp (the choice of a way, cutting, threads) and gemm_kernels.cpp (the loops) share.
#pragma once

#include <cstddef>

#include "base/cpu.h"
#include "gemm/gemm.h"

namespace obn::gemm {

// A part of c.
struct Block {
  size_t row, rows;
  size_t column, columns;
};

// k is cut into pieces of this length at most, as even as they come: a piece of b, one tile wide, stays in the
// second-level cache together with a block of a, and c is touched only once per piece. Where k is cut decides the bits,
// so it depends on k alone.
inline constexpr size_t kDepth = 512;
inline constexpr size_t kDotDepth = 4096;  // the same for dot products, whose operands are not packed

[[gnu::always_inline]] inline size_t even_part(size_t whole, size_t most) {
  const size_t parts = whole <= most ? 1 : (whole + most - 1) / most;
  return (whole + parts - 1) / parts;
}

// Whether the packed way reads b where it lies.
[[gnu::always_inline]] inline bool is_b_in_place(const Product& p) {
  return p.b.type == BNNSDataTypeFloat32 && p.b.column == 1;
}

// The same for a: when a block has too few columns to pay for packing. Rows that lie multiples of half a page apart
// would throw each other out of the first-level cache.
[[gnu::always_inline]] inline bool is_a_in_place(const Product& p, size_t columns, size_t tile_columns) {
  constexpr size_t kFewColumns = 512, kHalfPage = 2048 / sizeof(float);
  if (p.a.type != BNNSDataTypeFloat32) return false;
  if (columns <= tile_columns && !is_b_in_place(p)) return true;
  return columns <= kFewColumns && p.a.column == 1 && p.a.row % kHalfPage != 0;
}

inline constexpr size_t kFewRows = 4;        // that few_rows() can do
inline constexpr size_t kRowStrip = 1024;    // columns that it does at a time

// One target's loops. Each computes a block of c to the end, bias and activation included; a softmax needs a block of
// whole rows.
struct Kernels {
  size_t tile_rows;
  size_t tile_columns;

  // Rows [row, row + rows) of a, steps [first, first + depth) of k, as panels [depth][rows of the panel], in float32;
  // only the panels of one part of several.
  void (*pack_a)(const Operand& a, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
                 float* to);

  // Columns [column, column + columns) of b, at most tile_columns, as [depth][tile_columns], zeros at the end.
  void (*pack_b)(const Operand& b, size_t column, size_t columns, size_t first, size_t depth, float* to);

  // packed_a: the block's rows, one cut of k after the other, as pack_a lays them; NULL: packs them itself, or not.
  // packed_b: all of b, one cut of k after the other, tile by tile as pack_b lays them, and the block begins at a tile;
  // NULL: packs them itself.
  // work: (depth · tile_columns), and behind it, without packed_a, (rows · depth).
  void (*packed)(const Product& product, const Block& block, const float* packed_a, const float* packed_b, float* work);
  // Straight from the operands: float32, b.column == 1.
  void (*plain)(const Product& product, const Block& block);
  // Dot products along k: float32, a.column == 1, b.row == 1.
  void (*dots)(const Product& product, const Block& block);
  // The same, after turning b, whose rows are runs: float32, a.column == 1, b.column == 1. work: (columns · k)
  void (*turned)(const Product& product, const Block& block, float* work);
  // At most kFewRows rows of c, b read once, row by row: float32, b.column == 1. work: (rows · kRowStrip)
  void (*few_rows)(const Product& product, const Block& block, float* work);
};

extern const Targets<Kernels> targets;

// run() on the target of one's choice.
void run_on(const Kernels& kernels, const Product& product, size_t threads, std::byte* work);

}  // namespace obn::gemm
