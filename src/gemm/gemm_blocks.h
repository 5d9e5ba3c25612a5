// What the loops over packed operands share, whatever their words are. Kernel files only (see simd/vec.h).
#pragma once

#include <cstddef>

#include "gemm/gemm_kernels.h"
#include "simd/tile.h"

namespace obn::OBN_TARGET::gemm {

using obn::gemm::Block;
using obn::gemm::Operand;
using obn::gemm::Product;

namespace {  // nothing here may be shared between targets

// Register tiles of every height, for one kind of operands: of[rows](tile, copy); copy is NULL unless they copy.
using MultiplyAndCopy = void (*)(const Tile&, float* copy);
struct TileHeights {
  MultiplyAndCopy of[kTileRows + 1] = {};
};

template <size_t kRows, bool kPacked, bool kCopies, class Step>
[[gnu::noinline]] void multiply_columns(const Tile& t, float* copy) {
  if (t.columns == kTileColumns) return multiply_rows<kRows, 2, kPacked, true, kCopies, Step>(t, copy);
  if (t.columns > kLanes) return multiply_rows<kRows, 2, kPacked, false, kCopies, Step>(t, copy);
  multiply_rows<kRows, 1, kPacked, false, kCopies, Step>(t, copy);
}

template <bool kPacked, bool kCopies, class Step, size_t kRows = kTileRows>
constexpr TileHeights tiles_up_to() {
  TileHeights tiles;
  if constexpr (kRows > 1) tiles = tiles_up_to<kPacked, kCopies, Step, kRows - 1>();
  tiles.of[kRows] = multiply_columns<kRows, kPacked, kCopies, Step>;
  return tiles;
}
template <bool kPacked, bool kCopies, class Step>
constexpr TileHeights tiles_of = tiles_up_to<kPacked, kCopies, Step>();

}  // namespace

OBN_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

// Row panels of a block, as even as they come (30 rows of 14: 3 x 10); the first ones may have one row more.
struct Panels {
  size_t count, rows, longer;

  [[gnu::always_inline]] explicit Panels(size_t all) : count(row_panels(all)), rows(all / count), longer(all % count) {}
  [[gnu::always_inline]] size_t rows_of(size_t panel) const { return rows + (panel < longer ? 1 : 0); }
  [[gnu::always_inline]] size_t row_of(size_t panel) const { return panel * rows + least(panel, longer); }
};

// What a tile at (row, column) of c is to do besides multiplying. Biases go with the first cut of k.
OBN_INLINE void begin(const Product& p, size_t row, size_t column, size_t columns, bool first, Tile* t) {
  t->c = p.c + row * p.c_row + column;
  t->c_row = p.c_row;
  t->columns = columns;
  t->accumulate = p.accumulate || !first;
  t->alpha = p.alpha;
  t->row_bias = first && p.row_bias ? p.row_bias + row : nullptr;
  t->column_bias = first && p.column_bias ? p.column_bias + column : nullptr;
}

// What multiply_rows of simd/tile.h does with its sums, in the same order, with those of (rows, sums_row); columns
// are whole vectors there.
OBN_INLINE void finish(const Tile& t, size_t rows, const float* sums, size_t sums_row) {
  for (size_t i = 0; i < rows; ++i) {
    float* c = t.c + i * t.c_row;
    for (size_t j = 0; j < t.columns; j += kLanes) {
      const size_t n = t.columns - j;
      const auto read = [&](const float* p) __attribute__((always_inline)) {
        return n >= kLanes ? load(p) : load_first(p, n);
      };
      F v = load(sums + i * sums_row + j);
      if (t.alpha != 1.0f) v *= t.alpha;
      if (t.row_bias) v += t.row_bias[i];
      if (t.column_bias) v += read(t.column_bias + j);
      if (t.accumulate) v += read(c + j);
      if (n >= kLanes) {
        store(c + j, v);
      } else {
        store_first(c + j, v, n);
      }
    }
  }
}

OBN_INLINE void activate(const Product& p, size_t row, size_t rows, size_t column, size_t columns) {
  if (!p.activation) return;
  for (size_t i = row; i < row + rows; ++i) p.activation->forward(p.c + i * p.c_row + column, columns);
}

// Columns after which an activation comes: while they are in the cache, unless it wants whole rows.
OBN_INLINE size_t columns_at_once(const Product& p, const Block& block, size_t tile_columns) {
  return p.activation && p.activation->is_elementwise() ? 8 * tile_columns : block.columns;
}

}  // namespace obn::OBN_TARGET::gemm
