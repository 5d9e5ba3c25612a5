// Winograd's way to a 3x3 convolution of stride 1: what the drive (winograd.cpp) and the bench (winograd_kernels.cpp)
// share.
//
// Four outputs in a row are the product of two polynomials, seen through a transposition: six inputs d, three weights w
// and the points t = 0, ±3/4, ±3/2, ∞ give
//   y = Aᵀ ((G w) · (Bᵀ d)),   G w: w at the points,   Bᵀ d: d at the points,   Aᵀ: back, with the scales
// and on both axes 4x4 outputs take 36 products instead of 144. The six steps of the three passes:
//   forward         y  = Aᵀ (U · V) A     U = G w Gᵀ,  V = Bᵀ d B; the product is a matrix product over channels
//   input gradient  the forward pass from dz to dx, weights turned by 180 degrees, padding 2 - before
//   weight gradient dw = Gᵀ (Σ V · Y) G   Y = A dz Aᵀ, summed over all tiles
// With these points the error is about twice that of a plain float32 loop; with 0, ±1, ±2, ∞ it is 4 to 10 times.
//
// A last tile of one or two outputs is short: four inputs and the points 0, ±3/4, ∞ give two outputs, with the same
// G w. So the far points ±3/2 have fewer tiles: a plane of 14x14 takes 484 products per channel pair instead of 576.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/targets.h"
#include "convolution/convolution.h"

namespace obn::convolution::winograd {

inline constexpr size_t kSide = 6;               // points on one axis, in the order 0, 3/4, -3/4, 3/2, -3/2, ∞
inline constexpr size_t kPoints = kSide * kSide;
inline constexpr size_t kOutputs = 4;            // of a tile, on one axis
inline constexpr size_t kSpread = 16;            // floats between the matrices of two points: 36 matrices a power of
                                                 // two apart would all meet in the same few sets of the caches

// Points 3 and 4 of an axis, ±b, are those that short tiles leave out.
[[gnu::always_inline]] inline size_t is_far(size_t point) { return point == 3 || point == 4; }

// Tiles that are computed together. A plane has tile_rows x tile_columns tiles.
struct Block {
  size_t row, rows;        // rows of tiles, counted through all samples: row / tile_rows is the sample
  size_t column, columns;  // columns of tiles
  size_t tile_rows, tile_columns;
  bool has_short_row, has_short_column;  // the last of each plane
  size_t before[2] = {0, 0};  // rows of tiles with near and with far points that lie before it in the matrices

  // Some of its rows, which stay where they are in the matrices; and the same in matrices of their own.
  Block part(size_t first, size_t count) const {
    Block head = *this, part = *this;
    head.rows = first;
    part.row += first;
    part.rows = count;
    for (size_t far = 0; far < 2; ++far) part.before[far] += head.rows_with(far);
    return part;
  }
  Block alone() const {
    Block block = *this;
    block.before[0] = block.before[1] = 0;
    return block;
  }

  [[gnu::always_inline]] inline bool is_short_row(size_t r) const {
    return has_short_row && r % tile_rows == tile_rows - 1;
  }
  // Rows and columns of tiles that have a near point, and a far point.
  [[gnu::always_inline]] inline size_t rows_with(size_t far) const {
    const size_t ends = (row + rows) / tile_rows - row / tile_rows;  // last rows of planes among them
    return far && has_short_row ? rows - ends : rows;
  }
  [[gnu::always_inline]] inline size_t columns_with(size_t far) const {
    return far && has_short_column && column + columns == tile_columns ? columns - 1 : columns;
  }
  [[gnu::always_inline]] inline size_t tiles_at(size_t row_point, size_t column_point) const {
    return rows_with(is_far(row_point)) * columns_with(is_far(column_point));
  }
  [[gnu::always_inline]] inline size_t tiles_before(size_t row_point, size_t column_point) const {
    return before[is_far(row_point)] * columns_with(is_far(column_point));
  }
};

// One matrix per point: value (i, j) of point p lies at data[p·point + i·row + j].
struct Matrices {
  float* data;
  size_t point;
  size_t row;
};

// The same for transformed weights, `Kernels::panel` columns at a time: value (k, j) of point p lies at
// data[p·point + j / panel · step + k·panel + j % panel].
struct Panels {
  float* data;
  size_t point;
  size_t step;
};

// A batch of planes that tiles read or write. Positions outside are zeros.
struct Image {
  Planes planes;
  size_t channels;
  int64_t rows, columns;
};

// The same with channels across lanes: the vector of pixel (y, x) of group g, which is channels g·lanes and on, of sample
// n lies at data + n·sample + g·group + y·row + x·lanes. All that tiles reach has to be there.
struct Lanes {
  float* data;
  size_t row, group, sample;
};

// Channels [first, end).
struct Range {
  size_t first, end;
};

// One target's loops. Channels go across lanes, so every matrix row is as long as round_up(channels, lanes); what is
// beyond the channels is zero. `room` is scratch of the size given by room_floats.
struct Kernels {
  size_t lanes;
  size_t panel;  // columns of the register tile

  // Floats of `room` for blocks of that many columns of tiles.
  size_t (*room_floats)(size_t columns);

  // U = G w Gᵀ between input channel k < inputs and output channel j < outputs, at most `lanes` of these; it lies at
  // u[p·point + k·panel + j]. The 9 taps begin at w[k·k_step + j·j_step], in reverse order if turned.
  void (*weights)(const float* w, size_t k_step, size_t j_step, bool turned, size_t inputs, size_t outputs, float* u,
                  size_t point);
  // v(tile, c) = Bᵀ d B for the channels of the range, which begins at a multiple of `lanes`; tile row 0 of a plane
  // begins at image row -up, tile column 0 at -left.
  void (*data)(const Image& x, int64_t up, int64_t left, const Block& block, Range channels, const Matrices& v,
               float* room);
  // The same with Y = A dz Aᵀ of 4x4 outputs.
  void (*gradient)(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room);

  // Both from lanes: of the pixel that the first tile begins with.
  void (*data_of_lanes)(const Lanes& x, const Block& block, Range channels, const Matrices& v);
  void (*gradient_of_lanes)(const Lanes& dz, const Block& block, Range channels, const Matrices& y);

  // m(tile, j) = Σ_k v(tile, k) · u(k, j) for k < depth and j < outputs, or added. m begins with the block's first tile.
  void (*multiply)(const Block& block, const Matrices& v, size_t depth, const Panels& u, size_t outputs,
                   bool accumulate, const Matrices& m);
  // y = Aᵀ m A + bias, or y += Aᵀ m A; m begins with channel channels.first. bias may be NULL.
  void (*outputs)(const Matrices& m, const Block& block, Range channels, const Image& y, const float* bias,
                  bool accumulate, float* room);
  // The same to lanes, where a last tile may write one row and one column that the plane has not.
  void (*outputs_to_lanes)(const Matrices& m, const Block& block, Range channels, const Lanes& y, const float* bias);

  // s(c - inputs.first, o - outputs.first) = Σ_tile v(tile, c) · y(tile, o), or added; outputs begin at a multiple of
  // `panel`.
  void (*correlate)(const Block& block, const Matrices& v, const Matrices& y, Range inputs, Range outputs,
                    bool accumulate, const Matrices& s);
  // dw (O, C, 3, 3) = Gᵀ s G, or added; s is the sum of `parts` sets, part_step floats apart, added in order, and
  // begins as correlate's does. c is C.
  void (*weight_gradient)(const Matrices& s, size_t parts, size_t part_step, Range inputs, Range outputs, size_t c,
                          bool accumulate, float* dw);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// The three passes on a given target; convolution.h's algorithms take the best.
size_t forward_bytes(const Kernels& kernels, const Problem& problem);
void forward(const Kernels& kernels, const Problem& problem, const Forward& call, size_t threads, std::byte* work);
size_t input_gradient_bytes(const Kernels& kernels, const Problem& problem);
void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& call, size_t threads,
                    std::byte* work);
size_t weight_gradient_bytes(const Kernels& kernels, const Problem& problem);
void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& call, size_t threads,
                     std::byte* work);

}  // namespace obn::convolution::winograd
