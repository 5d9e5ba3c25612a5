// Tiles of 4x4 outputs and the matrices of their values at the points: what Winograd's ways share, drives and benches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "convolution/convolution.h"

namespace obn::convolution::winograd {

inline constexpr size_t kOutputs = 4;   // of a tile, on one axis
inline constexpr size_t kSpread = 16;   // floats between the matrices of two points: 36 matrices a power of two apart
                                        // would all meet in the same few sets of the caches

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

}  // namespace obn::convolution::winograd
