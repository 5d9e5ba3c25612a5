// What the kernel files of pooling share: scratch, rows from memory, and the rows of windows computed from them. Kernel
// files only (see simd/vec.h).
//
// Letters as in pooling.h: image (H, W), windows (P, Q). All computation is on rows of float32 in scratch; other types
// and strides are converted when a row comes in and when it leaves. Window loops run over whole vectors and may write
// up to kPad values past a row of scratch: rows are produced in order, so the next row overwrites what was spilled.
//
// Columns. An image row is split by column mod sx (its residues), each residue with its padding around it; column kx of
// the windows q, q+1, … is then one run (Column::at), whatever kernel, stride, dilation and padding are. Backward is
// the mirror image: value j of a residue gathers the gradient of the windows j - shift over the columns of that one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "pooling/pooling.h"
#include "simd/convert.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::pooling {

using obn::pooling::Axis;
using obn::pooling::Call;
using obn::pooling::Column;
using obn::pooling::Kernels;
using obn::pooling::kIndexOutOfRange;
using obn::pooling::kIndexStray;
using obn::pooling::kOversAtOnce;
using obn::pooling::kPad;
using obn::pooling::kRowsAtOnce;
using obn::pooling::Piece;
using obn::pooling::Plan;
using obn::pooling::Tensor;

// ---- scratch ----

// Carves blocks of floats, each aligned to a cache line, out of the thread's scratch (choose_rows counted them).
struct Scratch {
  float* next;

  [[gnu::always_inline]] inline Scratch() : next(reinterpret_cast<float*>(obn::scratch())) {}
  [[gnu::always_inline]] inline float* take(size_t floats) {
    float* block = next;
    next += round_up(floats, kPad);
    return block;
  }
  [[gnu::always_inline]] inline int32_t* take_indices(size_t n) { return reinterpret_cast<int32_t*>(take(n)); }
};

OBN_INLINE void fill(float* p, size_t n, float value) {
  const F v = splat(value);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(p + i, v);
  for (; i < n; ++i) p[i] = value;
}

// ---- rows from memory ----

// Rows in scratch have room for whole vectors: a short copy is a few of them instead of a call, with zeros behind it.

// The first n < kLanes values, then zeros.
OBN_INLINE I load_first_indices(const int32_t* p, size_t n) {
#if defined(__AVX512F__)
  return reinterpret_cast<I>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1), p));
#else
  I v{};
  for (size_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

// Values i, i+1, … of a row of w, `rest` past its end.
OBN_INLINE F load_clipped(const float* row, size_t i, size_t w, F rest) {
  if (i + kLanes <= w) return load(row + i);
  return i < w ? load_first(row + i, w - i, rest) : rest;
}

// Row `row` of plane (n, c) as float32, to (columns).
OBN_INLINE void load_line(const Tensor& tensor, size_t n, size_t c, size_t row, size_t columns, float* to) {
  const std::byte* at = tensor.at(n, c, row);
  if (tensor.type != BNNSDataTypeFloat32 || tensor.x_stride != 1) {
    load_row(tensor.type, at, tensor.x_stride, columns, to);
    return;
  }
  const float* from = reinterpret_cast<const float*>(at);
  for (size_t i = 0; i < columns; i += kLanes) store(to + i, load_clipped(from, i, columns, F{}));
}

// The same for indices, as 32-bit numbers; what does not fit becomes -1, which is never below W·H.
OBN_INLINE void load_indices(const Tensor& tensor, size_t n, size_t c, size_t row, size_t columns, int32_t* to) {
  const std::byte* at = tensor.at(n, c, row);
  if (tensor.type == BNNSDataTypeUInt32 && tensor.x_stride == 1) {
    const int32_t* from = reinterpret_cast<const int32_t*>(at);
    size_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) store(to + i, load(from + i));
    if (i < columns) store(to + i, load_first_indices(from + i, columns - i));
    return;
  }
  if (tensor.type == BNNSDataTypeUInt32) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(at);
    for (size_t i = 0; i < columns; ++i) to[i] = static_cast<int32_t>(from[i * tensor.x_stride]);
    return;
  }
  const uint64_t* from = reinterpret_cast<const uint64_t*>(at);
  for (size_t i = 0; i < columns; ++i) {
    const uint64_t index = from[i * tensor.x_stride];
    to[i] = index > 0x7fffffff ? -1 : static_cast<int32_t>(index);
  }
}

// The planes of a tensor lie one after the other as if they were one plane: the row `rows` of one is row 0 of the next.
OBN_INLINE bool is_one_stack(const Call& call, const Tensor& tensor, size_t rows) {
  return tensor.c_stride == rows * tensor.y_stride &&
         (call.batch == 1 || tensor.n_stride == call.plan->channels * tensor.c_stride);
}
// No window row hangs over the edge of the image or into the rows of another.
OBN_INLINE bool has_full_rows_only(const Plan& plan) {
  return plan.full_begin == 0 && plan.full_end == plan.y.windows && plan.y.dilation == 1 &&
         plan.y.kernel <= plan.y.stride;
}

// ---- to memory ----

// stage (rows, columns) packed becomes, or is added to, the rows from `row` of plane (n, c); line (columns) is scratch.
void put_rows(const Tensor& tensor, size_t n, size_t c, size_t row, size_t rows, size_t columns, const float* stage,
              float* line);

// A run of 4-byte values that leaves past the caches in pieces. Only whole cache lines go out; what is left of the last
// one waits for the next piece: arrays seldom begin on a line, and lines written in two halves made the forward pass of
// 2x2 maxima take about a sixth longer (3x3: a twentieth).
struct Outlet {
  static constexpr size_t kLine = 16;  // values in a cache line

  float* stage;             // room for a piece, and for what waits in front of it: so pieces always begin at a line
  std::byte* to = nullptr;  // where the first value that waits goes
  size_t kept = 0;          // values that wait, fewer than kLine

  [[gnu::always_inline]] inline explicit Outlet(float* block) : stage(block + kLine) {}

  // The caller puts values that go to `destination` into the stage.
  [[gnu::always_inline]] inline void lead_to(std::byte* destination) {
    if (to + kept * sizeof(float) == destination) return;
    flush();
    to = destination;
  }
  // n values have been put there.
  [[gnu::always_inline]] inline void put(size_t n) {
    const float* from = stage - kept;
    const size_t total = kept + n;
    const size_t to_line = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64 / sizeof(float);
    const size_t head = to_line < total ? to_line : total, end = head + (total - head) / kLine * kLine;
    if (head > 0) __builtin_memcpy(to, from, head * sizeof(float));
    float* line = reinterpret_cast<float*>(to);
    for (size_t i = head; i < end; i += kLanes) stream(line + i, load(from + i));
    kept = total - end;
    for (size_t i = 0; i < kLine; i += kLanes) store(stage - kLine + i, load(stage + n - kLine + i));
    to += end * sizeof(float);
  }
  [[gnu::always_inline]] inline void flush() {
    if (kept > 0) __builtin_memcpy(to, stage - kept, kept * sizeof(float));
    kept = 0;
  }
};

// ---- rows of windows ----

// How the windows of a row fill vectors.
enum class Fill {
  whole,    // at least one vector of windows, all with two columns inside the image
  narrow,   // the same with less than one vector (AVX-512 only, which loads parts of vectors)
  clipped,  // the rest
};

template <auto kValue>
struct Is {
  static constexpr auto value = kValue;
};
// Calls visit(Is<fill>).
template <class Visit>
OBN_INLINE void with_fill(Fill fill, const Visit& visit) {
  if (fill == Fill::whole) {
    visit(Is<Fill::whole>{});
  } else if (fill == Fill::narrow) {
    visit(Is<Fill::narrow>{});
  } else {
    visit(Is<Fill::clipped>{});
  }
}

// Puts down what a vector makes: narrow ones the values to keep, clipped ones no more than there is room for.
template <Fill kFill>
OBN_INLINE void put(float* to, F v, [[maybe_unused]] Keep keep, size_t room) {
#if defined(__AVX512F__)
  if constexpr (kFill == Fill::narrow) {
    _mm512_mask_storeu_ps(to, keep, reinterpret_cast<__m512>(v));
    return;
  }
#endif
  if (kFill == Fill::whole || room >= kLanes) [[likely]] {
    store(to, v);
  } else {
    store_first(to, v, room);
  }
}

// What one row of windows leaves for the next lies in slots of a vector each. Where the last vector of a row ends with
// the row and visits some windows again, its slot is nevertheless one of its own: a load that takes its parts from two
// stores has to wait for both to reach the cache, which takes long behind streaming stores.
OBN_INLINE size_t slot_of_last(size_t windows) { return (windows - 1) / kLanes * kLanes; }

// Windows can be taken from the image as it lies, two columns at a time.
OBN_INLINE bool is_in_pairs(const Plan& plan, const Tensor& x) {
  return plan.is_in_pairs && x.has_float_rows();
}

// What the windows of two neighbouring rows make of the image row under both.
struct SharedRow {
  float* value;   // (Q + kPad), by slots
  int32_t* code;  // (Q + kPad)
};

// The last rows of one plane that were split, ready for windows.
struct SplitRows {
  static constexpr int64_t kNone = INT64_MIN;

  const Plan& plan;
  float* ring;    // (ring_rows, row_floats), padding around each residue
  int32_t* held;  // (ring_rows) which image row a slot holds, -1 none
  int32_t* nan;   // (ring_rows) whether that row has a NaN (Max only)
  float* line;    // (line_floats) a converted row
  float padding;
  bool in_pairs = false;  // windows are taken straight from the image, the ring stays unused
  SharedRow shared[2] = {};    // in pairs: the first is of shared_row, the second has room for the next
  int64_t shared_row = kNone;
  const Tensor* x = nullptr;
  size_t n = 0;
  size_t c = 0;
  bool is_filled = false;  // with padding, once

  [[gnu::always_inline]] inline SplitRows(const Plan& p, Scratch* scratch)
      : plan(p), ring(nullptr), held(scratch->take_indices(p.ring_rows)), nan(scratch->take_indices(p.ring_rows)),
        line(nullptr), padding(p.function == BNNSPoolingFunctionMax ? -__builtin_inff() : 0.0f) {
    ring = scratch->take(p.ring_rows * p.row_floats);
    line = scratch->take(p.line_floats);
    if (!p.is_in_pairs) return;
    for (SharedRow& row : shared) row = {scratch->take(p.slot_floats), scratch->take_indices(p.slot_floats)};
  }
  [[gnu::always_inline]] inline void start_plane(const Tensor& tensor, size_t sample, size_t channel) {
    x = &tensor;
    n = sample;
    c = channel;
    in_pairs = is_in_pairs(plan, tensor);
    shared_row = kNone;
    if (in_pairs) return;
    if (!is_filled) fill(ring, plan.ring_rows * plan.row_floats, padding);
    is_filled = true;
    for (size_t i = 0; i < plan.ring_rows; ++i) held[i] = -1;
  }
  [[gnu::always_inline]] inline void swap_shared() {
    const SharedRow first = shared[0];
    shared[0] = shared[1];
    shared[1] = first;
  }
};

// How many of the `most` rows of windows from p on a pass may take together.
OBN_INLINE size_t rows_together(const Plan& plan, int64_t p, size_t most) {
  if (p < plan.full_begin || p >= plan.full_end) return 1;
  const size_t left = static_cast<size_t>(plan.full_end - p);
  return left < most ? left : most;
}

// y (count, Q) = function over the windows of `count` rows from p on, and index (count, Q) for Max; more than one row
// only where windows are taken from the image in pairs, and then no more than rows_together, or those of several planes
// that are one stack with full rows only. Nothing past the last value is written then, and index may be one row
// (keeps_index false).
void window_rows(SplitRows& rows, int64_t p, size_t count, float* y, int32_t* index, bool keeps_index = true);

// z (rows, Q) = sums / what an average divides by in window row p, and as well in the rows - 1 below it.
void divide_by_weights(const Plan& plan, int64_t p, size_t rows, const float* sums, float* z);

// ---- indices (pooling_indices_kernels.cpp) ----

// Indices inside their windows are in range, so the range is looked at only in rows with others.
unsigned look_at_indices(const Call& call, const Piece& piece, std::byte* work);

// ---- forward (pooling_kernels.cpp) ----

void forward_inverse(void* context, size_t i);
void forward_global(void* context, size_t i);
void forward_in_place(void* context, size_t i);
void forward_windows(void* context, size_t i);

}  // namespace obn::OBN_TARGET::pooling
