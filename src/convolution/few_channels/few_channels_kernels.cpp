// Convolution of few input channels, the bench: compiled once per target. Assumes a checked call and a plan that fits.
// Letters, the stage and g as in few_channels.h.
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "convolution/few_channels/few_channels_stage.h"

namespace obn::OBN_TARGET::convolution::few_channels {

using obn::convolution::Forward;
using obn::convolution::InputGradient;
using obn::convolution::Places;
using obn::convolution::places_inside;
using obn::convolution::WeightGradient;
using obn::convolution::few_channels::Kernels;
using obn::convolution::few_channels::Masked;
using obn::convolution::few_channels::NormInputGradient;
using obn::convolution::few_channels::Standardize;

namespace {

// What is kept in registers at a time.
#if defined(__SSE2__) && !defined(__AVX512F__)
constexpr size_t kForwardOutputs = 6, kForwardVectors = 2;    // 16 registers
constexpr size_t kGradientTaps = 3, kGradientVectors = 3;
constexpr size_t kWeightOutputs = 3, kWeightTaps = 3;
#else
constexpr size_t kForwardOutputs = 4, kForwardVectors = 5;    // 32 registers
constexpr size_t kGradientTaps = 9, kGradientVectors = 3;
constexpr size_t kWeightOutputs = 3, kWeightTaps = 9;
#endif
constexpr size_t kRowsAtOnce = 8;                // of dx, where columns must be joined
constexpr size_t kStagedFloats = size_t{1} << 12;  // dw: samples that are staged together, half a first-level cache

OBN_INLINE F load_some(const float* p, size_t values) { return values == kLanes ? load(p) : load_first(p, values); }
OBN_INLINE F keep_where_positive(F mask, F v) { return mask <= F{} ? F{} : v; }  // and where it is NaN, as ReLU

// Calls body(p, vectors, values) for parts of a run of n values: `vectors` of them from p on, all whole but the last,
// which has `values`. The last part begins early rather than hang over, if there is room.
template <class Body>
OBN_INLINE void by_vectors(size_t n, size_t limit, const Body& body) {
  size_t left = divide_up(n, kLanes);
  for (size_t p = 0; left > 0;) {
    const size_t now = next_part(left, limit);
    left -= now;
    if (left == 0 && now * kLanes <= n) p = n - now * kLanes;
    const size_t rest = n - p - (now - 1) * kLanes;
    body(p, now, rest < kLanes ? rest : kLanes);
    p += now * kLanes;
  }
}

// ---- the stage ----

// Which columns q of the stage are inside a row of n values: those of row(stride·q + offset).
struct Inside {
  size_t first, end;
};
OBN_INLINE Inside columns_inside(int64_t n, int64_t stride, int64_t offset, int64_t columns) {
  const int64_t first = offset >= 0 ? 0 : divide_up(-offset, stride);
  const int64_t end = n > offset ? divide_up(n - offset, stride) : 0;
  const int64_t last = end < columns ? end : columns;
  return first < last ? Inside{as_size(first), as_size(last)} : Inside{0, 0};
}

// to(q) = from(stride·q) for the columns inside, zero for the others. Spills behind the last of them.
OBN_INLINE void copy_shifted(const float* from, size_t stride, Inside inside, size_t columns, float* to) {
  fill_zeros(to, inside.first);
  from += stride * inside.first;
  const size_t count = inside.end - inside.first;
  if (stride == 1) {
    copy_row(from, count, to + inside.first);
  } else {
    size_t i = 0;
    if (stride == 2) {
      for (; i + kLanes < count; i += kLanes) {
        F even, odd;
        split_pairs(load(from + 2 * i), load(from + 2 * i + kLanes), &even, &odd);
        store(to + inside.first + i, even);
      }
    }
    for (; i < count; ++i) to[inside.first + i] = from[stride * i];
  }
  fill_zeros(to + inside.end, columns - inside.end);
}

// Rows of the stage, each from a row of x. Where a load can leave lanes out, columns go kLanes at a time, the last ones
// first and rows in order: what spills behind a row is then overwritten.
OBN_INLINE void copy_rows(const float* from, size_t from_row, size_t stride, Inside inside, size_t rows, size_t columns,
                          float* to) {
  if (kLanes == 16 && stride == 1) {
    for (size_t left = divide_up(columns, kLanes); left > 0; --left) {
      const size_t j = (left - 1) * kLanes;
      const size_t end = least(kLanes, inside.end - least(inside.end, j));
      const Keep keep = keep_lanes(least(inside.first - least(inside.first, j), end), end);
      for (size_t r = 0; r < rows; ++r) store(to + r * columns + j, load_kept(from + r * from_row + j, keep));
    }
    return;
  }
  for (size_t r = 0; r < rows; ++r) copy_shifted(from + r * from_row, stride, inside, columns, to + r * columns);
}

}  // namespace

void stage_input(const Plan& plan, const Planes& x, size_t n, size_t from, size_t count, float* stage) {
  const Problem& s = plan.problem;
  const size_t q = as_size(s.x.out), rows = plan.stage_rows - plan.band + count, stride = as_size(s.y.stride);
  const size_t phases = least(stride, as_size(s.y.dilation * (s.y.kernel - 1)) + 1);
  for (size_t c = 0; c < s.in_channels; ++c) {
    const float* plane = x.data + n * x.sample + c * x.plane;
    for (int64_t kx = 0; kx < s.x.kernel; ++kx) {
      const int64_t offset = s.x.dilation * kx - s.x.before;
      const Inside inside = columns_inside(s.x.in, s.x.stride, offset, s.x.out);
      float* to = stage + (c * as_size(s.x.kernel) + as_size(kx)) * plan.copy;
      for (size_t r = 0; r < phases; ++r, to += plan.stage_rows * q) {
        const Places places = places_inside(s.y, r);
        const size_t first = least(most(places.first, from) - from, rows);
        const size_t end = least(most(places.end, from + first) - from, rows);
        fill_zeros(to, first * q);
        if (first < end)
          copy_rows(plane + (stride * (from + first) + r - as_size(s.y.before)) * x.row + offset, stride * x.row,
                    as_size(s.x.stride), inside, end - first, q, to + first * q);
        fill_zeros(to + end * q, (rows - end) * q);
      }
    }
  }
}

void stage_taps(const Plan& plan, const Taps& taps, size_t n, size_t from, size_t count, float* stage) {
  stage_input(plan, taps.x, n, from, count, stage);
  if (!taps.centre) return;
  const Problem& s = plan.problem;
  const size_t copies = as_size(s.x.kernel) * plan.copy;  // of a channel
  for (size_t c = 0; c < s.in_channels; ++c) {
    if (taps.centre[c] == 0.0f) continue;
    const F centre = splat(taps.centre[c]);
    float* at = stage + c * copies;
    size_t i = 0;
    for (; i + kLanes <= copies; i += kLanes) store(at + i, load(at + i) - centre);
    for (; i < copies; ++i) at[i] -= taps.centre[c];
  }
}

namespace {

// ---- forward ----

// What is done to a sum before it is stored.
enum class End {
  plain,
  clamp,  // max(low, sum)
};

// y(o, p) = bias(o) + Σ w(o, t) · x(at(t) + p)
struct Sum {
  const float* x;
  const uint32_t* at;
  size_t taps;
  const float* w;
  const float* bias;  // NULL: none
  float* y;
  size_t y_plane;
  float low = 0.0f;
};

template <End kEnd>
OBN_INLINE F finish(const Sum& s, F sum) {
  return kEnd == End::clamp ? max(splat(s.low), sum) : sum;
}

// kTaps is the number of taps where it is known, else 0: a short loop that is spelled out takes a fifth less time.
template <size_t kOutputs, size_t kVectors, size_t kTaps, End kEnd>
void sum_taps(const Sum& s, size_t p, size_t values) {
  F sums[kOutputs][kVectors];
#pragma GCC unroll 8
  for (size_t o = 0; o < kOutputs; ++o)
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) sums[o][v] = splat(s.bias ? s.bias[o] : 0.0f);
  const size_t taps = kTaps > 0 ? kTaps : s.taps;
#pragma GCC unroll 9
  for (size_t t = 0; t < taps; ++t) {
    const float* x = s.x + s.at[t] + p;
    F pixels[kVectors];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) pixels[v] = held(load(x + v * kLanes));
#pragma GCC unroll 8
    for (size_t o = 0; o < kOutputs; ++o) {
      const F weight = splat(s.w[o * taps + t]);
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) sums[o][v] = fma(weight, pixels[v], sums[o][v]);
    }
  }
#pragma GCC unroll 8
  for (size_t o = 0; o < kOutputs; ++o) {
    float* y = s.y + o * s.y_plane + p;
#pragma GCC unroll 8
    for (size_t v = 0; v + 1 < kVectors; ++v) store(y + v * kLanes, finish<kEnd>(s, sums[o][v]));
    float* last = y + (kVectors - 1) * kLanes;
    const F end = finish<kEnd>(s, sums[o][kVectors - 1]);
    if (values == kLanes) {
      store(last, end);
    } else {
      store_first(last, end, values);
    }
  }
}

template <size_t kOutputs, size_t kTaps, End kEnd>
void sum_run(const Sum& s, size_t n) {
  by_vectors(n, kForwardVectors, [&](size_t p, size_t vectors, size_t values) __attribute__((always_inline)) {
    if constexpr (kForwardVectors >= 5) {
      if (vectors == 5) return sum_taps<kOutputs, 5, kTaps, kEnd>(s, p, values);
      if (vectors == 4) return sum_taps<kOutputs, 4, kTaps, kEnd>(s, p, values);
      if (vectors == 3) return sum_taps<kOutputs, 3, kTaps, kEnd>(s, p, values);
    }
    if (vectors == 2) return sum_taps<kOutputs, 2, kTaps, kEnd>(s, p, values);
    sum_taps<kOutputs, 1, kTaps, kEnd>(s, p, values);
  });
}

template <size_t kTaps, End kEnd>
void sum_outputs_of(const Sum& s, size_t outputs, size_t n) {
  if constexpr (kForwardOutputs >= 6) {
    if (outputs == 6) return sum_run<6, kTaps, kEnd>(s, n);
    if (outputs == 5) return sum_run<5, kTaps, kEnd>(s, n);
  }
  if (outputs == 4) return sum_run<4, kTaps, kEnd>(s, n);
  if (outputs == 3) return sum_run<3, kTaps, kEnd>(s, n);
  if (outputs == 2) return sum_run<2, kTaps, kEnd>(s, n);
  sum_run<1, kTaps, kEnd>(s, n);
}
template <End kEnd>
OBN_INLINE void sum_outputs(const Sum& s, size_t outputs, size_t n) {
  (s.taps == 9 ? sum_outputs_of<9, kEnd> : sum_outputs_of<0, kEnd>)(s, outputs, n);
}

void forward(const Plan& plan, const Forward& f, size_t first_unit, size_t units, std::byte* work) {
  const Problem& s = plan.problem;
  const size_t q = as_size(s.x.out);
  float* stage = reinterpret_cast<float*>(work);
  for (size_t unit = first_unit; unit < first_unit + units; ++unit) {
    const size_t n = unit / plan.bands, from = unit % plan.bands * plan.band;
    if (from >= plan.rows) continue;
    const size_t rows = least(plan.band, plan.rows - from);
    stage_input(plan, f.x, n, from, rows, stage);
    // Rows without gaps between them are one run.
    const size_t runs = f.y.row == q ? 1 : rows, run = rows / runs * q;
    for (size_t o = 0; o < s.out_channels;) {
      const size_t now = next_part(s.out_channels - o, kForwardOutputs);
      float* y = f.y.data + n * f.y.sample + o * f.y.plane + from * f.y.row;
      for (size_t r = 0; r < runs; ++r)
        sum_outputs<End::plain>({stage + r * q, plan.at, plan.taps, f.w + o * plan.taps, f.bias ? f.bias + o : nullptr,
                                 y + r * f.y.row, f.y.plane}, now, run);
      for (size_t i = 0; i < now; ++i) activate(f.activation, y + i * f.y.plane, f.y.row, rows, q);
      o += now;
    }
  }
}

// ---- dx ----

// g(t, p) = Σ w(o, t) · dz(o, p), begun at start(t) + Σ slope(s, t) · x(at(s) + p) where these are given
struct TapGradients {
  const float* dz;
  size_t dz_plane;
  size_t outputs;
  const float* w;
  size_t w_row;
  float* g;
  size_t gradient;  // from tap to tap
  const float* mask;  // read where masked: dz = mask > 0 ? dz : 0
  size_t mask_plane;
  const float *start, *slope;  // slope in rows of w_row; both NULL: 0
  const float* x;
  const uint32_t* at;
};

template <size_t kTaps, size_t kVectors>
OBN_INLINE void add_products(const float* w, const F (&pixels)[kVectors], F (&sums)[kTaps][kVectors]) {
#pragma GCC unroll 16
  for (size_t t = 0; t < kTaps; ++t) {
    const F weight = splat(w[t]);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[t][v] = fma(weight, pixels[v], sums[t][v]);
  }
}

template <size_t kTaps, size_t kVectors, bool kMasked>
void tap_gradients(const TapGradients& s, size_t p, size_t values) {
  F sums[kTaps][kVectors];
#pragma GCC unroll 16
  for (size_t t = 0; t < kTaps; ++t)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[t][v] = s.start ? splat(s.start[t]) : F{};
  F pixels[kVectors];
  if (s.start) {
    for (size_t i = 0; i < s.w_row; ++i) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) pixels[v] = load(s.x + s.at[i] + p + v * kLanes);
      add_products(s.slope + i * s.w_row, pixels, sums);
    }
  }
  const float *dz = s.dz + p, *mask = s.mask + p, *w = s.w;
  for (size_t o = 0; o < s.outputs; ++o, dz += s.dz_plane, mask += s.mask_plane, w += s.w_row) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t n = v + 1 < kVectors ? kLanes : values;
      pixels[v] = load_some(dz + v * kLanes, n);
      if (kMasked) pixels[v] = keep_where_positive(load_some(mask + v * kLanes, n), pixels[v]);
    }
    add_products(w, pixels, sums);
  }
  // g has room for whole vectors.
#pragma GCC unroll 16
  for (size_t t = 0; t < kTaps; ++t)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) store(s.g + t * s.gradient + p + v * kLanes, sums[t][v]);
}

template <size_t kTaps, bool kMasked>
void tap_gradients_of(const TapGradients& s, size_t p, size_t vectors, size_t values) {
  if (vectors == 3) return tap_gradients<kTaps, 3, kMasked>(s, p, values);
  if (vectors == 2) return tap_gradients<kTaps, 2, kMasked>(s, p, values);
  tap_gradients<kTaps, 1, kMasked>(s, p, values);
}

using TapGradientsOf = void (*)(const TapGradients&, size_t, size_t, size_t);
template <bool kMasked>
constexpr TapGradientsOf kTapGradients[] = {
    tap_gradients_of<1, kMasked>, tap_gradients_of<2, kMasked>, tap_gradients_of<3, kMasked>,
#if !defined(__SSE2__) || defined(__AVX512F__)
    tap_gradients_of<4, kMasked>, tap_gradients_of<5, kMasked>, tap_gradients_of<6, kMasked>,
    tap_gradients_of<7, kMasked>, tap_gradients_of<8, kMasked>, tap_gradients_of<9, kMasked>,
#endif
};
static_assert(sizeof kTapGradients<false> == kGradientTaps * sizeof(TapGradientsOf) && kGradientVectors == 3);

// All taps of a run of n pixels; pixels outside, so that dz stays in the first-level cache from tap to tap.
void gradients_of_run(const TapGradients& s, bool is_masked, size_t taps, size_t n) {
  by_vectors(n, kGradientVectors, [&](size_t p, size_t vectors, size_t values) __attribute__((always_inline)) {
    for (size_t t = 0; t < taps;) {
      const size_t now = next_part(taps - t, kGradientTaps);
      TapGradients part = s;
      part.w += t;
      part.g += t * s.gradient;
      if (s.start) {
        part.start += t;
        part.slope += t;
      }
      (is_masked ? kTapGradients<true> : kTapGradients<false>)[now - 1](part, p, vectors, values);
      t += now;
    }
  });
}

// Values of dx at places [first, end) of row phase ry, and at `columns` places from x0 on of column phase rx:
// Σ g(t)(row - shift_y(ky), column - shift_x(kx)) over the taps of both phases. g begins with row g_row of dz.
struct Gather {
  const float* g;  // of the channel
  size_t g_row;
  size_t ry, rx;
  size_t first, end;
  size_t x0, columns;
  float start;
  bool accumulate;
  float* to;
  size_t to_row;
};

void gather_rows(const Plan& plan, const Gather& s) {
  const Problem& problem = plan.problem;
  const size_t kw = as_size(problem.x.kernel), kh = as_size(problem.y.kernel);
  const int64_t q = problem.x.out, p = problem.y.out;
  for (size_t j = 0; j < s.columns; j += kLanes) {
    size_t at = j, values = least(kLanes, s.columns - j);
    if (values < kLanes && s.columns >= kLanes && kLanes < 16 && !s.accumulate) {
      at = s.columns - kLanes;  // some columns twice: where part of a vector is expensive to store
      values = kLanes;
    }
    // Kernel columns that reach these places, and the lanes they reach.
    size_t reaching = 0;
    size_t tap[kMostTaps];
    int64_t from[kMostTaps];
    Keep keep[kMostTaps];
    for (size_t kx = 0; kx < kw; ++kx) {
      if (plan.phase_x[kx] != s.rx) continue;
      const int64_t column = static_cast<int64_t>(s.x0 + at) - plan.shift_x[kx];
      const int64_t lane = column < 0 ? -column : 0;
      const int64_t end = q - column < static_cast<int64_t>(kLanes) ? q - column : static_cast<int64_t>(kLanes);
      if (lane >= end) continue;
      tap[reaching] = kx;
      from[reaching] = column;
      keep[reaching++] = keep_lanes(as_size(lane), as_size(end));
    }
    for (size_t row = s.first; row < s.end; ++row) {
      F sum = splat(s.start);
      for (size_t ky = 0; ky < kh; ++ky) {
        const int64_t window = static_cast<int64_t>(row) - plan.shift_y[ky];
        if (plan.phase_y[ky] != s.ry || window < 0 || window >= p) continue;
        const float* g = s.g + ky * kw * plan.gradient + (as_size(window) - s.g_row) * as_size(q);
        for (size_t k = 0; k < reaching; ++k) sum += load_kept(g + tap[k] * plan.gradient + from[k], keep[k]);
      }
      float* to = s.to + (row - s.first) * s.to_row + at;
      if (values == kLanes) {
        store(to, s.accumulate ? load(to) + sum : sum);
      } else {
        store_first(to, s.accumulate ? load_first(to, values) + sum : sum, values);
      }
    }
  }
}

// Rows of one plane of dx at places [from, from + rows) of row phase ry.
void gather_plane(const Plan& plan, Gather s, size_t from, size_t rows, float* dx, size_t dx_row, float* lines) {
  const Problem& problem = plan.problem;
  const size_t sx = as_size(problem.x.stride), sy = as_size(problem.y.stride), n = as_size(problem.x.in);
  const size_t left = as_size(problem.x.before);
  const Places inside = places_inside(problem.y, s.ry);
  s.first = most(inside.first, from);
  s.end = least(inside.end, from + rows);
  if (s.first >= s.end) return;
  dx += (sy * s.first + s.ry - as_size(problem.y.before)) * dx_row;
  if (sx == 1) {
    s.rx = 0;
    s.x0 = left;
    s.columns = n;
    s.to = dx;
    s.to_row = sy * dx_row;
    return gather_rows(plan, s);
  }
  const size_t pitch = round_up(n / sx + 1, kPad) + kPad;  // of lines (kRowsAtOnce, sx, pitch)
  const bool accumulate = s.accumulate;
  s.accumulate = false;
  s.to_row = sx * pitch;
  for (const size_t end = s.end; s.first < end; s.first = s.end) {
    s.end = least(end, s.first + kRowsAtOnce);
    for (size_t i = 0; i < sx; ++i) {  // column u = i, i + sx, …
      s.rx = (left + i) % sx;
      s.x0 = (left + i) / sx;
      s.columns = n > i ? divide_up(n - i, sx) : 0;
      s.to = lines + i * pitch;
      gather_rows(plan, s);
    }
    for (size_t r = 0; r < s.end - s.first; ++r, dx += sy * dx_row)
      join_row(lines + r * sx * pitch, pitch, sx, n, accumulate, dx);
  }
}

// What the gradients of the taps of some rows of dz begin with, and which of dz counts.
struct Begin {
  const Plan* plan;  // of the stage; NULL: they begin with 0, and all of dz counts
  Taps x;
  Masked dz;
  const float *start, *slope;
};

OBN_INLINE void gradient_of_input(const Plan& plan, const InputGradient& call, const Begin& begin, size_t first_unit,
                                  size_t units, std::byte* work) {
  const Problem& s = plan.problem;
  const size_t q = as_size(s.x.out), kernel = as_size(s.x.kernel * s.y.kernel);
  const size_t shift = plan.shift_y[as_size(s.y.kernel) - 1];
  const Planes &dz = call.dz, &y = begin.dz.y;
  const bool is_masked = begin.plan && y.data;
  const bool follow = dz.row == q && (!is_masked || y.row == q);
  float* g = reinterpret_cast<float*>(work) + kPad;  // lanes that do not count are read in front of it
  float* lines = g + round_up(plan.stage_floats, kPad);
  const size_t sx = as_size(s.x.stride);
  float* stage = lines + kRowsAtOnce * sx * (round_up(as_size(s.x.in) / sx + 1, kPad) + kPad);
  for (size_t unit = first_unit; unit < first_unit + units; ++unit) {
    const size_t n = unit / plan.bands, from = unit % plan.bands * plan.band;
    if (from >= plan.rows) continue;
    const size_t rows = least(plan.band, plan.rows - from);
    // Rows of dz whose windows hold a place of the band.
    const size_t top = from > shift ? from - shift : 0, bottom = least(from + rows, as_size(s.y.out));
    if (top < bottom) {
      if (begin.plan) stage_taps(*begin.plan, begin.x, n, top, bottom - top, stage);
      const size_t runs = follow ? 1 : bottom - top, run = (bottom - top) / runs * q;
      for (size_t r = 0; r < runs; ++r) {
        const float* row = dz.data + n * dz.sample + (top + r) * dz.row;
        const float* mask = is_masked ? y.data + n * y.sample + (top + r) * y.row : row;
        gradients_of_run({row, dz.plane, s.out_channels, call.w, plan.taps, g + r * q, plan.gradient, mask,
                          is_masked ? y.plane : dz.plane, begin.start, begin.slope, stage + r * q,
                          begin.plan ? begin.plan->at : nullptr}, is_masked, plan.taps, run);
      }
    }
    for (size_t c = 0; c < s.in_channels; ++c) {
      float* dx = call.dx.data + n * call.dx.sample + c * call.dx.plane;
      Gather gather = {};
      gather.g = g + c * kernel * plan.gradient;
      gather.g_row = top;
      gather.start = call.bias ? call.bias[c] : 0.0f;
      gather.accumulate = call.accumulate;
      for (size_t ry = 0; ry < as_size(s.y.stride); ++ry) {
        gather.ry = ry;
        gather_plane(plan, gather, from, rows, dx, call.dx.row, lines);
      }
      const size_t sy = as_size(s.y.stride), up = as_size(s.y.before), end = sy * (from + rows);
      const size_t first = sy * from > up ? sy * from - up : 0, last = end > up ? least(end - up, as_size(s.y.in)) : 0;
      if (first < last)
        activate(call.activation, dx + first * call.dx.row, call.dx.row, last - first, as_size(s.x.in));
    }
  }
}

void input_gradient(const Plan& plan, const InputGradient& call, size_t first_unit, size_t units, std::byte* work) {
  gradient_of_input(plan, call, {}, first_unit, units, work);
}

void norm_input_gradient(const Plan& plan, const Plan& stage, const NormInputGradient& call, size_t first_unit,
                         size_t units, std::byte* work) {
  gradient_of_input(plan, {call.dz.dy, call.w, call.dx, call.accumulate, nullptr, nullptr},
                    {&stage, call.x, call.dz, call.start, call.slope}, first_unit, units, work);
}

// ---- dw ----

// What dz is; with a mask or without it, its own sums are made on the way.
enum class Dz {
  given,   // dz
  summed,  // dz, and sums of it
  masked,  // mask > 0 ? dz : 0, and sums of it
};

// sums(o, t) += dz(o, p) · x(at(t) + p), lane by lane over runs of n pixels
struct Products {
  const float* dz;
  size_t dz_plane;
  const float* x;
  const uint32_t* at;
  F* sums;
  size_t sums_row;
  size_t n;
  size_t runs;
  size_t dz_step, x_step;  // from one run to the next
  const float* mask;       // read where masked
  size_t mask_plane, mask_step;
  F* dz_sums;              // one per output
};

// n <= kLanes pixels of dz. Sums of it stay in memory, where the compiler has to look for them: all registers have
// other work.
template <Dz kDz>
OBN_INLINE F load_dz(const float* dz, const float* mask, F* sum, size_t n) {
  F v = load_some(dz, n);
  if (kDz == Dz::masked) v = keep_where_positive(load_some(mask, n), v);
  if (kDz != Dz::given) {
    asm("" : "+m"(*sum));
    *sum += v;
  }
  return v;
}

// Lanes outside the run are zeros on both sides, so that nothing that lies there can reach a sum.
template <size_t kOutputs, size_t kTaps, Dz kDz>
void multiply(const Products& given) {
  const Products s = given;  // a copy of its own: the compiler reads the other one again after every store
  F sums[kOutputs][kTaps], dz_sums[kOutputs];
  size_t at[kTaps];
#pragma GCC unroll 16
  for (size_t t = 0; t < kTaps; ++t) at[t] = s.at[t];
#pragma GCC unroll 4
  for (size_t o = 0; o < kOutputs; ++o) {
    dz_sums[o] = s.dz_sums[o];
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) sums[o][t] = s.sums[o * s.sums_row + t];
  }
  const float *dz = s.dz, *x = s.x, *mask = s.mask;
  for (size_t run = 0; run < s.runs; ++run, dz += s.dz_step, x += s.x_step, mask += s.mask_step) {
    const auto load_all = [&](F (&gradient)[kOutputs], size_t p, size_t n) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (size_t o = 0; o < kOutputs; ++o)
        gradient[o] = load_dz<kDz>(dz + p + o * s.dz_plane, mask + p + o * s.mask_plane, &dz_sums[o], n);
    };
    F gradient[kOutputs];
    size_t p = 0;
    for (; p + kLanes <= s.n; p += kLanes) {
      load_all(gradient, p, kLanes);
#pragma GCC unroll 16
      for (size_t t = 0; t < kTaps; ++t) {
        const F pixels = held(load(x + at[t] + p));
#pragma GCC unroll 4
        for (size_t o = 0; o < kOutputs; ++o) sums[o][t] = fma(gradient[o], pixels, sums[o][t]);
      }
    }
    if (p == s.n) continue;
    const Keep keep = keep_lanes(0, s.n - p);
    load_all(gradient, p, s.n - p);
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) {
      const F pixels = load_kept(x + at[t] + p, keep);
#pragma GCC unroll 4
      for (size_t o = 0; o < kOutputs; ++o) sums[o][t] = fma(gradient[o], pixels, sums[o][t]);
    }
  }
#pragma GCC unroll 4
  for (size_t o = 0; o < kOutputs; ++o) {
    s.dz_sums[o] = dz_sums[o];
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) s.sums[o * s.sums_row + t] = sums[o][t];
  }
}

template <size_t kTaps, Dz kDz>
void multiply_outputs(const Products& s, size_t outputs) {
  if (outputs == 3) return multiply<3, kTaps, kDz>(s);
  if (outputs == 2) return multiply<2, kTaps, kDz>(s);
  multiply<1, kTaps, kDz>(s);
}

using MultiplyOutputs = void (*)(const Products&, size_t);
template <Dz kDz>
constexpr MultiplyOutputs kMultiply[] = {
    multiply_outputs<1, kDz>, multiply_outputs<2, kDz>, multiply_outputs<3, kDz>,
#if !defined(__SSE2__) || defined(__AVX512F__)
    multiply_outputs<4, kDz>, multiply_outputs<5, kDz>, multiply_outputs<6, kDz>, multiply_outputs<7, kDz>,
    multiply_outputs<8, kDz>, multiply_outputs<9, kDz>,
#endif
};
static_assert(sizeof kMultiply<Dz::given> == kWeightTaps * sizeof(MultiplyOutputs) && kWeightOutputs == 3);

// All outputs and taps; `p` says where dz, mask, x and the runs are. dz is summed with the first taps.
void multiply_all(const Plan& plan, Products p, bool sums_dz, F* sums) {
  const size_t outputs = plan.problem.out_channels;
  const Products all = p;
  const bool is_masked = all.mask;
  F unused[kWeightOutputs] = {};
  p.sums_row = plan.taps;
  for (size_t o = 0; o < outputs;) {
    const size_t some = next_part(outputs - o, kWeightOutputs);
    p.dz = all.dz + o * p.dz_plane;
    p.mask = is_masked ? all.mask + o * p.mask_plane : p.dz;
    for (size_t t = 0; t < plan.taps;) {
      const size_t now = next_part(plan.taps - t, kWeightTaps);
      p.at = plan.at + t;
      p.sums = sums + o * plan.taps + t;
      p.dz_sums = sums_dz && t == 0 ? all.dz_sums + o : unused;
      if (is_masked) {
        kMultiply<Dz::masked>[now - 1](p, some);
      } else {
        (sums_dz && t == 0 ? kMultiply<Dz::summed> : kMultiply<Dz::given>)[now - 1](p, some);
      }
      t += now;
    }
    o += some;
  }
}

// to (n) = the sums of the lanes of n vectors; kLanes - 1 more may be read.
void add_lanes(const F* sums, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    F some[kLanes];
    for (size_t k = 0; k < kLanes; ++k) some[k] = sums[i + k];
    const F totals = sum_each(some);
    if (n - i >= kLanes) {
      store(to + i, totals);
    } else {
      store_first(to + i, totals, n - i);
    }
  }
}

// Sums (O, T) of dz·tap over samples [first, first + count), and behind them (O) of dz where sums_dz.
OBN_INLINE void correlate(const Plan& plan, const Taps& x, const Masked& masked, bool sums_dz, size_t first,
                          size_t count, float* totals, std::byte* work) {
  const Problem& s = plan.problem;
  const size_t q = as_size(s.x.out), products = s.out_channels * plan.taps;
  const size_t all = products + (sums_dz ? s.out_channels : 0);
  const Planes &dy = masked.dy, &y = masked.y;
  const bool follow = dy.row == q && (!y.data || y.row == q);
  F* sums = reinterpret_cast<F*>(work);  // vectors
  float* stage = reinterpret_cast<float*>(work) + round_up(all * kLanes + kLanes * kLanes, kPad);
  for (size_t i = 0; i < all + kLanes; ++i) sums[i] = F{};
  // Small images without gaps are done several at a time: sums then stay in registers for longer.
  const size_t step = round_up(plan.stage_floats, kPad);
  const size_t at_once = plan.bands == 1 && follow ? most(kStagedFloats / step, 1) : 1;
  for (size_t n = first; n < first + count; n += at_once) {
    const size_t samples = least(at_once, first + count - n);
    for (size_t from = 0; from < plan.rows; from += plan.band) {
      const size_t rows = least(plan.band, plan.rows - from);
      for (size_t i = 0; i < samples; ++i) stage_taps(plan, x, n + i, from, rows, stage + i * step);
      Products p = {};
      p.dz = dy.data + n * dy.sample + from * dy.row;
      p.dz_plane = dy.plane;
      p.mask = y.data ? y.data + n * y.sample + from * y.row : nullptr;
      p.mask_plane = y.plane;
      p.x = stage;
      p.runs = samples;
      p.n = rows * q;
      p.dz_step = dy.sample;
      p.mask_step = y.sample;
      p.x_step = step;
      p.dz_sums = sums + products;
      if (!follow) {  // rows with gaps between them
        p.runs = rows;
        p.n = q;
        p.dz_step = dy.row;
        p.mask_step = y.row;
        p.x_step = q;
      }
      multiply_all(plan, p, sums_dz, sums);
    }
  }
  add_lanes(sums, all, totals);
}

void weight_gradient(const Plan& plan, const WeightGradient& call, size_t first, size_t count, float* dw,
                     std::byte* work) {
  correlate(plan, {call.x, nullptr}, {call.dz, {}}, false, first, count, dw, work);
}

void masked_sums(const Plan& plan, const Taps& x, const Masked& dz, size_t first, size_t count, float* sums,
                 std::byte* work) {
  correlate(plan, x, dz, true, first, count, sums, work);
}

// ---- with a batch norm ----

// Calls body(n, from, rows) for every unit, whose taps are in the stage then.
template <class Body>
OBN_INLINE void by_bands(const Plan& plan, const Taps& x, size_t first_unit, size_t units, float* stage,
                         const Body& body) {
  for (size_t unit = first_unit; unit < first_unit + units; ++unit) {
    const size_t n = unit / plan.bands, from = unit % plan.bands * plan.band;
    if (from >= plan.rows) continue;
    const size_t rows = least(plan.band, plan.rows - from);
    stage_taps(plan, x, n, from, rows, stage);
    body(n, from, rows);
  }
}

void standardize(const Plan& plan, const Standardize& f, size_t first_unit, size_t units, std::byte* work) {
  const size_t q = as_size(plan.problem.x.out), outputs = plan.problem.out_channels;
  float* stage = reinterpret_cast<float*>(work);
  by_bands(plan, f.x, first_unit, units, stage, [&](size_t n, size_t from, size_t rows) {
    const size_t runs = f.y.row == q ? 1 : rows, run = rows / runs * q;
    for (size_t o = 0; o < outputs;) {
      const size_t now = next_part(outputs - o, kForwardOutputs);
      float* y = f.y.data + n * f.y.sample + o * f.y.plane + from * f.y.row;
      for (size_t r = 0; r < runs; ++r)
        sum_outputs<End::clamp>({stage + r * q, plan.at, plan.taps, f.w + o * plan.taps, f.bias + o, y + r * f.y.row,
                                 f.y.plane, f.low}, now, run);
      o += now;
    }
  });
}

constexpr obn::convolution::few_channels::Kernels kernels = {
    forward, input_gradient, weight_gradient, tap_moments, standardize, masked_sums, norm_input_gradient};

}  // namespace

}  // namespace obn::OBN_TARGET::convolution::few_channels

constinit const obn::convolution::few_channels::Kernels obn::convolution::few_channels::Compiled::OBN_TARGET = obn::OBN_TARGET::convolution::few_channels::kernels;
