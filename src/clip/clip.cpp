// Entry points of clipping and the L2 norm: check, then walk over rows. Letters as in clip.h.
#include "clip/clip.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/interrupt.h"
#include "base/loops.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/bnns/optimizer.h"

namespace obn {

namespace clip {

int check_bounds(float low, float high) {
  if (low <= high) return 0;
  return fail("bounds: expected low <= high; got %g and %g", static_cast<double>(low), static_cast<double>(high));
}

int check_max_norm(float max_norm, float use_norm) {
  if (!(max_norm >= 0.0f)) return fail("threshold: expected at least 0; got %g", static_cast<double>(max_norm));
  if (!(use_norm >= 0.0f)) return fail("global_norm: expected at least 0; got %g", static_cast<double>(use_norm));
  return 0;
}

namespace {

constexpr size_t kPiece = 32768;   // values of a piece of parallel work, about
constexpr size_t kMaxPieces = 64;  // so that partial sums stay few
constexpr size_t kBlock = 4096;    // values of a row handled at a time: those of half types are converted in scratch

// ---- one tensor and the places of its norms ----

enum { kX, kY, kSum };  // tensors of the loops: input, output, and place of the slice among the norms

struct Slices {
  Loops<3> loops;
  size_t kept = 1;       // slices
  size_t total = 1;      // values
  size_t cut = 0;        // the axis that pieces are cut along
  size_t pieces = 1;
  bool is_shared = false;  // pieces meet in one slice, so each has its own `kept` sums
  BNNSDataType x_type = BNNSDataTypeFloat32, y_type = BNNSDataTypeFloat32;
  std::byte *x = nullptr, *y = nullptr;

  // Partial sums that add_up() needs.
  size_t partial_sums() const { return is_shared ? pieces * kept : 0; }
  void make(const View& x_view, const View& y_view, const bool* is_chosen);
  template <class Body>
  void rows(size_t piece, const Body& body) const;
};

// is_chosen (rank), by axis of the view; NULL: all of them. y has the extents of x.
void Slices::make(const View& x_view, const View& y_view, const bool* is_chosen) {
  x_type = x_view.type;
  y_type = y_view.type;
  x = static_cast<std::byte*>(x_view.data);
  y = static_cast<std::byte*>(y_view.data);
  loops.tensors = 3;
  total = x_view.count;
  for (size_t k = 0; k < x_view.rank; ++k) {
    const bool chosen = !is_chosen || is_chosen[k];
    const size_t strides[] = {x_view.stride[k], y_view.stride[k], chosen ? 0 : kept};
    loops.add(x_view.extent[k], strides);
    if (!chosen) kept *= x_view.extent[k];
  }
  loops.finish();

  // Along a kept axis pieces have slices of their own; where there is none that is long enough, along the longest.
  const size_t wanted = std::clamp(total / kPiece, size_t{1}, kMaxPieces);
  size_t longest = 0, longest_kept = loops.rank;
  for (size_t k = 0; k < loops.rank; ++k) {
    if (loops.extent[k] > loops.extent[longest]) longest = k;
    if (loops.stride[k][kSum] == 0) continue;
    if (longest_kept == loops.rank || loops.extent[k] > loops.extent[longest_kept]) longest_kept = k;
  }
  const bool along_kept = longest_kept < loops.rank && loops.extent[longest_kept] >= std::min<size_t>(wanted, 8);
  cut = along_kept ? longest_kept : longest;
  is_shared = loops.stride[cut][kSum] == 0;
  pieces = std::min(wanted, loops.extent[cut]);
}

// Calls body(x, x_stride, y, y_stride, sum, sum_stride, n) for every block of the piece's rows; offsets count values.
template <class Body>
void Slices::rows(size_t piece, const Body& body) const {
  Loops<3> own = loops;
  const size_t first = loops.extent[cut] * piece / pieces, last = loops.extent[cut] * (piece + 1) / pieces;
  own.extent[cut] = last - first;
  const size_t* step = loops.stride[cut];
  const size_t start[] = {first * step[kX], first * step[kY], first * step[kSum]};
  size_t count = 1;
  for (size_t k = 1; k < own.rank; ++k) count *= own.extent[k];
  const size_t n = own.extent[0], *stride = own.stride[0];
  Position<3> at(own, 1);
  at.seek(0);
  for (; count > 0; --count, at.step())
    for (size_t i = 0; i < n; i += kBlock)
      body(start[kX] + at.offset(kX) + i * stride[kX], stride[kX], start[kY] + at.offset(kY) + i * stride[kY],
           stride[kY], start[kSum] + at.offset(kSum) + i * stride[kSum], stride[kSum] != 0, std::min(kBlock, n - i));
}

// The row at `offset` as packed floats: itself, or a copy in `buffer`.
const float* row_of(const Kernels& kernels, const std::byte* data, BNNSDataType type, size_t offset, size_t stride,
                    size_t n, float* buffer) {
  const std::byte* p = data + offset * bytes_of(type);
  if (type == BNNSDataTypeFloat32 && stride == 1) return reinterpret_cast<const float*>(p);
  kernels.load(type, p, stride, n, buffer);
  return buffer;
}

// sums (kept): of the squares of every slice; partial (s.partial_sums()) is scratch.
void add_up(const Slices& s, double* sums, double* partial) {
  const Kernels& kernels = targets.best();
  std::fill_n(s.is_shared ? partial : sums, s.is_shared ? s.partial_sums() : s.kept, 0.0);
  parallel(s.pieces, threads_for(0), kUsualPiece * s.pieces, [&](size_t piece) {
    double* own = s.is_shared ? partial + piece * s.kept : sums;
    float* buffer = reinterpret_cast<float*>(scratch());
    s.rows(piece, [&](size_t x, size_t x_stride, size_t, size_t, size_t sum, bool sums_move, size_t n) {
      const float* row = row_of(kernels, s.x, s.x_type, x, x_stride, n, buffer);
      if (sums_move) {
        kernels.add_squares(row, own + sum, n);
      } else {
        own[sum] += kernels.sum_squares(row, n);
      }
    });
  });
  if (!s.is_shared) return;
  for (size_t k = 0; k < s.kept; ++k) {
    double sum = 0.0;
    for (size_t piece = 0; piece < s.pieces; ++piece) sum += partial[piece * s.kept + k];
    sums[k] = sum;
  }
}

// Rows of x through `change(row, sum, sums_move, y, n)` to y; with `reads_output` y holds what was there.
template <class Change>
void change_rows(const Slices& s, bool reads_output, const Change& change) {
  const Kernels& kernels = targets.best();
  parallel(s.pieces, threads_for(0), kUsualPiece * s.pieces, [&](size_t piece) {
    float* buffer = reinterpret_cast<float*>(scratch());
    float* y_buffer = buffer + kBlock;
    s.rows(piece, [&](size_t x, size_t x_stride, size_t y, size_t y_stride, size_t sum, bool sums_move, size_t n) {
      const float* row = row_of(kernels, s.x, s.x_type, x, x_stride, n, buffer);
      std::byte* to = s.y + y * bytes_of(s.y_type);
      if (s.y_type == BNNSDataTypeFloat32 && y_stride == 1)
        return change(row, sum, sums_move, reinterpret_cast<float*>(to), n);
      if (reads_output) kernels.load(s.y_type, to, y_stride, n, y_buffer);
      change(row, sum, sums_move, y_buffer, n);
      kernels.store(s.y_type, to, y_stride, n, y_buffer);
    });
  });
}

void scale_rows(const Slices& s, const double* factors, bool accumulate) {
  const Kernels& kernels = targets.best();
  change_rows(s, accumulate, [&](const float* row, size_t sum, bool sums_move, float* y, size_t n) {
    kernels.scale(row, factors + sum, sums_move, y, accumulate, n);
  });
}

// ---- checks ----

int read_tensor(const BNNSNDArrayDescriptor* descriptor, Access access, const char* argument, View* view) {
  if (!descriptor) return fail("%s: expected a descriptor; got NULL", argument);
  if (read_view(*descriptor, access, argument, view) != 0) return -1;
  if (view->layout == BNNSDataLayoutFullyConnectedSparse || view->layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("%s: expected a layout of plain values; got %s", argument, obn::name_of(view->layout));
  if (!is_float(view->type)) return fail("%s: expected a float type; got %s", argument, obn::name_of(view->type));
  size_t only_sample;
  return read_batch(*view, view->data, 1, 0, access, argument, &only_sample);
}

// Output like the input; the same place, or memory apart.
int read_pair(const BNNSNDArrayDescriptor* dest, const BNNSNDArrayDescriptor* src, View* x, View* y) {
  if (read_tensor(src, Access::read, "x", x) != 0) return -1;
  if (!dest) return fail("out: expected a descriptor; got NULL");
  size_t only_sample;
  if (read_gradient(*dest, *x, Access::write, 1, 0, "out", y, &only_sample) != 0) return -1;
  bool is_same_place = x->data == y->data;
  for (size_t k = 0; is_same_place && k < x->rank; ++k)
    is_same_place = x->extent[k] == 1 || x->stride[k] == y->stride[k];
  return is_same_place ? 0 : check_disjoint(*y, y->data, 0, "out", *x, x->data, 0, "x", 1);
}

// Memory of one array of several, for the search of overlaps.
struct Entry {
  uintptr_t first, end;
  size_t pair;
  bool is_written;
};

// Both are cut alike along their slowest axis, and each has its own part of every step: slices of one larger array.
bool take_turns(const View& a, const View& b) {
  const auto cut = [](View* view, size_t* step) {
    size_t axis = view->rank - 1;
    while (axis > 0 && view->extent[axis] == 1) --axis;
    *step = view->stride[axis];
    view->span -= (view->extent[axis] - 1) * *step;
    return view->extent[axis];
  };
  View of_a = a, of_b = b;
  size_t a_step, b_step;
  const size_t count = cut(&of_a, &a_step);
  return count == cut(&of_b, &b_step) && disjoint(of_a, a.data, a_step, of_b, b.data, b_step, count);
}

// What one pair writes lies apart from the arrays of all others. entries: 2 · count.
int check_pairs_apart(BNNSNDArrayDescriptor** dest, const BNNSNDArrayDescriptor** src, size_t count, Entry* entries) {
  const auto read = [&](const Entry& entry) {
    View x, y;
    read_pair(dest[entry.pair], src[entry.pair], &x, &y);  // was good before
    return entry.is_written ? y : x;
  };
  for (size_t i = 0; i < 2 * count; ++i) {
    entries[i] = {0, 0, i / 2, i % 2 == 1};
    const View view = read(entries[i]);
    entries[i].first = reinterpret_cast<uintptr_t>(view.data);
    entries[i].end = entries[i].first + view.span * bytes_of(view.type);
  }
  std::sort(entries, entries + 2 * count, [](const Entry& a, const Entry& b) { return a.first < b.first; });
  for (const Entry* a = entries; a < entries + 2 * count; ++a) {
    for (const Entry* b = a + 1; b < entries + 2 * count && b->first < a->end; ++b) {
      if (a->pair == b->pair || (!a->is_written && !b->is_written) || take_turns(read(*a), read(*b))) continue;
      return fail("out: expected memory apart from the other arrays; %s[%zu] and %s[%zu] overlap",
                  a->is_written ? "out" : "xs", a->pair, b->is_written ? "out" : "xs", b->pair);
    }
  }
  return 0;
}

// Bit k of axis_flags is the k-th coordinate of the tuple: for a RowMajorMatrix (row, column) = size[1], size[0], for
// every other layout size[k] (docs/interface/descriptors.md, section 5).
size_t size_of_flag(const View& view, size_t bit) {
  return view.layout == BNNSDataLayoutRowMajorMatrix ? 1 - bit : bit;
}

// is_chosen (rank), by axis of the view.
int read_axes(const View& view, uint32_t axis_flags, bool* is_chosen) {
  if (axis_flags >> view.rank)
    return fail("axes: expected bits 0 to %zu; got 0x%x", view.rank - 1, static_cast<unsigned>(axis_flags));
  for (size_t bit = 0; bit < view.rank; ++bit)
    is_chosen[view.axis_of_size[size_of_flag(view, bit)]] = axis_flags == 0 || (axis_flags >> bit & 1);
  return 0;
}

// The norms' tensor against the kept axes of x: size[] without the chosen entries; one value when none is left.
// stride (rank of x): that of the norms along each axis of x, 0 along the chosen ones.
int pair_norms(const View& x, const bool* is_chosen, const View& norms, const char* argument, size_t* stride) {
  std::fill_n(stride, x.rank, size_t{0});
  size_t next = 0, expected[BNNS_MAX_TENSOR_DIMENSION];
  for (size_t i = 0; i < x.rank; ++i) {
    const size_t axis = x.axis_of_size[i];
    if (is_chosen[axis]) continue;
    expected[next] = x.extent[axis];
    if (next < norms.rank) stride[axis] = norms.stride[norms.axis_of_size[next]];
    ++next;
  }
  if (next == 0) expected[next++] = 1;
  bool same = next == norms.rank;
  for (size_t i = 0; same && i < next; ++i) same = norms.extent[norms.axis_of_size[i]] == expected[i];
  if (same) return 0;
  char text[128];
  size_t used = 0;
  for (size_t i = 0; i < next && used < sizeof text; ++i)
    used += static_cast<size_t>(std::snprintf(text + used, sizeof text - used, "%s%zu", i ? ", " : "", expected[i]));
  ShapeText got;
  return fail("%s: expected the axes that are left, size (%s); got %s in layout %s", argument, text,
              shape_text(norms, &got), obn::name_of(norms.layout));
}

// Where each of the `kept` norms lies in their own tensor.
template <class Body>  // void body(size_t k, size_t offset)
void each_norm(const View& x, const bool* is_chosen, const size_t* stride, const Body& body) {
  Loops<1> loops;
  loops.tensors = 1;
  size_t kept = 1;
  for (size_t k = 0; k < x.rank; ++k) {
    if (is_chosen[k]) continue;
    kept *= x.extent[k];
    loops.add(x.extent[k], stride + k);
  }
  loops.finish();
  Position<1> at(loops, 0);
  at.seek(0);
  for (size_t k = 0; k < kept; ++k, at.step()) body(k, at.offset(0));
}

int check_norm_type(BNNSNormType type) {
  if (type == BNNSL2Norm) return 0;
  return fail("norm_type: expected L2 (1); got %u", static_cast<unsigned>(type));
}

}  // namespace
}  // namespace clip
}  // namespace obn

using namespace obn;
using namespace obn::clip;

extern "C" {

int BNNSClipByValue(BNNSNDArrayDescriptor* dest, const BNNSNDArrayDescriptor* src, float min_val, float max_val) {
  View x, y;
  if (check_bounds(min_val, max_val) != 0 || read_pair(dest, src, &x, &y) != 0 || !scratch()) return -1;
  Slices s;
  s.make(x, y, nullptr);
  const Kernels& kernels = targets.best();
  return interruptible(nullptr, [&] {
    change_rows(s, false, [&](const float* row, size_t, bool, float* to, size_t n) {
      kernels.clamp(row, min_val, max_val, to, n);
    });
    return 0;
  });
}

int BNNSClipByNorm(BNNSNDArrayDescriptor* dest, const BNNSNDArrayDescriptor* src, float max_norm,
                   uint32_t axis_flags) {
  View x, y;
  bool is_chosen[BNNS_MAX_TENSOR_DIMENSION];
  if (check_max_norm(max_norm, 0.0f) != 0 || read_pair(dest, src, &x, &y) != 0 ||
      read_axes(x, axis_flags, is_chosen) != 0 || !scratch())
    return -1;
  Slices s;
  s.make(x, y, is_chosen);
  double* sums = reinterpret_cast<double*>(workspace((s.kept + s.partial_sums()) * sizeof(double)));
  if (!sums) return -1;
  return interruptible(nullptr, [&] {
    add_up(s, sums, sums + s.kept);
    for (size_t k = 0; k < s.kept; ++k) sums[k] = factor_of(std::sqrt(sums[k]), static_cast<double>(max_norm));
    scale_rows(s, sums, false);
    return 0;
  });
}

int BNNSClipByGlobalNorm(BNNSNDArrayDescriptor** dest, const BNNSNDArrayDescriptor** src, size_t count, float max_norm,
                         float use_norm) {
  if (check_max_norm(max_norm, use_norm) != 0) return -1;
  if (count == 0) return 0;
  if (!dest || !src) return fail("%s: expected an array of descriptors; got NULL", src ? "out" : "xs");
  size_t most = 0;
  View x, y;
  for (size_t i = 0; i < count; ++i) {
    if (read_pair(dest[i], src[i], &x, &y) != 0) return -1;
    Slices s;
    s.make(x, y, nullptr);
    most = std::max(most, s.partial_sums());
  }
  auto* entries = reinterpret_cast<Entry*>(workspace(2 * count * sizeof(Entry) + most * sizeof(double)));
  if (!entries || !scratch() || check_pairs_apart(dest, src, count, entries) != 0) return -1;
  double* partial = reinterpret_cast<double*>(entries + 2 * count);
  const auto each = [&](const auto& body) {
    for (size_t i = 0; i < count; ++i) {
      read_pair(dest[i], src[i], &x, &y);  // was good before
      Slices s;
      s.make(x, y, nullptr);
      body(s);
    }
  };
  return interruptible(nullptr, [&] {
    double norm = static_cast<double>(use_norm);
    if (use_norm == 0.0f) {
      double total = 0.0;
      each([&](const Slices& s) {
        double sum;
        add_up(s, &sum, partial);
        total += sum;
      });
      norm = std::sqrt(total);
    }
    const double factor = factor_of(norm, static_cast<double>(max_norm));
    each([&](const Slices& s) { scale_rows(s, &factor, false); });
    return 0;
  });
}

int BNNSComputeNorm(BNNSNDArrayDescriptor* dest, const BNNSNDArrayDescriptor* src, BNNSNormType norm_type,
                    uint32_t axis_flags) {
  View x, y;
  bool is_chosen[BNNS_MAX_TENSOR_DIMENSION];
  size_t stride[BNNS_MAX_TENSOR_DIMENSION];
  if (check_norm_type(norm_type) != 0 || read_tensor(src, Access::read, "x", &x) != 0 ||
      read_tensor(dest, Access::write, "out", &y) != 0 || read_axes(x, axis_flags, is_chosen) != 0 ||
      pair_norms(x, is_chosen, y, "out", stride) != 0 || check_disjoint(y, y.data, 0, "out", x, x.data, 0, "x", 1) != 0)
    return -1;
  Slices s;
  s.make(x, x, is_chosen);
  double* sums = reinterpret_cast<double*>(workspace((s.kept + s.partial_sums()) * sizeof(double)));
  if (!sums || !scratch()) return -1;
  return interruptible(nullptr, [&] {
    add_up(s, sums, sums + s.kept);
    const Kernels& kernels = targets.best();
    each_norm(x, is_chosen, stride, [&](size_t k, size_t offset) {
      const float norm = static_cast<float>(std::sqrt(sums[k]));
      kernels.store(y.type, static_cast<std::byte*>(y.data) + offset * bytes_of(y.type), 1, 1, &norm);
    });
    return 0;
  });
}

// y = √Σ x², so dx = dy·x/y
int BNNSComputeNormBackward(const void* in, BNNSNDArrayDescriptor* in_delta, const void* out,
                            const BNNSNDArrayDescriptor* out_delta, BNNSNormType norm_type, uint32_t axis_flags) {
  View dx, dy;
  bool is_chosen[BNNS_MAX_TENSOR_DIMENSION];
  size_t stride[BNNS_MAX_TENSOR_DIMENSION];
  if (check_norm_type(norm_type) != 0 || read_tensor(in_delta, Access::write, "input_gradient", &dx) != 0 ||
      read_tensor(out_delta, Access::read, "grad_output", &dy) != 0 || read_axes(dx, axis_flags, is_chosen) != 0 ||
      pair_norms(dx, is_chosen, dy, "grad_output", stride) != 0)
    return -1;
  View x = dx, y = dy;
  x.data = const_cast<void*>(in);
  y.data = const_cast<void*>(out);
  size_t only_sample;
  if (read_batch(x, x.data, 1, 0, Access::read, "x", &only_sample) != 0 ||
      read_batch(y, y.data, 1, 0, Access::read, "y", &only_sample) != 0 ||
      check_disjoint(dx, dx.data, 0, "input_gradient", dy, dy.data, 0, "grad_output", 1) != 0 ||
      check_disjoint(dx, dx.data, 0, "input_gradient", y, y.data, 0, "y", 1) != 0)
    return -1;
  if (x.data != dx.data && check_disjoint(dx, dx.data, 0, "input_gradient", x, x.data, 0, "x", 1) != 0) return -1;
  Slices s;
  s.make(x, dx, is_chosen);
  double* factors = reinterpret_cast<double*>(workspace(s.kept * sizeof(double)));
  if (!factors || !scratch()) return -1;
  const Kernels& kernels = targets.best();
  const auto value = [&](const View& view, size_t offset) {
    float v;
    kernels.load(view.type, static_cast<const std::byte*>(view.data) + offset * bytes_of(view.type), 1, 1, &v);
    return static_cast<double>(v);
  };
  each_norm(dx, is_chosen, stride, [&](size_t k, size_t offset) {
    const double norm = value(y, offset);
    factors[k] = norm == 0.0 ? 0.0 : value(dy, offset) / norm;
  });
  return interruptible(nullptr, [&] {
    scale_rows(s, factors, dx.accumulate);
    return 0;
  });
}
}
