// The weight gradient of Winograd's ways is a sum over tiles, S = Σ V·Y at every point: how it is cut into parts, and
// where V, Y and S lie.
#pragma once

#include <algorithm>
#include <cstddef>

#include "convolution/winograd_cut.h"

namespace obn::convolution::winograd {

// Measured on a core with 32 KB and 1 MB of cache; half or twice as much changes the time by a few percent.
inline constexpr size_t kSharedSum = size_t{6} << 20;    // V and Y that the threads make together
inline constexpr size_t kSumBytes = size_t{1} << 20;     // V and Y of a block: longer sums are worth more than the cache
inline constexpr size_t kSumInputs = 28;                 // most channels of x that a thread takes at a time
inline constexpr size_t kLargeSum = size_t{1300} << 10;  // sums that should not be kept once per part
inline constexpr size_t kParts = 16;                     // most parts of a weight gradient
inline constexpr size_t kSumsPerPart = 8;                // a part has V and Y of this many times the room of its sum,
inline constexpr size_t kBlocksPerPart = 4;              // or so many blocks

// Parts for V and Y of `all` bytes and a sum of `sum` bytes.
inline size_t count_parts(size_t all, size_t sum) {
  return std::clamp(std::max(all / (kSumsPerPart * sum), divide_up(all, kBlocksPerPart * kSumBytes)), size_t{1},
                    kParts);
}

// Channels of x that a thread takes at a time of a sum that all make together: as even as they can be, and fewer for the
// threads' sake, each with `across` ranges of outputs.
inline size_t inputs_together(size_t channels) { return divide_up(channels, divide_up(channels, kSumInputs)); }
inline size_t inputs_together(size_t channels, size_t across, size_t threads) {
  const size_t most = inputs_together(channels);
  return even_pieces(channels, most / 3, most, across, threads);
}

struct SumPlan {
  size_t v_row, y_row;
  Cut cut;
  bool is_shared;      // V and Y are made together
  Matrices v, y;       // shared
  Matrices s;          // not shared: the sum of the first part
  size_t parts;
  size_t part_blocks;  // blocks in a part
  size_t floats;       // of work

  // With all of the first four known: a sum of `s_rows` rows at each of the points, in at most `most_parts` parts.
  void place(float* work, size_t points, size_t s_rows, size_t most_parts) {
    if (is_shared) {
      v = matrices(work, cut.most_tiles(), v_row);
      y = matrices(work + points * v.point, cut.most_tiles(), y_row);
      floats = points * (v.point + y.point);
    } else {
      s = matrices(work, s_rows, y_row);
      part_blocks = divide_up(cut.blocks(), most_parts);
      parts = divide_up(cut.blocks(), part_blocks);
      floats = parts * points * s.point;
    }
  }
};

}  // namespace obn::convolution::winograd
