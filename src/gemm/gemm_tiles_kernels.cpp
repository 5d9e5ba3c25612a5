// The packed way over pairs of bfloat16 with tiles: the machine's where it has AMX, else the model of them. All packed
// memory is whole tiles, zeros at the end, so tiles always have their full shape.
#include <cstddef>

#include "base/integer.h"
#include "base/interrupt.h"
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_pairs.h"
#include "gemm/gemm_tiles.h"

namespace obn::OBN_TARGET::gemm {
namespace {

using obn::gemm::Steps;

#if defined(OBN_MACHINE_TILES)
using Tiles = MachineTiles;
#else
using Tiles = ModelTiles;
#endif

constexpr size_t kTileWords = kTileSide * kTileSide;
constexpr size_t kColumns = 2 * kTileSide;  // of b side by side
constexpr size_t kRows = 2 * kTileSide;     // of a one above the other: with b's, 4 tiles of sums

// ---- packing ----

// a: bands of 16 rows, each one tile (16 rows, 16 steps) after the other.
void pack_band(const Lines& s, size_t first, size_t depth, float* to) {
  for (size_t p = 0; p < depth; p += kTileSide, to += kTileWords) {
    for (size_t i = 0; i < kTileSide; i += kLanes)
      for (size_t q = 0; q < kTileSide; q += kLanes) {
        F v[kLanes];
        load_words<true>(s, i, first + p + q, v);
        for (size_t line = 0; line < kLanes; ++line) store(to + (i + line) * kTileSide + q, v[line]);
      }
  }
}

void pack_a(const Product& p, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
            float* to) {
  const size_t bands = divide_up(rows, kTileSide), end = bands * (part + 1) / parts;
  for (size_t r = bands * part / parts; r < end; ++r) {
    const size_t i = r * kTileSide;
    pack_band(rows_of_a(p, row + i, least(kTileSide, rows - i)), first, depth, to + i * depth);
  }
}

void pack_b(const Product& p, size_t column, size_t columns, size_t first, size_t depth, float* to) {
  pack_by_step(columns_of_b(p, column, columns), kColumns, first, depth, to);
}

// ---- multiplying ----

// sums (kRows, kColumns) = the product of two bands of a, or one, and two tile columns of b, or one.
template <bool kTwoBands, bool kTwoColumns>
OBN_INLINE void multiply(Tiles& tiles, const float* a, const float* b, size_t depth, float* sums) {
  tiles.zero<0>();
  if constexpr (kTwoColumns) tiles.zero<1>();
  if constexpr (kTwoBands) tiles.zero<2>();
  if constexpr (kTwoBands && kTwoColumns) tiles.zero<3>();
  for (size_t p = 0; p < depth; p += kTileSide) {
    tiles.load<6>(b + p * kColumns, kColumns);
    tiles.load<4>(a + p * kTileSide, kTileSide);
    tiles.add_product<0, 4, 6>();
    if constexpr (kTwoColumns) {
      tiles.load<7>(b + p * kColumns + kTileSide, kColumns);
      tiles.add_product<1, 4, 7>();
    }
    if constexpr (kTwoBands) {
      tiles.load<5>(a + (depth + p) * kTileSide, kTileSide);
      tiles.add_product<2, 5, 6>();
    }
    if constexpr (kTwoBands && kTwoColumns) tiles.add_product<3, 5, 7>();
  }
  tiles.store<0>(sums, kColumns);
  if constexpr (kTwoColumns) tiles.store<1>(sums + kTileSide, kColumns);
  if constexpr (kTwoBands) tiles.store<2>(sums + kTileSide * kColumns, kColumns);
  if constexpr (kTwoBands && kTwoColumns) tiles.store<3>(sums + kTileSide * kColumns + kTileSide, kColumns);
}

void multiply(Tiles& tiles, size_t rows, size_t columns, const float* a, const float* b, size_t depth, float* sums) {
  const bool two_bands = rows > kTileSide, two_columns = columns > kTileSide;
  if (two_bands && two_columns) return multiply<true, true>(tiles, a, b, depth, sums);
  if (two_bands) return multiply<true, false>(tiles, a, b, depth, sums);
  if (two_columns) return multiply<false, true>(tiles, a, b, depth, sums);
  multiply<false, false>(tiles, a, b, depth, sums);
}

void packed(const Product& p, const Block& block, const float* packed_a, const float* packed_b, float* work) {
  const Steps steps(p.k, 2, kTileSide);
  const size_t width = round_up(p.n, kColumns), end = block.column + block.columns;
  const size_t all_rows = round_up(block.rows, kTileSide);
  const size_t group = columns_at_once(p, block, kColumns);
  float* own_b = work;
  float* own_a = packed_a ? nullptr : work + steps.depth * kColumns;
  alignas(64) float sums[kRows * kColumns];
  Tiles tiles;
  Tile t;
  tiles.begin();
  for (size_t first = 0; first < steps.all && !is_interrupted(); first += steps.depth) {
    const size_t depth = least(steps.depth, steps.all - first);
    if (own_a) pack_a(p, block.row, block.rows, first, depth, 0, 1, own_a);
    const float* a = packed_a ? packed_a + first * all_rows : own_a;
    for (size_t from = block.column; from < end; from += group) {
      const size_t to = least(end, from + group);
      for (size_t j = from; j < to; j += kColumns) {
        const size_t columns = least(kColumns, end - j);
        const float* b = packed_b ? packed_b + first * width + j * depth : own_b;
        if (!packed_b) pack_b(p, j, columns, first, depth, own_b);
        for (size_t i = 0; i < block.rows; i += kRows) {
          const size_t rows = least(kRows, block.rows - i);
          multiply(tiles, rows, columns, a + i * depth, b, depth, sums);
          begin(p, block.row + i, j, columns, first == 0, &t);
          finish(t, rows, sums, kColumns);
        }
      }
      if (first + depth == steps.all) activate(p, block.row, block.rows, from, to - from);
    }
  }
  tiles.end();
}

}  // namespace

extern const obn::gemm::Packing tile_pairs;
const obn::gemm::Packing tile_pairs = {kRows, kColumns, 2, kTileSide, kTileSide, 0, pack_a, pack_b, packed};

}  // namespace obn::OBN_TARGET::gemm
