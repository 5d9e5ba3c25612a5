// Depthwise convolution, the bench: compiled once per target. Assumes a checked call and a plan that fits. Letters and
// the stage as in depthwise.h.
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "convolution/depthwise/depthwise.h"

#include "convolution/rows.h"

namespace obn::OBN_TARGET::convolution::depthwise {

using obn::convolution::Forward;
using obn::convolution::InputGradient;
using obn::convolution::Places;
using obn::convolution::Problem;
using obn::convolution::WeightGradient;
using obn::convolution::depthwise::Chain;
using obn::convolution::depthwise::Group;
using obn::convolution::depthwise::kChain;
using obn::convolution::depthwise::Kernels;
using obn::convolution::depthwise::Plan;

namespace {

constexpr size_t kRowsAtOnce = 8;   // output rows kept in registers
constexpr size_t kColumnsAtOnce = 3;  // dw: kernel columns whose sums are kept in registers
constexpr size_t kGradientRows = 4;   // dw: rows of dz kept in registers

// Walks over the units of a piece: bands of plane c of sample n. Small planes feel every division.
struct Walk {
  size_t n, c, band;

  Walk(const Plan& plan, size_t unit)
      : n(unit / plan.bands / plan.problem.in_channels),
        c(unit / plan.bands % plan.problem.in_channels),
        band(unit % plan.bands) {}
  [[gnu::always_inline]] inline void advance(const Plan& plan) {
    if (++band < plan.bands) return;
    band = 0;
    if (++c < plan.problem.in_channels) return;
    c = 0;
    ++n;
  }
};

// ---- the stage ----

// The stage begins where column 0 of the image, the first one after `left` zeros, is aligned: whole vectors are written
// there.
OBN_INLINE float* begin_stage(const Plan& plan, float* memory) {
  float* stage = memory + (round_up(plan.stage_left, kPad) - plan.stage_left);
  fill_zeros(memory, plan.stage_floats);
  return stage;
}

// `rows` rows of x, `step` values apart, into their column phases, one line each.
void split_rows(const Plan& plan, const float* x, size_t step, size_t rows, float* line) {
  const Axis& axis = plan.problem.x;
  const size_t n = as_size(axis.in), left = as_size(axis.before), stride = as_size(axis.stride);
  if (stride == 1) {
    for (size_t i = 0; i < rows; ++i) copy_row(x + i * step, n, line + i * plan.line + left);
  } else if (stride == 2) {
    float* even = line + left % 2 * plan.pitch + left / 2;
    float* odd = line + (left + 1) % 2 * plan.pitch + (left + 1) / 2;
    for (size_t i = 0; i < rows; ++i) copy_pairs(x + i * step, n, even + i * plan.line, odd + i * plan.line);
  } else {
    for (size_t i = 0; i < rows; ++i) {
      for (size_t r = 0; r < stride; ++r) {
        const size_t first = (r + stride - left % stride) % stride;  // first column of phase r
        float* to = line + i * plan.line + r * plan.pitch + (first + left) / stride;
        for (size_t u = first; u < n; u += stride) *to++ = x[i * step + u];
      }
    }
  }
}

// The rows of x under rows [from, from + count) of y. What is never written here is zero: begin_stage cleared it.
void stage_input(const Plan& plan, const float* x, size_t x_row, size_t from, size_t count, float* stage) {
  const Axis& y = plan.problem.y;
  const size_t rows = plan.stage_rows - plan.band + count, stride = as_size(y.stride);
  for (size_t r = 0; r < stride; ++r) {
    float* line = stage + r * plan.stage_rows * plan.line;
    const Places inside = plan.inside[r];
    const size_t first = least(most(inside.first, from) - from, rows);
    const size_t end = least(most(inside.end, from + first) - from, rows);
    if (first > 0) fill_zeros(line, first * plan.line);
    if (first < end)
      split_rows(plan, x + (stride * (from + first) + r - as_size(y.before)) * x_row, stride * x_row, end - first,
                 line + first * plan.line);
    if (end < rows) fill_zeros(line + end * plan.line, (rows - end) * plan.line);
  }
}

// The rows of dz that places [from, from + count) gather.
void stage_gradient(const Plan& plan, const float* dz, size_t dz_row, size_t from, size_t count, float* stage) {
  const size_t rows = plan.stage_rows - plan.band + count, n = as_size(plan.problem.x.out);
  const size_t first = least(plan.stage_up > from ? plan.stage_up - from : 0, rows);
  const size_t bottom = as_size(plan.problem.y.out) + plan.stage_up;  // stage row behind dz, were from 0
  const size_t end = least(most(bottom, from + first) - from, rows);
  fill_zeros(stage, first * plan.line);
  for (size_t i = first; i < end; ++i)
    copy_row(dz + (from + i - plan.stage_up) * dz_row, n, stage + i * plan.line + plan.stage_left);
  fill_zeros(stage + end * plan.line, (rows - end) * plan.line);
}

// ---- sums over taps ----

// y(r, q) = start + Σ w(tap) · x(at + r·line + q), or y += …
struct Sum {
  const float* x;
  size_t line;
  const Group* groups;
  size_t count;
  const float* w;
  float* y;
  size_t y_row;
  size_t columns;
  float start;
  bool accumulate;
};

template <size_t kRows, size_t kTaps>
OBN_INLINE void add_group(F (&sums)[kRows], const Group& group, const float* w, const float* x, size_t line) {
  F tap[kTaps];
#pragma GCC unroll 3
  for (size_t k = 0; k < kTaps; ++k) tap[k] = splat(w[group.tap[k]]);
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows + kTaps - 1; ++i, x = held(x + line)) {
    const F v = held(load(x));
#pragma GCC unroll 3
    for (size_t k = 0; k < kTaps; ++k)
      if (i >= k && i - k < kRows) sums[i - k] = fma(tap[k], v, sums[i - k]);
  }
}

template <size_t kRows>
OBN_INLINE void add_groups(F (&sums)[kRows], const Sum& s, size_t q) {
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) sums[r] = splat(s.start);
  for (size_t g = 0; g < s.count; ++g) {
    const Group& group = s.groups[g];
    const float* x = s.x + group.at + q;
    if (group.count == 3) {
      add_group<kRows, 3>(sums, group, s.w, x, s.line);
    } else if (group.count == 2) {
      add_group<kRows, 2>(sums, group, s.w, x, s.line);
    } else {
      add_group<kRows, 1>(sums, group, s.w, x, s.line);
    }
  }
}

template <size_t kRows>
void sum_rows(const Sum& s) {
  F sums[kRows];
  size_t q = 0;
  for (; q + kLanes <= s.columns; q += kLanes) {
    add_groups<kRows>(sums, s, q);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      float* y = s.y + r * s.y_row + q;
      store(y, s.accumulate ? load(y) + sums[r] : sums[r]);
    }
  }
  if (q == s.columns) return;
  if (kLanes < 16 && s.columns > kLanes && !s.accumulate) {
    // Where part of a vector is expensive to store, some columns are done twice instead.
    q = s.columns - kLanes;
    add_groups<kRows>(sums, s, q);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) store(s.y + r * s.y_row + q, sums[r]);
    return;
  }
  const size_t rest = s.columns - q;
  add_groups<kRows>(sums, s, q);
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
    float* y = s.y + r * s.y_row + q;
    store_first(y, s.accumulate ? load_first(y, rest) + sums[r] : sums[r], rest);
  }
}

using SumRows = void (*)(const Sum&);
constexpr SumRows kSumRows[kRowsAtOnce + 1] = {nullptr,     sum_rows<1>, sum_rows<2>, sum_rows<3>, sum_rows<4>,
                                               sum_rows<5>, sum_rows<6>, sum_rows<7>, sum_rows<8>};

// `rows` rows, in blocks that come out even.
void sum_all_rows(Sum s, size_t rows) {
  size_t blocks = divide_up(rows, kRowsAtOnce);
  for (; blocks > 0; --blocks) {
    const size_t now = divide_up(rows, blocks);
    kSumRows[now](s);
    s.x += now * s.line;
    s.y += now * s.y_row;
    rows -= now;
  }
}

// ---- planes in place ----

// A kernel of 3x3 taps side by side moves over rows as they lie in memory, where a load can leave out the lanes outside
// the image: the stage, which costs a third of a pass, is not needed, nor is fetching ahead. Only with AVX-512: other
// targets have neither the masks nor the registers.
OBN_INLINE bool is_in_place(const Plan& plan) {
  auto fits = [](const Axis& axis) __attribute__((always_inline)) {
    return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.before <= 2;
  };
  return kLanes == 16 && fits(plan.problem.x) && fits(plan.problem.y);
}

// Rows [from, end) of one plane of the result: y(p, q) = start + Σ w(ky, kx) · x(p + ky - up, q + kx - left). The same
// sum is dx, with the weights turned round and 2 - up, 2 - left.
struct Slide {
  const float* x;
  size_t x_row, x_rows, x_columns;
  size_t up, left;
  float* y;
  size_t y_row, columns;
  size_t from, end;
  float start;
  bool accumulate;
};

// Lanes of x(·, q + lane + kx - left) that are inside the image and belong to the `columns` columns of the result.
OBN_INLINE Keep inside_lanes(size_t q, size_t kx, size_t left, size_t x_columns, size_t columns) {
  const size_t before = q + kx < left ? left - q - kx : 0;
  const size_t inside = x_columns + left > q + kx ? x_columns + left - q - kx : 0;
  const size_t end = least(least(columns - q, inside), kLanes);
  return keep_lanes(least(before, end), end);
}

// A strip of kLanes columns; every row of x is read once and added to the three rows of y that it belongs to.
OBN_INLINE void slide_strip(const Slide& s, const F (&w)[9], size_t q) {
  Keep keep[3];
#pragma GCC unroll 3
  for (size_t k = 0; k < 3; ++k) keep[k] = inside_lanes(q, k, s.left, s.x_columns, s.columns);
  const size_t width = least(kLanes, s.columns - q);
  float* y = s.y + s.from * s.y_row + q;
  auto put = [&](F v) __attribute__((always_inline)) {
    if (width == kLanes) {
      store(y, s.accumulate ? load(y) + v : v);
    } else {
      store_first(y, s.accumulate ? load_first(y, width) + v : v, width);
    }
    y += s.y_row;
  };
  const F start = splat(s.start);
  F next = start, last = start;  // the row of y after the next one, and the next one, so far
  const size_t first = s.from > s.up ? s.from - s.up : 0, end = least(s.end + 2 - s.up, s.x_rows);
  size_t row = first + s.up;  // the next row of y is row - 2
  const float* x = s.x + first * s.x_row + q - s.left;
  for (size_t i = first; i < end; ++i, ++row, x += s.x_row) {
    const F a = held(load_kept(x, keep[0])), b = held(load_kept(x + 1, keep[1])), c = held(load_kept(x + 2, keep[2]));
    const F done = fma(w[8], c, fma(w[7], b, fma(w[6], a, last)));
    last = fma(w[5], c, fma(w[4], b, fma(w[3], a, next)));
    next = fma(w[2], c, fma(w[1], b, fma(w[0], a, start)));
    if (row >= s.from + 2) put(done);
  }
  for (; row < s.end + 2; ++row) {  // below the image
    if (row >= s.from + 2) put(last);
    last = next;
    next = start;
  }
}

void slide(const Slide& s, const float* weights, bool turned) {
  F w[9];
#pragma GCC unroll 9
  for (size_t t = 0; t < 9; ++t) w[t] = held(splat(weights[turned ? 8 - t : t]));
  for (size_t q = 0; q < s.columns; q += kLanes) slide_strip(s, w, q);
}

// sums(ky, kx) += Σ dz(p, q) · x(p + ky - up, q + kx - left) over rows [from, end) of dz
struct SlideProducts {
  const float* x;
  size_t x_row, x_rows, x_columns;
  size_t up, left;
  const float* dz;
  size_t dz_row, columns;
  size_t from, end;
};

OBN_INLINE void multiply_strip(const SlideProducts& s, size_t q, F (&sums)[9]) {
  Keep keep[3];
#pragma GCC unroll 3
  for (size_t k = 0; k < 3; ++k) keep[k] = inside_lanes(q, k, s.left, s.x_columns, s.columns);
  const Keep width = keep_lanes(0, least(kLanes, s.columns - q));
  const size_t first = s.from > s.up ? s.from - s.up : 0, end = least(s.end + 2 - s.up, s.x_rows);
  const float* x = s.x + first * s.x_row + q - s.left;
  // Row i of x meets rows i + up - ky of dz. One that is outside takes no part: 0 · Inf is not 0.
  auto edge = [&](size_t i) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (size_t ky = 0; ky < 3; ++ky) {
      if (i + s.up < s.from + ky || i + s.up >= s.end + ky) continue;
      const F d = load_kept(s.dz + (i + s.up - ky) * s.dz_row + q, width);
#pragma GCC unroll 3
      for (size_t k = 0; k < 3; ++k) sums[3 * ky + k] = fma(d, load_kept(x + k, keep[k]), sums[3 * ky + k]);
    }
    x += s.x_row;
  };
  size_t i = first;
  for (; i < end && i + s.up < s.from + 2; ++i) edge(i);
  const size_t body = least(end, s.end > s.up ? s.end - s.up : 0);
  if (i < body) {
    const float* dz = s.dz + (i + s.up) * s.dz_row + q;
    F d1 = load_kept(dz - s.dz_row, width), d2 = load_kept(dz - 2 * s.dz_row, width);
    for (; i < body; ++i, x += s.x_row, dz += s.dz_row) {
      const F d0 = held(load_kept(dz, width));
#pragma GCC unroll 3
      for (size_t k = 0; k < 3; ++k) {
        const F v = held(load_kept(x + k, keep[k]));
        sums[k] = fma(d0, v, sums[k]);
        sums[3 + k] = fma(d1, v, sums[3 + k]);
        sums[6 + k] = fma(d2, v, sums[6 + k]);
      }
      d2 = d1;
      d1 = d0;
    }
  }
  for (; i < end; ++i) edge(i);
}

void slide_products(const SlideProducts& s, F* all) {
  F sums[9];
#pragma GCC unroll 9
  for (size_t t = 0; t < 9; ++t) sums[t] = all[t];
  for (size_t q = 0; q < s.columns; q += kLanes) multiply_strip(s, q, sums);
#pragma GCC unroll 9
  for (size_t t = 0; t < 9; ++t) all[t] = sums[t];
}

// Both gradients of one plane of as many rows (two or more) and columns as dz has, with a border of one zero: each is
// what slide and slide_products give, to the bit.
struct SlideGradients {
  const float *x, *dz;
  size_t x_row, dz_row;
  float* dx;
  size_t dx_row;
  size_t rows, columns;
  bool accumulate;
};

OBN_INLINE void differentiate_strip(const SlideGradients& s, const F (&w)[9], size_t q, F (&sums)[9]) {
  Keep keep[3];
#pragma GCC unroll 3
  for (size_t k = 0; k < 3; ++k) keep[k] = inside_lanes(q, k, 1, s.columns, s.columns);
  const size_t width = least(kLanes, s.columns - q);
  const float *x = s.x + q - 1, *dz = s.dz + q - 1;
  float* dx = s.dx + q;
  auto put = [&](F v) __attribute__((always_inline)) {
    if (width == kLanes) {
      store(dx, s.accumulate ? load(dx) + v : v);
    } else {
      store_first(dx, s.accumulate ? load_first(dx, width) + v : v, width);
    }
    dx += s.dx_row;
  };
  // A row of dz belongs to three rows of dx. Returned is its middle, which meets rows of x.
  const F start = F{};
  F next = start, last = start, done;
  auto spread = [&]() __attribute__((always_inline)) {
    const F a = held(load_kept(dz, keep[0])), b = held(load_kept(dz + 1, keep[1]));
    const F c = held(load_kept(dz + 2, keep[2]));
    done = fma(w[8], c, fma(w[7], b, fma(w[6], a, last)));
    last = fma(w[5], c, fma(w[4], b, fma(w[3], a, next)));
    next = fma(w[2], c, fma(w[1], b, fma(w[0], a, start)));
    dz += s.dz_row;
    return b;
  };
  // The next row of x meets rows of dz from the one below it on. One that is outside takes no part: 0 · Inf is not 0.
  auto meet = [&](size_t ky, F d) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (size_t k = 0; k < 3; ++k) sums[3 * ky + k] = fma(d, load_kept(x + k, keep[k]), sums[3 * ky + k]);
  };
  F d2 = spread(), d1 = spread();
  put(done);
  meet(0, d1);
  meet(1, d2);
  x += s.x_row;
  for (size_t i = 2; i < s.rows; ++i, x += s.x_row) {
    const F d0 = spread();
    put(done);
#pragma GCC unroll 3
    for (size_t k = 0; k < 3; ++k) {
      const F v = held(load_kept(x + k, keep[k]));
      sums[k] = fma(d0, v, sums[k]);
      sums[3 + k] = fma(d1, v, sums[3 + k]);
      sums[6 + k] = fma(d2, v, sums[6 + k]);
    }
    d2 = d1;
    d1 = d0;
  }
  put(last);
  meet(1, d1);
  meet(2, d2);
}

// ---- forward ----

void forward(const Plan& plan, const Forward& f, size_t first_unit, size_t units, std::byte* work) {
  const Problem& s = plan.problem;
  const size_t columns = as_size(s.x.out);
  const bool in_place = is_in_place(plan);
  float* stage = in_place ? nullptr : begin_stage(plan, reinterpret_cast<float*>(work));
  Walk walk(plan, first_unit);
  for (size_t i = 0; i < units; ++i, walk.advance(plan)) {
    const size_t n = walk.n, c = walk.c, from = walk.band * plan.band, rows = least(plan.band, plan.rows - from);
    const float* x = f.x.data + n * f.x.sample + c * f.x.plane;
    if (!in_place) {
      stage_input(plan, x, f.x.row, from, rows, stage);
      if (c + 1 < s.in_channels) fetch_ahead(x + f.x.plane, f.x.plane);
    }
    for (size_t o = c * plan.multiplier; o < (c + 1) * plan.multiplier; ++o) {
      float* y = f.y.data + n * f.y.sample + o * f.y.plane;
      const float start = f.bias ? f.bias[o] : 0.0f;
      if (in_place) {
        slide({x, f.x.row, as_size(s.y.in), as_size(s.x.in), as_size(s.y.before), as_size(s.x.before), y, f.y.row,
               columns, from, from + rows, start, false}, f.w + o * plan.taps, false);
      } else {
        sum_all_rows({stage, plan.line, plan.groups, plan.begin[1], f.w + o * plan.taps, y + from * f.y.row, f.y.row,
                      columns, start, false}, rows);
      }
      activate(f.activation, y + from * f.y.row, f.y.row, rows, columns);
    }
  }
}

// ---- dx ----

// Rows of dx at places [from, from + rows) of phase ry, from one staged plane of dz.
void gather_rows(const Plan& plan, const float* stage, const float* w, size_t ry, size_t from, size_t rows, float start,
                 bool accumulate, float* dx, size_t dx_row, float* lines) {
  const Problem& s = plan.problem;
  const size_t sx = as_size(s.x.stride), sy = as_size(s.y.stride), n = as_size(s.x.in), left = as_size(s.x.before);
  const Places y = plan.inside[ry];
  const size_t first = y.first > from ? y.first : from, end = least(y.end, from + rows);
  if (first >= end) return;
  dx += (sy * first + ry - as_size(s.y.before)) * dx_row;
  stage += (first - from) * plan.line;
  if (sx == 1) {
    const size_t phase = ry;
    const Group* groups = plan.groups + plan.begin[phase];
    return sum_all_rows({stage + left, plan.line, groups, size_t{plan.begin[phase + 1]} - plan.begin[phase], w, dx,
                         sy * dx_row, n, start, accumulate}, end - first);
  }
  const size_t pitch = round_up(n / sx + 1, kPad) + kPad;  // of lines (kRowsAtOnce, sx, pitch)
  for (size_t row = first; row < end; row += kRowsAtOnce) {
    const size_t now = least(kRowsAtOnce, end - row);
    for (size_t i = 0; i < sx; ++i) {  // column u = i, i + sx, …
      const size_t rx = (left + i) % sx, phase = ry * sx + rx;
      const Group* groups = plan.groups + plan.begin[phase];
      kSumRows[now]({stage + (left + i) / sx, plan.line, groups, size_t{plan.begin[phase + 1]} - plan.begin[phase], w,
                     lines + i * pitch, sx * pitch, n > i ? divide_up(n - i, sx) : 0, start, false});
    }
    for (size_t r = 0; r < now; ++r)
      join_row(lines + r * sx * pitch, pitch, sx, n, accumulate, dx + r * sy * dx_row);
    stage += now * plan.line;
    dx += now * sy * dx_row;
  }
}

void input_gradient(const Plan& plan, const InputGradient& g, size_t first_unit, size_t units, std::byte* work) {
  const Problem& s = plan.problem;
  const bool in_place = is_in_place(plan);
  float* stage = in_place ? nullptr : begin_stage(plan, reinterpret_cast<float*>(work));
  float* lines = reinterpret_cast<float*>(work) + round_up(plan.stage_floats, kPad);
  Walk walk(plan, first_unit);
  for (size_t i = 0; i < units; ++i, walk.advance(plan)) {
    const size_t n = walk.n, c = walk.c, from = walk.band * plan.band, rows = least(plan.band, plan.rows - from);
    float* dx = g.dx.data + n * g.dx.sample + c * g.dx.plane;
    for (size_t j = 0; j < plan.multiplier; ++j) {
      const size_t o = c * plan.multiplier + j;
      const float* dz = g.dz.data + n * g.dz.sample + o * g.dz.plane;
      const float start = g.bias && j == 0 ? g.bias[c] : 0.0f;
      if (in_place) {
        const size_t up = as_size(s.y.before), end = least(from + rows - least(up, from + rows), as_size(s.y.in));
        slide({dz, g.dz.row, as_size(s.y.out), as_size(s.x.out), 2 - up, 2 - as_size(s.x.before), dx, g.dx.row,
               as_size(s.x.in), from - least(up, from), end, start, g.accumulate || j > 0}, g.w + o * plan.taps, true);
        continue;
      }
      stage_gradient(plan, dz, g.dz.row, from, rows, stage);
      if (o + 1 < s.out_channels) fetch_ahead(dz + g.dz.plane, g.dz.plane);
      for (size_t ry = 0; ry < as_size(s.y.stride); ++ry)
        gather_rows(plan, stage, g.w + o * plan.taps, ry, from, rows, start, g.accumulate || j > 0, dx, g.dx.row,
                    lines);
    }
    const size_t sy = as_size(s.y.stride), up = as_size(s.y.before), end = sy * (from + rows);
    const size_t top = sy * from > up ? sy * from - up : 0, bottom = end > up ? least(end - up, as_size(s.y.in)) : 0;
    if (top < bottom) activate(g.activation, dx + top * g.dx.row, g.dx.row, bottom - top, as_size(s.x.in));
  }
}

// ---- dw ----

// A chain of kernel rows, some kernel columns of it, and one plane of dz:
//   sums(i, k) += Σ dz(p, q) · x(p + i, q + at(k))
struct Products {
  const float* x;      // first row of the chain, column 0
  size_t line;
  const uint32_t* at;  // of the kernel columns
  const float* dz;
  size_t dz_row;
  size_t rows;
  size_t columns;
  F* sums;             // of tap (i, k): sums[tap(i) + k]
  const uint8_t* ky;
  size_t kw;
};

template <size_t kTall, size_t kWide, size_t kRows, bool kPart>
OBN_INLINE void add_products(F (&sums)[kTall][kWide], const Products& s, size_t p, size_t q, Keep keep) {
  F d[kRows];
  const float* dz = s.dz + p * s.dz_row + q;
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r, dz = held(dz + s.dz_row)) d[r] = kPart ? load_kept(dz, keep) : load(dz);
  const float* x = s.x + p * s.line + q;
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows + kTall - 1; ++i, x = held(x + s.line)) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kWide; ++k) {
      const F v = held(kPart ? load_kept(x + s.at[k], keep) : load(x + s.at[k]));
#pragma GCC unroll 4
      for (size_t t = 0; t < kTall; ++t)
        if (i >= t && i - t < kRows) sums[t][k] = fma(d[i - t], v, sums[t][k]);
    }
  }
}

template <size_t kTall, size_t kWide, bool kPart>
OBN_INLINE void add_strip(F (&sums)[kTall][kWide], const Products& s, size_t q, Keep keep) {
  size_t p = 0;
  for (; p + kGradientRows <= s.rows; p += kGradientRows)
    add_products<kTall, kWide, kGradientRows, kPart>(sums, s, p, q, keep);
  for (; p < s.rows; ++p) add_products<kTall, kWide, 1, kPart>(sums, s, p, q, keep);
}

// Lanes outside the row are zeros on both sides, so that nothing that lies there can reach a sum.
template <size_t kTall, size_t kWide>
void multiply(const Products& s) {
  F sums[kTall][kWide];
#pragma GCC unroll 4
  for (size_t t = 0; t < kTall; ++t)
#pragma GCC unroll 4
    for (size_t k = 0; k < kWide; ++k) sums[t][k] = s.sums[s.ky[t] * s.kw + k];
  size_t q = 0;
  for (; q + kLanes <= s.columns; q += kLanes) add_strip<kTall, kWide, false>(sums, s, q, Keep{});
  if (q < s.columns) {
    // The last whole vector; where a mask keeps loads inside, or rows were widened, the next one.
    const size_t last = kLanes < 16 && s.columns > kLanes ? s.columns - kLanes : q;
    add_strip<kTall, kWide, true>(sums, s, last, keep_lanes(q - last, s.columns - last));
  }
#pragma GCC unroll 4
  for (size_t t = 0; t < kTall; ++t)
#pragma GCC unroll 4
    for (size_t k = 0; k < kWide; ++k) s.sums[s.ky[t] * s.kw + k] = sums[t][k];
}

using Multiply = void (*)(const Products&);
constexpr Multiply kMultiply[kChain][kColumnsAtOnce] = {{multiply<1, 1>, multiply<1, 2>, multiply<1, 3>},
                                                        {multiply<2, 1>, multiply<2, 2>, multiply<2, 3>},
                                                        {multiply<3, 1>, multiply<3, 2>, multiply<3, 3>}};

// Rows narrower than a vector, where loading part of one is expensive: they are copied to rows of kLanes values.
const float* widen(const float* dz, size_t dz_row, size_t rows, size_t columns, float* to) {
  for (size_t r = 0; r < rows; ++r) store(to + r * kLanes, load_first(dz + r * dz_row, columns));
  return to;
}

// sums (m, kh, kw) of one band of one plane.
void add_band(const Plan& plan, const float* stage, const float* dz, size_t dz_row, size_t dz_plane, size_t rows,
              float* wide, F* sums) {
  const size_t kw = as_size(plan.problem.x.kernel), columns = as_size(plan.problem.x.out);
  const bool widens = kLanes < 16 && columns < kLanes;
  for (size_t j = 0; j < plan.multiplier; ++j, dz += dz_plane) {
    const float* rows_of_dz = widens ? widen(dz, dz_row, rows, columns, wide) : dz;
    for (size_t i = 0; i < plan.chain_count; ++i) {
      const Chain& chain = plan.chains[i];
      for (size_t kx = 0; kx < kw; kx += kColumnsAtOnce) {
        const size_t now = least(kColumnsAtOnce, kw - kx);
        kMultiply[chain.count - 1][now - 1]({stage + chain.row * plan.line, plan.line, plan.column + kx, rows_of_dz,
                                             widens ? kLanes : dz_row, rows, columns, sums + j * plan.taps + kx,
                                             chain.ky, kw});
      }
    }
  }
}

// One number out of each vector of sums (n, rounded up to whole vectors of them).
void add_lanes(const F* sums, size_t n, float* dw) {
  for (size_t i = 0; i < n; i += kLanes) {
    F some[kLanes];
    for (size_t k = 0; k < kLanes; ++k) some[k] = sums[i + k];
    const F totals = sum_each(some);
    if (n - i >= kLanes) {
      store(dw + i, totals);
    } else {
      store_first(dw + i, totals, n - i);
    }
  }
}

void weight_gradient(const Plan& plan, const WeightGradient& g, size_t channel, size_t channels, size_t first,
                     size_t count, float* dw, std::byte* work) {
  const Problem& s = plan.problem;
  const size_t per_channel = plan.multiplier * plan.taps, all = channels * per_channel;
  F* sums = reinterpret_cast<F*>(work);  // (channels, m, kh, kw) vectors, and some more
  float* memory = reinterpret_cast<float*>(work) + (all + kPad) * kPad;
  const bool in_place = is_in_place(plan);
  float* stage = in_place ? nullptr : begin_stage(plan, memory);
  float* wide = memory + round_up(plan.stage_floats, kPad);  // (band, kLanes)
  for (size_t i = 0; i < all + kLanes; ++i) sums[i] = F{};
  for (size_t n = first; n < first + count; ++n) {
    for (size_t c = channel; c < channel + channels; ++c) {
      const float* x = g.x.data + n * g.x.sample + c * g.x.plane;
      const float* dz = g.dz.data + n * g.dz.sample + c * plan.multiplier * g.dz.plane;
      for (size_t from = 0; from < plan.rows; from += plan.band) {
        const size_t rows = least(plan.band, plan.rows - from);
        if (in_place) {
          // Planes of one channel do not follow each other.
          if (channels == 1 && n + 1 < first + count) fetch_ahead(x + g.x.sample, g.x.plane);
          for (size_t j = 0; j < plan.multiplier; ++j)
            slide_products({x, g.x.row, as_size(s.y.in), as_size(s.x.in), as_size(s.y.before), as_size(s.x.before),
                            dz + j * g.dz.plane, g.dz.row, as_size(s.x.out), from, from + rows},
                           sums + (c - channel) * per_channel + j * plan.taps);
          continue;
        }
        stage_input(plan, x, g.x.row, from, rows, stage);
        if (c + 1 < channel + channels) {
          fetch_ahead(x + g.x.plane, g.x.plane);
          fetch_ahead(dz + plan.multiplier * g.dz.plane, g.dz.plane);
        }
        add_band(plan, stage, dz + from * g.dz.row, g.dz.row, g.dz.plane, rows, wide,
                 sums + (c - channel) * per_channel);
      }
    }
  }
  add_lanes(sums, all, dw);
}

// ---- both ----

// Planes of one channel do not follow each other. Into the second-level cache: the first one is full of the plane in
// use.
OBN_INLINE void fetch_plane(const float* p, size_t n) {
  constexpr size_t kLine = 16;
  for (size_t i = 0; i < n; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

void gradients(const Plan& plan, const InputGradient& to_x, const WeightGradient& to_w, size_t channel, size_t first,
               size_t count, float* dw) {
  F w[9], sums[kPad] = {};
#pragma GCC unroll 9
  for (size_t t = 0; t < 9; ++t) w[t] = held(splat(to_x.w[channel * plan.taps + 8 - t]));
  const size_t columns = as_size(plan.problem.x.out);
  for (size_t n = first; n < first + count; ++n) {
    const float* x = to_w.x.data + n * to_w.x.sample + channel * to_w.x.plane;
    float* dx = to_x.dx.data + n * to_x.dx.sample + channel * to_x.dx.plane;
    if (n + 1 < first + count) {
      fetch_plane(x + to_w.x.sample, to_w.x.plane);
      fetch_plane(dx + to_x.dx.sample, to_x.dx.plane);
    }
    F of_plane[9];
#pragma GCC unroll 9
    for (size_t t = 0; t < 9; ++t) of_plane[t] = sums[t];
    for (size_t q = 0; q < columns; q += kLanes)
      differentiate_strip({x, to_x.dz.data + n * to_x.dz.sample, to_w.x.row, to_x.dz.row, dx, to_x.dx.row, plan.rows,
                           columns, to_x.accumulate}, w, q, of_plane);
#pragma GCC unroll 9
    for (size_t t = 0; t < 9; ++t) sums[t] = of_plane[t];
  }
  add_lanes(sums, 9, dw);
}

constexpr obn::convolution::depthwise::Kernels kernels = {forward, input_gradient, weight_gradient,
                                                          kLanes == 16 ? gradients : nullptr};

}  // namespace

}  // namespace obn::OBN_TARGET::convolution::depthwise

constinit const obn::convolution::depthwise::Kernels obn::convolution::depthwise::Compiled::OBN_TARGET = obn::OBN_TARGET::convolution::depthwise::kernels;
