// Direct convolution, the copies of blocks of the input that products read: compiled once per target.
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "convolution/direct/direct_frame.h"

namespace obn::OBN_TARGET::convolution::direct {

namespace {

// Which of the n values from `start` on, `step` apart, lie in [0, in).
struct Range {
  size_t low, high;
};
OBN_INLINE int64_t steps_to(int64_t distance, int64_t step) {  // without a division where that is easy
  return step == 1 ? distance : step == 2 ? (distance + 1) >> 1 : (distance + step - 1) / step;
}
OBN_INLINE Range range_of(int64_t start, int64_t step, int64_t in, size_t n) {
  const int64_t length = static_cast<int64_t>(n);
  int64_t low = start >= 0 ? 0 : steps_to(-start, step);
  int64_t high = start >= in ? 0 : steps_to(in - start, step);
  low = low < length ? low : length;
  high = high < low ? low : high < length ? high : length;
  return {static_cast<size_t>(low), static_cast<size_t>(high)};
}

// kLanes columns of `rows` rows: to[i] = from[i·step] for the columns in `inside`, else 0.
OBN_INLINE void copy_columns(const float* from, size_t from_row, size_t step, Range inside, size_t rows, float* to,
                             size_t pitch) {
  const size_t low = inside.low, high = inside.high;
  if (low >= high) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, F{});
  } else if (step == 1 && high - low == kLanes) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, load(from + r * from_row));
  } else if (step == 1) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, load_between(from + r * from_row, low, high));
  } else if (step == 2) {
    // Values 2·low … 2·(high - 1), as lanes of two vectors.
    const size_t first = 2 * low, last = 2 * high - 1;
    const size_t low0 = smaller(first, kLanes), high0 = smaller(last, kLanes);
    const size_t low1 = first < kLanes ? 0 : first - kLanes, high1 = last < kLanes ? 0 : last - kLanes;
    for (size_t r = 0; r < rows; ++r) {
      const float* p = from + r * from_row;
      F even, odd;
      split_pairs(load_between(p, low0, high0), load_between(p + kLanes, smaller(low1, high1), high1), &even, &odd);
      store(to + r * pitch, even);
    }
  } else {
    for (size_t r = 0; r < rows; ++r) {
      store(to + r * pitch, F{});
      for (size_t i = low; i < high; ++i) to[r * pitch + i] = from[r * from_row + i * step];
    }
  }
}

// One slot of a frame: `rows` rows of b.pitch values that start at value (v, u) of a plane and are step apart in it.
// Whole vectors are written, past the end of a row by less than kLanes: the last columns come first and the rows in
// order, so that what spills over is overwritten.
OBN_INLINE void copy_slot(const Taps& x, const Taps& y, const float* plane, size_t plane_row, int64_t v, int64_t u,
                          size_t rows, size_t pitch, float* to) {
  const Range inside = range_of(v, y.step, y.in, rows), across = range_of(u, x.step, x.in, pitch);
  const size_t step = static_cast<size_t>(x.step), from_row = static_cast<size_t>(y.step) * plane_row;
  const size_t count = inside.high - inside.low;
  const float* from = plane + (v + static_cast<int64_t>(inside.low) * y.step) * static_cast<int64_t>(plane_row) + u;
  for (size_t i = 0; i < inside.low * pitch; i += kLanes) store(to + i, F{});
  float* body = to + inside.low * pitch;
  size_t j = 0;
  if (count == 1 && step == 1 && across.low == 0) {  // one long row: in its own order, which the machine expects
    for (; j + kLanes <= across.high; j += kLanes) store(body + j, load(from + j));
  }
  const size_t done = j;
  for (j = round_up(pitch, kLanes); count > 0 && j > done;) {
    j -= kLanes;
    const Range columns = {across.low > j ? smaller(across.low - j, kLanes) : 0,
                           across.high > j ? smaller(across.high - j, kLanes) : 0};
    copy_columns(from + j * step, from_row, step, columns, count, body + j, pitch);
  }
  for (size_t i = inside.high * pitch; i < rows * pitch; i += kLanes) store(to + i, F{});
}

// Both remainders of a row with step 2 at once: value (v, u) of the plane begins those of remainder 0, (v, u + 1) those
// of remainder 1. Only for a pitch of whole vectors, where nothing spills over.
OBN_INLINE void copy_pair_of_slots(const Taps& x, const Taps& y, const float* plane, size_t plane_row, int64_t v,
                                   int64_t u, size_t rows, size_t pitch, float* to_even, float* to_odd) {
  const Range inside = range_of(v, y.step, y.in, rows), across = range_of(u, 1, x.in, 2 * pitch);
  const size_t from_row = static_cast<size_t>(y.step) * plane_row;
  const float* from = plane + v * static_cast<int64_t>(plane_row) + u;
  for (size_t j = 0; j < pitch; j += kLanes) {
    size_t low[2], high[2];  // lanes of two vectors
    for (size_t i = 0; i < 2; ++i) {
      const size_t start = 2 * j + i * kLanes;
      high[i] = across.high > start ? smaller(across.high - start, kLanes) : 0;
      low[i] = across.low > start ? smaller(across.low - start, high[i]) : 0;
    }
    size_t r = 0;
    for (; r < inside.low; ++r) {
      store(to_even + r * pitch + j, F{});
      store(to_odd + r * pitch + j, F{});
    }
    for (; r < inside.high; ++r) {
      const float* p = from + r * from_row + 2 * j;
      F even, odd;
      split_pairs(load_between(p, low[0], high[0]), load_between(p + kLanes, low[1], high[1]), &even, &odd);
      store(to_even + r * pitch + j, even);
      store(to_odd + r * pitch + j, odd);
    }
    for (; r < rows; ++r) {
      store(to_even + r * pitch + j, F{});
      store(to_odd + r * pitch + j, F{});
    }
  }
}

}  // namespace

void copy_frame(const Taps& x, const Taps& y, const Block& b, const float* planes, size_t plane, size_t plane_row,
                size_t channels, size_t row, size_t column, float* frame) {
  const size_t rows = b.slot / b.pitch;
  const int64_t v = y.step * (static_cast<int64_t>(row) + y.first);
  const int64_t u = x.step * (static_cast<int64_t>(column) + x.first);
  const int64_t first = v * static_cast<int64_t>(plane_row) + u;  // where the block begins in a plane
  const bool in_pairs = x.step == 2 && x.slots == 2 && b.pitch % kLanes == 0;
  const Range height = range_of(v, 1, y.in, rows * static_cast<size_t>(y.step));
  const Range width = range_of(u, 1, x.in, b.pitch * static_cast<size_t>(x.step));
  for (size_t c = 0; c < channels; ++c) {
    if (c + 1 < channels) {
      for (size_t r = height.low; r < height.high; ++r) {
        const float* next = planes + (c + 1) * plane + first + static_cast<int64_t>(r * plane_row);
        for (size_t i = width.low; i < width.high; i += kLine) __builtin_prefetch(next + i);
      }
    }
    float* to = frame + c * b.channel;
    for (size_t sy = 0; sy < y.slots; ++sy) {
      if (in_pairs) {
        const size_t odd = x.remainders[0] == 1 ? 0 : b.slot;
        copy_pair_of_slots(x, y, planes + c * plane, plane_row, v + y.remainders[sy], u, rows, b.pitch,
                           to + (b.slot - odd), to + odd);
        to += 2 * b.slot;
        continue;
      }
      for (size_t sx = 0; sx < x.slots; ++sx, to += b.slot)
        copy_slot(x, y, planes + c * plane, plane_row, v + y.remainders[sy], u + x.remainders[sx], rows, b.pitch, to);
    }
  }
  fill_zero(frame + channels * b.channel, kFrameSlack);
}

}  // namespace obn::OBN_TARGET::convolution::direct
