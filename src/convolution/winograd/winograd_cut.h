// How Winograd's drive cuts the tiles of a batch into blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "convolution/winograd/winograd.h"

namespace obn::convolution::winograd {

inline size_t as_size(int64_t v) { return static_cast<size_t>(v); }

// The tiles of a batch, in blocks of at most `rows` x `columns` tiles.
struct Cut {
  Block all;
  size_t rows, columns;
  size_t down, across;  // blocks

  size_t blocks() const { return down * across; }
  size_t tiles() const { return all.rows * all.columns; }
  size_t most_tiles() const { return rows * columns; }
  Block block(size_t i) const {
    Block b = all;
    b.row = i / across * rows;
    b.rows = std::min(rows, all.rows - b.row);
    b.column = i % across * columns;
    b.columns = std::min(columns, all.columns - b.column);
    return b;
  }
};

constexpr size_t kFewestTiles = 14;  // of a block that is cut smaller so that no thread waits: a panel of the register tile
constexpr size_t kWeightRows = 32;   // channels whose weights are made, or finished, at a time

// Nanoseconds, about: a tile of a channel to the points or back, and a weight.
constexpr double kTile = 12.0, kWeight = 8.0;

// Blocks of about `tiles` tiles over output planes of p rows and q columns, as even as they can be.
inline Cut cut_tiles(size_t n, int64_t p, int64_t q, size_t tiles, size_t most_columns, size_t threads = 1) {
  Cut cut;
  tiles = std::max(tiles, size_t{1});
  const size_t rows = divide_up(as_size(p), kOutputs), columns = divide_up(as_size(q), kOutputs);
  const bool short_row = p % 4 == 1 || p % 4 == 2, short_column = q % 4 == 1 || q % 4 == 2;
  cut.all = {0, n * rows, 0, columns, rows, columns, short_row, short_column};
  cut.across = divide_up(columns, std::clamp(tiles, size_t{1}, std::max(most_columns, size_t{1})));
  cut.columns = divide_up(columns, cut.across);
  cut.across = divide_up(columns, cut.columns);
  cut.down = divide_up(n * rows, tiles / cut.columns);
  cut.rows = divide_up(n * rows, cut.down);
  cut.rows = even_pieces(n * rows, std::max(cut.rows / 4, divide_up(kFewestTiles, cut.columns)), cut.rows, cut.across,
                         threads);
  cut.down = divide_up(n * rows, cut.rows);
  return cut;
}

inline size_t count_tiles(size_t n, int64_t p, int64_t q) {
  return n * divide_up(as_size(p), kOutputs) * divide_up(as_size(q), kOutputs);
}

// Some rows of a block each, so that all threads have their share of `pieces` things that are done to every part; parts
// have at least `fewest` rows, and take as long as `extra` more.
struct Parts {
  size_t rows, count;

  Parts(const Block& block, size_t pieces, size_t fewest, size_t threads, size_t extra = 0)
      : rows(even_pieces(block.rows, std::max(fewest, block.rows / kMost), block.rows, pieces, threads, extra)),
        count(divide_up(block.rows, rows)) {}

  Block part(const Block& block, size_t piece) const {
    const size_t first = piece % count * rows;
    return block.part(first, std::min(rows, block.rows - first));
  }

 private:
  static constexpr size_t kMost = 8;
};

// Room for `rows` tiles at every point.
inline Matrices matrices(float* data, size_t rows, size_t row) { return {data, rows * row + kSpread, row}; }

// Rows of y that the block has finished.
inline void activate(const activation::Fused& activation, const Image& image, const Block& block, Range channels) {
  const size_t first = block.column * kOutputs;
  const size_t columns = std::min(block.columns * kOutputs, as_size(image.columns) - first);
  const Planes& y = image.planes;
  for (size_t r = block.row; r < block.row + block.rows; ++r) {
    const size_t row = r % block.tile_rows * kOutputs, rows = std::min(kOutputs, as_size(image.rows) - row);
    for (size_t c = channels.first; c < channels.end; ++c) {
      float* at = y.data + r / block.tile_rows * y.sample + c * y.plane + row * y.row + first;
      if (columns == y.row) {
        activation.forward(at, rows * columns);
      } else {
        for (size_t i = 0; i < rows; ++i) activation.forward(at + i * y.row, columns);
      }
    }
  }
}

}  // namespace obn::convolution::winograd
