// The loops, once per target. A function is a struct of a forward vector expression with its slopes below it; the row
// loops are written once and take any of them. Letters as in activation.h.
#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "simd/convert.h"
#include "simd/math.h"

namespace obn::OBN_TARGET::activation {

namespace {

// ---- the functions: y(x), y'(x) from x, and y' from y where y determines it (docs/interface/activation.md 2) ----

struct Parameters {
  F alpha, beta;
};

// Functions whose slope is 1 or 0 say where it is 1, by open_x and open_y instead of slope_x and slope_y: elsewhere what
// arrives is shut out, infinities and NaN too. A zero of its sign is left, as of a product with 0.
OBN_INLINE F gated(F dy, I is_open) { return from_bits(bits(dy) & (is_open | static_cast<int32_t>(0x80000000))); }

struct Identity : Parameters {
  F forward(F x) const { return x; }
  F slope_x(F) const { return splat(1.0f); }
  F slope_y(F) const { return splat(1.0f); }
};

struct RectifiedLinear : Parameters {
  F forward(F x) const { return x < 0.0f ? splat(0.0f) : x; }
  I open_x(F x) const { return ~(0.0f >= x); }
  I open_y(F y) const { return open_x(y); }
};

struct LeakyRectifiedLinear : Parameters {
  F forward(F x) const { return x < 0.0f ? alpha * x : x; }
  F slope_x(F x) const { return x > 0.0f ? splat(1.0f) : alpha; }
  F slope_y(F y) const { return slope_x(y); }
};

struct Sigmoid : Parameters {
  F forward(F x) const { return sigmoid(x); }
  F slope_x(F x) const { return sigmoid_and_slope(x).slope; }
  F slope_y(F y) const { return y * (1.0f - y); }
};

struct Tanh : Parameters {
  F forward(F x) const { return tanh(x); }
  F slope_x(F x) const { return 4.0f * sigmoid_and_slope(2.0f * x).slope; }  // 1 - tanh², without the difference
  F slope_y(F y) const { return fnma(y, y, splat(1.0f)); }
};

struct ScaledTanh : Parameters {
  F forward(F x) const { return alpha * tanh(beta * x); }
  F slope_x(F x) const { return alpha * beta * Tanh{alpha, beta}.slope_x(beta * x); }
  F slope_y(F y) const { return beta * (alpha - y * y / alpha); }
};

struct Abs : Parameters {
  F forward(F x) const { return abs(x); }
  F slope_x(F x) const { return x > 0.0f ? splat(1.0f) : (x < 0.0f ? splat(-1.0f) : x * 0.0f); }  // NaN stays NaN
};

struct Linear : Parameters {
  F forward(F x) const { return alpha * x; }
  F slope_x(F) const { return alpha; }
  F slope_y(F) const { return alpha; }
};

struct Clamp : Parameters {
  F forward(F x) const { return min(beta, max(alpha, x)); }
  I open_x(F x) const { return (alpha <= x) & (x <= beta); }
  I open_y(F y) const { return (alpha < y) & (y < beta); }
};

// ½x(1 + tanh(v/2)) = x·σ(v), v = 2α(x + βx³). Beyond 1e6 (x) and 1e6 (v) nothing happens but ∞·0.
struct GELUApproximation : Parameters {
  static F bound(F v) { return min(splat(1e6f), max(splat(-1e6f), v)); }
  F inner(F x) const { return bound(x * fma(2.0f * alpha * beta, x * x, 2.0f * alpha)); }
  F forward(F x) const { return max(splat(-1e6f), x) * sigmoid_of_moderate(inner(bound(x))); }
  F slope_x(F x) const {
    x = bound(x);
    SigmoidAndSlope s = sigmoid_and_slope(inner(x));
    return fma(x * s.slope, fma(6.0f * alpha * beta, x * x, 2.0f * alpha), s.value);
  }
};

struct HardSigmoid : Parameters {
  F forward(F x) const { return max(splat(0.0f), min(splat(1.0f), fma(alpha, x, beta))); }
  F slope_x(F x) const { return slope_y(fma(alpha, x, beta)); }
  F slope_y(F y) const { return ((0.0f < y) & (y < 1.0f)) ? alpha : splat(0.0f); }
};

struct Softplus : Parameters {
  F forward(F x) const { return alpha * softplus(beta * x); }
  F slope_x(F x) const { return alpha * beta * sigmoid(beta * x); }
  F slope_y(F y) const { return alpha * beta * -expm1(-y / alpha); }
};

struct Softsign : Parameters {
  F forward(F x) const {
    F size = min(splat(3e38f), abs(x));
    return copysign(size / (1.0f + size), x);
  }
  F slope_x(F x) const {
    F t = 1.0f / (1.0f + abs(x));
    return t * t;
  }
  F slope_y(F y) const {
    F t = 1.0f - abs(y);
    return t * t;
  }
};

struct ELU : Parameters {
  F forward(F x) const { return x < 0.0f ? alpha * expm1(x) : x; }
  F slope_x(F x) const { return x < 0.0f ? alpha * exp(x) : splat(1.0f); }
  F slope_y(F y) const { return y < 0.0f ? y + alpha : splat(1.0f); }
};

struct ClampedLeakyRectifiedLinear : Parameters {
  F leaky(F x) const { return x < 0.0f ? alpha * x : x; }
  F forward(F x) const { return min(beta, leaky(x)); }
  F slope_x(F x) const { return leaky(x) < beta ? (x < 0.0f ? alpha : splat(1.0f)) : splat(0.0f); }
  F slope_y(F y) const { return y < beta ? (y < 0.0f ? alpha : splat(1.0f)) : splat(0.0f); }
};

struct LinearWithBias : Parameters {
  F forward(F x) const { return fma(alpha, x, beta); }
  F slope_x(F) const { return alpha; }
  F slope_y(F) const { return alpha; }
};

struct LogSigmoid : Parameters {
  F forward(F x) const { return -softplus(-x); }
  F slope_x(F x) const { return sigmoid(-x); }
  F slope_y(F y) const { return -expm1(y); }
};

constexpr float kSeluScale = 1.0507009873554805f;
constexpr float kSeluAlpha = 1.0507009873554805f * 1.6732632423543772f;

struct SELU : Parameters {
  F forward(F x) const { return x < 0.0f ? kSeluAlpha * expm1(x) : kSeluScale * x; }
  F slope_x(F x) const { return x < 0.0f ? kSeluAlpha * exp(x) : splat(kSeluScale); }
  F slope_y(F y) const { return y < 0.0f ? y + kSeluAlpha : splat(kSeluScale); }
};

struct CELU : Parameters {
  F forward(F x) const { return x < 0.0f ? alpha * expm1(x / alpha) : x; }
  F slope_x(F x) const { return x < 0.0f ? exp(x / alpha) : splat(1.0f); }
  F slope_y(F y) const { return y < 0.0f ? y / alpha + 1.0f : splat(1.0f); }
};

struct HardShrink : Parameters {
  F forward(F x) const { return abs(x) < abs(alpha) ? splat(0.0f) : x; }
  I open_x(F x) const { return ~(abs(x) < abs(alpha)); }
  I open_y(F y) const { return y != 0.0f; }
};

struct SoftShrink : Parameters {
  F forward(F x) const { return abs(x) < abs(alpha) ? splat(0.0f) : x - copysign(alpha, x); }
  I open_x(F x) const { return ~(abs(x) < abs(alpha)); }
  I open_y(F y) const { return y != 0.0f; }
};

struct TanhShrink : Parameters {
  F forward(F x) const { return tanh_shrink(x); }
  F slope_x(F x) const {
    F t = tanh(x);
    return t * t;
  }
};

struct Threshold : Parameters {
  F forward(F x) const { return x <= alpha ? beta : x; }
  I open_x(F x) const { return ~(alpha >= x); }
  I open_y(F y) const { return open_x(y); }
};

struct HardSwish : Parameters {
  F forward(F x) const { return max(splat(-3.0f), x) * (min(splat(6.0f), max(splat(0.0f), x + 3.0f)) * (1.0f / 6.0f)); }
  F slope_x(F x) const {
    return x <= -3.0f ? splat(0.0f) : (x >= 3.0f ? splat(1.0f) : fma(splat(2.0f), x, splat(3.0f)) / 6.0f);
  }
};

// x·σ(kx), and its slope σ + kx·σ'; the bounds keep -∞·0 and ∞·0 away.
F silu(F x, float k) {
  F bounded = max(splat(-1e6f), x);
  return bounded * sigmoid_of_moderate(k * min(splat(1e6f), bounded));
}
F silu_slope(F x, float k) {
  x = k * min(splat(1e6f), max(splat(-1e6f), x));
  SigmoidAndSlope s = sigmoid_and_slope(x);
  return fma(x, s.slope, s.value);
}

struct SiLU : Parameters {
  F forward(F x) const { return silu(x, 1.0f); }
  F slope_x(F x) const { return silu_slope(x, 1.0f); }
};

struct GELUApproximationSigmoid : Parameters {
  F forward(F x) const { return silu(x, 1.702f); }
  F slope_x(F x) const { return silu_slope(x, 1.702f); }
};

struct ReLU6 : Parameters {
  F forward(F x) const { return min(splat(6.0f), max(splat(0.0f), x)); }
  I open_x(F x) const { return (0.0f < x) & (x < 6.0f); }
  I open_y(F y) const { return open_x(y); }
};

struct Erf : Parameters {
  F forward(F x) const { return erf(x); }
  F slope_x(F x) const { return 1.12837917f * exp(-x * x); }
};

struct GELU : Parameters {
  F forward(F x) const { return max(splat(-6.0f), x) * (0.5f + normal_above_half(x)); }
  F slope_x(F x) const { return 0.5f + gelu_slope_above_half(x); }
};

// ---- rows: x, s, dy (n) read, y, dx (n) written. The tail is the same expression on a partly filled vector. ----

template <class A>
[[gnu::flatten]] void forward_row(const float* x, float* y, size_t n, float alpha, float beta) {
  const A f{{splat(alpha), splat(beta)}};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f.forward(load(x + i)));
  if (i < n) store_first(y + i, f.forward(load_first(x + i, n - i)), n - i);
}

// y = f(x)  =>  dx = dy · f'
template <class A>
OBN_INLINE F chain_x(const A& f, F dy, F x) {
  if constexpr (requires { f.open_x(x); }) {
    return gated(dy, f.open_x(x));
  } else {
    return dy * f.slope_x(x);
  }
}
template <class A>
OBN_INLINE F chain_y(const A& f, F dy, F y) {
  if constexpr (requires { f.open_y(y); }) {
    return gated(dy, f.open_y(y));
  } else {
    return dy * f.slope_y(y);
  }
}

template <class A>
[[gnu::flatten]] void backward_row_x(const float* x, const float* dy, float* dx, size_t n, float alpha, float beta) {
  const A f{{splat(alpha), splat(beta)}};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dx + i, chain_x(f, load(dy + i), load(x + i)));
  if (i < n) store_first(dx + i, chain_x(f, load_first(dy + i, n - i), load_first(x + i, n - i)), n - i);
}

template <class A>
[[gnu::flatten]] void backward_row_y(const float* y, const float* dy, float* dx, size_t n, float alpha, float beta) {
  const A f{{splat(alpha), splat(beta)}};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dx + i, chain_y(f, load(dy + i), load(y + i)));
  if (i < n) store_first(dx + i, chain_y(f, load_first(dy + i, n - i), load_first(y + i, n - i)), n - i);
}

// ---- PReLU: a (n) holds the alpha of every value ----

// y = x < 0 ? a·x : x
void prelu(const float* x, const float* a, float* y, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = load(x + i);
    store(y + i, v < 0.0f ? load(a + i) * v : v);
  }
  if (i < n) {
    F v = load_first(x + i, n - i);
    store_first(y + i, v < 0.0f ? load_first(a + i, n - i) * v : v, n - i);
  }
}

// dx = dy · (s > 0 ? 1 : a), s is x or (a >= 0) y
void prelu_backward(const float* s, const float* a, const float* dy, float* dx, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F g = load(dy + i);
    store(dx + i, load(s + i) > 0.0f ? g : g * load(a + i));
  }
  if (i < n) {
    F g = load_first(dy + i, n - i);
    store_first(dx + i, load_first(s + i, n - i) > 0.0f ? g : g * load_first(a + i, n - i), n - i);
  }
}

// y = x < 0 ? α·x : x  =>  dα = Σ dy·x over x < 0
float alpha_gradient(const float* x, const float* dy, size_t n) {
  F total = splat(0.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = load(x + i);
    total += v < 0.0f ? v * load(dy + i) : splat(0.0f);
  }
  if (i < n) {
    F v = load_first(x + i, n - i);
    total += v < 0.0f ? v * load_first(dy + i, n - i) : splat(0.0f);
  }
  return sum(total);
}

// ---- softmax over a row: y_i = e^(x_i - m) / Σ_j e^(x_j - m), m = max x; its logarithm is x_i - m - log Σ ----

constexpr float kMinusInfinity = -__builtin_inff();

// Values before the first one of p (n) that a vector aligned to itself begins with; 0 where the row is short.
size_t values_to_line(const float* p, size_t n) {
  return n < 8 * kLanes ? 0 : (sizeof(F) - reinterpret_cast<uintptr_t>(p) % sizeof(F)) % sizeof(F) / sizeof(float);
}

// The larger of m and v. With skips_nan, m where v is NaN; else NaN may come and go.
template <bool skips_nan>
OBN_INLINE F larger(F m, F v) {
  return skips_nan ? max(v, m) : max(m, v);
}

template <bool skips_nan = false>
float largest_of(const float* x, size_t n) {
  F m[4] = {splat(kMinusInfinity), splat(kMinusInfinity), splat(kMinusInfinity), splat(kMinusInfinity)};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t k = 0; k < 4; ++k) m[k] = larger<skips_nan>(m[k], load(x + i + k * kLanes));
  for (; i + kLanes <= n; i += kLanes) m[0] = larger<skips_nan>(m[0], load(x + i));
  if (i < n) m[1] = larger<skips_nan>(m[1], load_first(x + i, n - i, splat(kMinusInfinity)));
  return largest(max(max(m[0], m[1]), max(m[2], m[3])));
}

// y (n) = e^(x - m) and their sum; *next_largest becomes the maximum of next (n), found on the way: while exponentials
// are computed a load and a comparison cost nothing.
float exponentials(const float* x, float m, const float* next, float* y, size_t n, float* next_largest) {
  const F shift = splat(m), rest = splat(kMinusInfinity);
  F total = splat(0.0f), next_m = rest;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F e = exp_in_sum(load(x + i) - shift);
    total += e;
    next_m = max(next_m, load(next + i));
    store(y + i, e);
  }
  if (i < n) {
    F e = exp_in_sum(load_first(x + i, n - i, rest) - shift);
    total += e;
    next_m = max(next_m, load_first(next + i, n - i, rest));
    store_first(y + i, e, n - i);
  }
  *next_largest = largest(next_m);
  return sum(total);
}

void softmax_rows(const float* x, float* y, size_t n, size_t rows) {
  float m = largest_of(x, n);
  for (size_t r = 0; r < rows; ++r, x += n, y += n) {
    float next_m;
    const float* next = r + 1 < rows ? x + n : x;
    const F factor = splat(1.0f / exponentials(x, m, next, y, n, &next_m));
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(y + i, load(y + i) * factor);
    if (i < n) store_first(y + i, load_first(y + i, n - i) * factor, n - i);
    m = next_m;
  }
}

void softmax(const float* x, float* y, size_t n, float, float) { softmax_rows(x, y, n, 1); }

// dx_i = y_i·(dy_i - Σ_j dy_j·y_j)
void softmax_backward(const float* y, const float* dy, float* dx, size_t n, float, float) {
  F products[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t k = 0; k < 4; ++k) products[k] = fma(load(y + i + k * kLanes), load(dy + i + k * kLanes), products[k]);
  for (; i + kLanes <= n; i += kLanes) products[0] = fma(load(y + i), load(dy + i), products[0]);
  if (i < n) products[1] = fma(load_first(y + i, n - i), load_first(dy + i, n - i), products[1]);
  const F mean = splat(sum((products[0] + products[1]) + (products[2] + products[3])));
  i = values_to_line(dx, n);  // whole lines: stores across two of them are slow
  if (i > 0) store_first(dx, load_first(y, i) * (load_first(dy, i) - mean), i);
  for (; i + kLanes <= n; i += kLanes) store(dx + i, load(y + i) * (load(dy + i) - mean));
  if (i < n) store_first(dx + i, load_first(y + i, n - i) * (load_first(dy + i, n - i) - mean), n - i);
}

// The logarithm of a sum that left out NaN. Without anything in it all of x is -infinity, or one is +infinity.
F log_of_sum(F total) { return total > 0.0f ? log(total) : splat(__builtin_nanf("")); }

// A value that is NaN counts for itself alone, as in BNNS: where the sum turns out to be NaN, it is made again without.
template <bool skips_nan>
OBN_INLINE bool log_softmax_row(const float* x, float* y, size_t n) {
  const F m = splat(largest_of<skips_nan>(x, n));
  F total = splat(0.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) total += exp_in_sum<skips_nan>(load(x + i) - m);
  if (i < n) total += exp_in_sum<skips_nan>(load_first(x + i, n - i, splat(kMinusInfinity)) - m);
  const float all = sum(total);
  if (!skips_nan && all != all) return false;
  const F log_total = skips_nan ? log_of_sum(splat(all)) : log(splat(all));
  for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, (load(x + i) - m) - log_total);
  if (i < n) store_first(y + i, (load_first(x + i, n - i) - m) - log_total, n - i);
  return true;
}

[[gnu::noinline]] void log_softmax_with_nan(const float* x, float* y, size_t n) { log_softmax_row<true>(x, y, n); }

void log_softmax(const float* x, float* y, size_t n, float, float) {
  if (!log_softmax_row<false>(x, y, n)) log_softmax_with_nan(x, y, n);
}

// dx_i = dy_i - e^y_i · Σ_j dy_j
void log_softmax_backward(const float* y, const float* dy, float* dx, size_t n, float, float) {
  F total = splat(0.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) total += load(dy + i);
  if (i < n) total += load_first(dy + i, n - i);
  const F all = splat(sum(total));
  for (i = 0; i + kLanes <= n; i += kLanes) store(dx + i, fnma(exp(load(y + i)), all, load(dy + i)));
  if (i < n) store_first(dx + i, fnma(exp(load_first(y + i, n - i)), all, load_first(dy + i, n - i)), n - i);
}

// ---- softmax down the columns of (r, w), rows *_step values apart: `vectors` vectors of columns at a time ----

// The first n values of a row; n == kLanes is the whole vector.
F load_part(const float* p, size_t n) { return n == kLanes ? load(p) : load_first(p, n); }
void store_part(float* p, F v, size_t n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_first(p, v, n);
  }
}

// n is kLanes, or fewer for a single vector.
template <size_t vectors, bool skips_nan = false>
[[gnu::flatten]] void softmax_strip(const float* x, size_t x_step, float* y, size_t y_step, size_t r, size_t n,
                                    bool log_of_it) {
  F m[vectors], total[vectors], last[vectors];
  for (size_t k = 0; k < vectors; ++k) {
    m[k] = splat(kMinusInfinity);
    total[k] = splat(0.0f);
  }
  for (size_t i = 0; i < r; ++i)
    for (size_t k = 0; k < vectors; ++k) m[k] = larger<skips_nan>(m[k], load_part(x + i * x_step + k * kLanes, n));
  if (log_of_it) {
    for (size_t i = 0; i < r; ++i)
      for (size_t k = 0; k < vectors; ++k)
        total[k] += exp_in_sum<skips_nan>(load_part(x + i * x_step + k * kLanes, n) - m[k]);
    if constexpr (!skips_nan) {
      for (size_t k = 0; k < vectors; ++k)
        if (any(is_nan(total[k]))) return softmax_strip<vectors, true>(x, x_step, y, y_step, r, n, true);
    }
    for (size_t k = 0; k < vectors; ++k) last[k] = skips_nan ? log_of_sum(total[k]) : log(total[k]);
    for (size_t i = 0; i < r; ++i)
      for (size_t k = 0; k < vectors; ++k)
        store_part(y + i * y_step + k * kLanes, (load_part(x + i * x_step + k * kLanes, n) - m[k]) - last[k], n);
    return;
  }
  for (size_t i = 0; i < r; ++i) {
    for (size_t k = 0; k < vectors; ++k) {
      F e = exp_in_sum(load_part(x + i * x_step + k * kLanes, n) - m[k]);
      total[k] += e;
      store_part(y + i * y_step + k * kLanes, e, n);
    }
  }
  for (size_t k = 0; k < vectors; ++k) last[k] = 1.0f / total[k];
  for (size_t i = 0; i < r; ++i)
    for (size_t k = 0; k < vectors; ++k)
      store_part(y + i * y_step + k * kLanes, load_part(y + i * y_step + k * kLanes, n) * last[k], n);
}

template <size_t vectors>
[[gnu::flatten]] void softmax_strip_backward(const float* y, size_t y_step, const float* dy, size_t dy_step, float* dx,
                                             size_t dx_step, size_t r, size_t n, bool log_of_it) {
  F total[vectors];
  for (size_t k = 0; k < vectors; ++k) total[k] = splat(0.0f);
  if (log_of_it) {
    for (size_t i = 0; i < r; ++i)
      for (size_t k = 0; k < vectors; ++k) total[k] += load_part(dy + i * dy_step + k * kLanes, n);
    for (size_t i = 0; i < r; ++i) {
      for (size_t k = 0; k < vectors; ++k) {
        const F gradient = load_part(dy + i * dy_step + k * kLanes, n);
        const F share = exp(load_part(y + i * y_step + k * kLanes, n));
        store_part(dx + i * dx_step + k * kLanes, fnma(share, total[k], gradient), n);
      }
    }
    return;
  }
  for (size_t i = 0; i < r; ++i)
    for (size_t k = 0; k < vectors; ++k)
      total[k] = fma(load_part(y + i * y_step + k * kLanes, n), load_part(dy + i * dy_step + k * kLanes, n), total[k]);
  for (size_t i = 0; i < r; ++i) {
    for (size_t k = 0; k < vectors; ++k) {
      F difference = load_part(dy + i * dy_step + k * kLanes, n) - total[k];
      store_part(dx + i * dx_step + k * kLanes, load_part(y + i * y_step + k * kLanes, n) * difference, n);
    }
  }
}

// Four vectors side by side are four cache lines of a row: fewer misses than one at a time.
constexpr size_t kStrip = 4;

void softmax_columns(const float* x, size_t x_step, float* y, size_t y_step, size_t r, size_t w, bool log_of_it) {
  size_t j = 0;
  for (; j + kStrip * kLanes <= w; j += kStrip * kLanes)
    softmax_strip<kStrip>(x + j, x_step, y + j, y_step, r, kLanes, log_of_it);
  for (; j < w; j += kLanes)
    softmax_strip<1>(x + j, x_step, y + j, y_step, r, w - j < kLanes ? w - j : kLanes, log_of_it);
}

void softmax_columns_backward(const float* y, size_t y_step, const float* dy, size_t dy_step, float* dx, size_t dx_step,
                              size_t r, size_t w, bool log_of_it) {
  size_t j = 0;
  for (; j + kStrip * kLanes <= w; j += kStrip * kLanes)
    softmax_strip_backward<kStrip>(y + j, y_step, dy + j, dy_step, dx + j, dx_step, r, kLanes, log_of_it);
  for (; j < w; j += kLanes)
    softmax_strip_backward<1>(y + j, y_step, dy + j, dy_step, dx + j, dx_step, r, w - j < kLanes ? w - j : kLanes,
                              log_of_it);
}

// ---- moving rows ----

void add(const float* a, float* sum, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(sum + i, load(sum + i) + load(a + i));
  if (i < n) store_first(sum + i, load_first(sum + i, n - i) + load_first(a + i, n - i), n - i);
}

void stream_whole(const float* row, float* y, size_t n) {
  stream_row(row, y, n);
  fence();
}

template <class A>
constexpr void list(obn::activation::Kernels& table, BNNSActivationFunction function) {
  table.forward[function] = forward_row<A>;
  table.from_x[function] = backward_row_x<A>;
  if constexpr (requires(A f, F y) { f.slope_y(y); } || requires(A f, F y) { f.open_y(y); })
    table.from_y[function] = backward_row_y<A>;
}

constexpr obn::activation::Kernels table() {
  obn::activation::Kernels t{};
  list<Identity>(t, BNNSActivationFunctionIdentity);
  list<RectifiedLinear>(t, BNNSActivationFunctionRectifiedLinear);
  list<LeakyRectifiedLinear>(t, BNNSActivationFunctionLeakyRectifiedLinear);
  list<Sigmoid>(t, BNNSActivationFunctionSigmoid);
  list<Tanh>(t, BNNSActivationFunctionTanh);
  list<ScaledTanh>(t, BNNSActivationFunctionScaledTanh);
  list<Abs>(t, BNNSActivationFunctionAbs);
  list<Linear>(t, BNNSActivationFunctionLinear);
  list<Clamp>(t, BNNSActivationFunctionClamp);
  list<GELUApproximation>(t, BNNSActivationFunctionGELUApproximation);
  list<HardSigmoid>(t, BNNSActivationFunctionHardSigmoid);
  list<Softplus>(t, BNNSActivationFunctionSoftplus);
  list<Softsign>(t, BNNSActivationFunctionSoftsign);
  list<ELU>(t, BNNSActivationFunctionELU);
  list<ClampedLeakyRectifiedLinear>(t, BNNSActivationFunctionClampedLeakyRectifiedLinear);
  list<LinearWithBias>(t, BNNSActivationFunctionLinearWithBias);
  list<LogSigmoid>(t, BNNSActivationFunctionLogSigmoid);
  list<SELU>(t, BNNSActivationFunctionSELU);
  list<CELU>(t, BNNSActivationFunctionCELU);
  list<HardShrink>(t, BNNSActivationFunctionHardShrink);
  list<SoftShrink>(t, BNNSActivationFunctionSoftShrink);
  list<TanhShrink>(t, BNNSActivationFunctionTanhShrink);
  t.from_y[BNNSActivationFunctionTanhShrink] = obn::activation::ref::tanh_shrink_from_y;
  list<Threshold>(t, BNNSActivationFunctionThreshold);
  list<LeakyRectifiedLinear>(t, BNNSActivationFunctionPReLUPerChannel);  // with one alpha for the row
  list<HardSwish>(t, BNNSActivationFunctionHardSwish);
  list<SiLU>(t, BNNSActivationFunctionSiLU);
  list<ReLU6>(t, BNNSActivationFunctionReLU6);
  list<Erf>(t, BNNSActivationFunctionErf);
  list<GELU>(t, BNNSActivationFunctionGELU);
  list<GELUApproximationSigmoid>(t, BNNSActivationFunctionGELUApproximationSigmoid);
  t.from_y[BNNSActivationFunctionGELUApproximationSigmoid] = obn::activation::ref::gelu_sigmoid_from_y;
  t.forward[BNNSActivationFunctionSoftmax] = softmax;
  t.from_y[BNNSActivationFunctionSoftmax] = softmax_backward;
  t.forward[BNNSActivationFunctionLogSoftmax] = log_softmax;
  t.from_y[BNNSActivationFunctionLogSoftmax] = log_softmax_backward;
  t.prelu = prelu;
  t.prelu_backward = prelu_backward;
  t.alpha_gradient = alpha_gradient;
  t.softmax_rows = softmax_rows;
  t.softmax_columns = softmax_columns;
  t.softmax_columns_backward = softmax_columns_backward;
  t.add = add;
  t.stream = stream_whole;
  t.load = load_row;
  t.store = store_row;
  return t;
}

}  // namespace

}  // namespace obn::OBN_TARGET::activation

constinit const obn::activation::Kernels obn::activation::Compiled::OBN_TARGET = obn::OBN_TARGET::activation::table();
