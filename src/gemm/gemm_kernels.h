// What gemm.cpp (the choice of a way, cutting, threads) and gemm_kernels.cpp (the loops) share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/targets.h"
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
  const size_t parts = whole <= most ? 1 : divide_up(whole, most);
  return divide_up(whole, parts);
}

// Whether the packed way reads b where it lies.
[[gnu::always_inline]] inline bool is_b_in_place(const Product& p) {
  return p.b.type == BNNSDataTypeFloat32 && p.b.column == 1;
}

// The same for half values: few rows would not pay for packing them. See Packing::widened_rows.
[[gnu::always_inline]] inline bool is_b_widened(const Product& p, size_t rows, size_t widened_rows) {
  return p.b.type != BNNSDataTypeFloat32 && p.b.column == 1 && rows <= widened_rows;
}

// The same for a: when a block has too few columns to pay for packing. A turned a has the rows of a panel side by side,
// as good as packed where a panel takes most of a cache line, as those of AVX-512 do. Runs that lie multiples of half a
// page apart would throw each other out of the first-level cache.
inline constexpr size_t kFewColumns = 512, kHalfPage = 2048;  // bytes
[[gnu::always_inline]] inline bool is_a_in_place(const Product& p, size_t columns, size_t tile_columns) {
  if (p.a.type != BNNSDataTypeFloat32) return false;
  if (columns <= tile_columns && !is_b_in_place(p)) return true;
  constexpr size_t kWideTile = 32;  // columns; as many rows as registers allow go with them
  const bool has_rows = p.a.column == 1, has_panels = p.a.row == 1 && tile_columns >= kWideTile;
  const size_t apart = has_rows ? p.a.row : p.a.column;
  return columns <= kFewColumns && (has_rows || has_panels) && apart * sizeof(float) % kHalfPage != 0;
}

// The same for an a that is read as pairs of bfloat16: whole, aligned words.
[[gnu::always_inline]] inline bool is_paired_a_in_place(const Product& p, size_t columns) {
  const bool has_words = p.a.type == BNNSDataTypeBFloat16 && p.a.column == 1 && p.k % 2 == 0 && p.a.row % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(p.a.data) % sizeof(float) == 0;
  return has_words && columns <= kFewColumns && p.a.row * sizeof(uint16_t) % kHalfPage != 0;
}

inline constexpr size_t kFewRows = 4;        // that few_rows() can do
inline constexpr size_t kRowStrip = 1024;    // columns that it does at a time

// The packed way: how operands are laid out, and the loops over them. Packed lines are made of words of four bytes, one
// per step of k: a float32, or a pair of bfloat16, which are two values of k (the earlier one in the lower half).
struct Packing {
  size_t tile_rows;
  size_t tile_columns;
  size_t word_values;  // values of k in a word: 1 or 2
  size_t row_unit;     // a packed block of a has a multiple of this many rows, zeros at the end
  size_t step_unit;    // and lines of a and b a multiple of this many steps
  size_t widened_rows; // of a block, up to which every panel converts a b of half values where it lies; 0: none does

  // Rows [row, row + rows) of a, steps [first, first + depth) of k, panel by panel; only those of one part of several.
  // A panel is [depth][its rows], or whatever `packed` wants.
  void (*pack_a)(const Product& product, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
                 float* to);

  // Columns [column, column + columns) of b, at most tile_columns, as [depth][tile_columns], zeros at the end.
  void (*pack_b)(const Product& product, size_t column, size_t columns, size_t first, size_t depth, float* to);

  // Computes a block of c to the end, bias and activation included; a softmax needs a block of whole rows.
  // packed_a: the block's rows, one cut of k after the other, as pack_a lays them; NULL: packs them itself, or not.
  // packed_b: all of b, one cut of k after the other, tile by tile as pack_b lays them, and the block begins at a tile;
  // NULL: packs them itself.
  // work: (depth · tile_columns), and behind it, without packed_a, (rows · depth), or
  // (tile_rows · (depth + 16)) if that is more.
  void (*packed)(const Product& product, const Block& block, const float* packed_a, const float* packed_b, float* work);
};


// How the steps of k are cut: `depth` of them at a time, the last cut may be shorter.
struct Steps {
  size_t all, depth;

  [[gnu::always_inline]] Steps(size_t k, size_t word_values, size_t unit)
      : all(round_up(divide_up(k, word_values), unit)), depth(round_up(even_part(all, kDepth), unit)) {}
};

// One target's loops. Each computes a block of c to the end, as `packed` does.
struct Kernels {
  Packing floats;  // words are float32, whatever the operands are

  // Straight from the operands: float32, b.column == 1.
  void (*plain)(const Product& product, const Block& block);
  // Dot products along k: float32, a.column == 1, b.row == 1.
  void (*dots)(const Product& product, const Block& block);
  // The same, after turning b, whose rows are runs: float32, a.column == 1, b.column == 1. work: (columns · k)
  void (*turned)(const Product& product, const Block& block, float* work);
  bool dots_float16;  // the two take operands that are both float16 too; those that are both bfloat16 always
  // o (rows, columns) as float32 without gaps.
  void (*widen)(const Operand& o, size_t rows, size_t columns, float* to);
  // At most kFewRows rows of c, b read once, row by row: a float32, b of any type, b.column == 1.
  // work: (rows · kRowStrip)
  void (*few_rows)(const Product& product, const Block& block, float* work);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- pairs of bfloat16 ----

// Whether rounding the operands to bfloat16 loses nothing, or nothing that the product's precision keeps.
bool can_be_pairs(const Product& product);

// The machine's instructions for pairs, NULL where it has none:
const Packing* dot_pairs();    // AVX512_BF16: two products and sums per lane; FEAT_BF16 of ARM: eight
const Packing* tile_pairs();   // AMX: whole tiles, if they agree with the software tiles
const Packing& model_pairs();  // the loops of AMX over software tiles: slow, on every machine, for checks

// Whether a trial product with tails in every direction comes out like that of the model, but for the order of sums.
// Not for two threads at once.
bool agrees_with_model(const Packing& packing);

// The best of them that isa() allows, chosen once.
const Packing* best_pairs();

// run() on the target of one's choice; pairs may be NULL.
void run_on(const Kernels& kernels, const Packing* pairs, const Product& product, size_t threads, std::byte* work);

}  // namespace obn::gemm
