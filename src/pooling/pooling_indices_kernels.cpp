// Pooling, the bench: a look at the indices of a backward call, before anything is written.
#include <cstddef>
#include <cstdint>

#include "pooling/pooling_rows.h"

namespace obn::OBN_TARGET::pooling {

namespace {

OBN_INLINE U smaller(U a, U b) { return a < b ? a : b; }

// Some of the n indices (padded with zeros to whole vectors) is not below W·H.
bool has_out_of_range(const Plan& plan, const int32_t* index, size_t n) {
  const U limit = U{} + static_cast<uint32_t>(plan.x.image * plan.y.image);
  I found = I{};
  for (size_t q = 0; q < n; q += kLanes) found |= reinterpret_cast<U>(load(index + q)) >= limit;
  return any(found);
}

// Rows of indices of windows that all have the same number of window rows inside the image.
struct IndexRows {
  const int32_t* index;
  size_t next;         // indices from row to row
  size_t rows;
  size_t plane_rows;   // after so many positions start again: the rows of the next plane
  uint32_t first_row;  // h·W of the first image row under the first row of windows
  uint32_t advance;    // from one row of windows to the next
  uint32_t down;       // from one image row under a window to the next
  size_t under;        // image rows under each
};

// Where an index lies outside its own window, in the windows q, q+1, … of a row: inside, the distance from the first
// column of some window row is below the number of columns; before that column it wraps to a large number.
// kUnder: the number of image rows when it is known at compile time, else 0.
template <size_t kUnder>
OBN_INLINE I is_stray(const Plan& plan, const IndexRows& of, U index, uint32_t first_row, size_t q) {
  const U count = reinterpret_cast<U>(load(plan.column_count + q));
  U distance = index - reinterpret_cast<U>(load(plan.first_column + q)) - first_row;
  U least = distance;
  for (size_t k = 1; k < (kUnder ? kUnder : of.under); ++k) {
    distance -= of.down;
    least = smaller(least, distance);
  }
  return least >= count;
}

template <size_t kUnder>
bool has_stray(const Plan& plan, const IndexRows& of) {
  const size_t windows = static_cast<size_t>(plan.x.windows);
  const int32_t* index = of.index;
  uint32_t first_row = of.first_row;
  size_t left = of.plane_rows;
  const auto move_down = [&]() __attribute__((always_inline)) {
    index += of.next;
    first_row += of.advance;
    if (--left > 0) return;
    left = of.plane_rows;
    first_row = of.first_row;
  };
  I found = I{};
  if (windows >= kLanes) {
    for (size_t p = 0; p < of.rows; ++p, move_down()) {
      const auto look_at = [&](size_t q) __attribute__((always_inline)) {
        found |= is_stray<kUnder>(plan, of, reinterpret_cast<U>(load(index + q)), first_row, q);
      };
      for (size_t q = 0; q < windows - kLanes; q += kLanes) look_at(q);
      look_at(windows - kLanes);
    }
    return any(found);
  }
  for (size_t p = 0; p < of.rows; ++p, move_down()) {
    const size_t room = (of.rows - 1 - p) * of.next + windows;  // from this row to the end of the last
    const I row = room >= kLanes ? load(index) : load_first_indices(index, windows);
    found |= is_stray<kUnder>(plan, of, reinterpret_cast<U>(row), first_row, 0);
  }
  return any(found & (iota() < static_cast<int32_t>(windows)));
}

// Indices from row p of the windows on, `rows` rows that are `next` apart, perhaps of several planes.
bool has_stray_rows(const Plan& plan, int64_t p, size_t rows, const int32_t* index, size_t next) {
  const Axis& y = plan.y;
  const int64_t first = y.first(p);
  IndexRows of;
  of.index = index;
  of.next = next;
  of.rows = rows;
  of.plane_rows = static_cast<size_t>(y.windows);
  of.first_row = static_cast<uint32_t>((y.start(p) + y.dilation * first) * plan.x.image);
  of.advance = static_cast<uint32_t>(y.stride * plan.x.image);
  of.down = static_cast<uint32_t>(y.dilation * plan.x.image);
  of.under = static_cast<size_t>(y.end(p) - first);
  if (of.under == 0) return true;
  return of.under == 2 ? has_stray<2>(plan, of) : of.under == 3 ? has_stray<3>(plan, of) : has_stray<0>(plan, of);
}

// Whole planes of indices one behind the other, where every window is full. Vectors go across the rows of a plane, with
// a table of where its windows begin: rows are often shorter than a vector.
template <size_t kUnder>
bool has_stray_planes(const Plan& plan, size_t planes, const int32_t* index) {
  const size_t windows = static_cast<size_t>(plan.x.windows * plan.y.windows);
  const size_t under = static_cast<size_t>(plan.y.kernel);
  const U count = U{} + static_cast<uint32_t>(plan.x.kernel), down = U{} + static_cast<uint32_t>(plan.x.image);
  const int32_t* first_position = plan.first_position;
  const auto is_stray = [&](I found_index, size_t i) __attribute__((always_inline)) {
    U distance = reinterpret_cast<U>(found_index - load(first_position + i)), least = distance;
    for (size_t k = 1; k < (kUnder ? kUnder : under); ++k) {
      distance -= down;
      least = smaller(least, distance);
    }
    return reinterpret_cast<I>(least >= count);
  };
  const size_t whole = windows / kLanes * kLanes, rest = windows - whole;
  I found = I{}, found_last = I{};
  for (size_t plane = 0; plane < planes; ++plane, index += windows) {
    for (size_t i = 0; i < whole; i += kLanes) found |= is_stray(load(index + i), i);
    if (rest > 0) found_last |= is_stray(load_first_indices(index + whole, rest), whole);
  }
  return any(found | (found_last & (iota() < static_cast<int32_t>(rest))));
}

}  // namespace

// Indices inside their windows are in range, so the range is looked at only in rows with others.
unsigned look_at_indices(const Call& call, const Piece& piece, std::byte* work) {
  const Plan& plan = *call.plan;
  const size_t windows = static_cast<size_t>(plan.x.windows), end = piece.row + piece.rows;
  int32_t* line = reinterpret_cast<int32_t*>(work);  // (line_floats); what lies past a row stays 0, a harmless index
  fill(reinterpret_cast<float*>(line), plan.line_floats, 0.0f);
  // Not worth telling apart: columns between those of a dilated window, and windows outside the image.
  const bool can_tell = plan.function == BNNSPoolingFunctionMax && plan.x.dilation == 1 && !plan.has_empty_columns;
  const bool in_place = call.indices.type == BNNSDataTypeUInt32 && call.indices.x_stride == 1;
  // Several planes may be as good as one with many rows.
  if (can_tell && in_place && piece.rows == static_cast<size_t>(plan.y.windows) && has_full_rows_only(plan) &&
      is_one_stack(call, call.indices, piece.rows)) {
    const std::byte* at = call.indices.at(piece.plane / plan.channels, piece.plane % plan.channels, 0);
    const int32_t* first = reinterpret_cast<const int32_t*>(at);
    const bool found = plan.first_position && call.indices.y_stride == windows
                           ? (plan.y.kernel == 2 ? has_stray_planes<2> : has_stray_planes<0>)(plan, piece.planes, first)
                           : has_stray_rows(plan, 0, piece.planes * piece.rows, first, call.indices.y_stride);
    if (!found) return 0;
  }
  unsigned found = 0;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    for (size_t p = piece.row, together = 1; p < end; p += together) {
      const int64_t row = static_cast<int64_t>(p);
      const int32_t* index = reinterpret_cast<const int32_t*>(call.indices.at(n, c, p));
      if (in_place) {
        together = rows_together(plan, row, end - p);
      } else {
        load_indices(call.indices, n, c, p, windows, line);
        index = line;
      }
      if (can_tell && !has_stray_rows(plan, row, together, index, call.indices.y_stride)) continue;
      found |= kIndexStray;
      for (size_t r = p; r < p + together; ++r) {
        load_indices(call.indices, n, c, r, windows, line);
        if (has_out_of_range(plan, line, windows)) found |= kIndexOutOfRange;
      }
    }
  }
  return found;
}

}  // namespace obn::OBN_TARGET::pooling
