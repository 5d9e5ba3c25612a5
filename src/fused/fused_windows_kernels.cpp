// A convolution of few taps, a batch norm and a max pooling in one pass, the bench: compiled once per target. Assumes a
// checked call and a plan that fits. Letters and places as in fused_windows.h.
#include <cstddef>
#include <cstdint>

#include "fused/fused_windows.h"

#include "convolution/narrow_stage.h"

namespace obn::OBN_TARGET::fused::windows {

using obn::fused::windows::Kernels;
using obn::fused::windows::kNoWinner;
using obn::fused::windows::Maxima;
using obn::fused::windows::Plan;
using obn::fused::windows::WinnerSums;

namespace {

namespace narrow = convolution::narrow;
using convolution::as_size;
using convolution::least;
using convolution::round_up;
using obn::convolution::Problem;

// What is kept in registers at a time.
#if defined(__SSE2__) && !defined(__AVX512F__)
constexpr size_t kOutputs = 2;  // 16 registers
constexpr size_t kShared = 1;
#else
constexpr size_t kOutputs = 4;  // 32 registers
constexpr size_t kShared = 3;   // where rows share products; not worth it with fewer
#endif
constexpr size_t kPixels = 4;

constexpr size_t kMostJoined = size_t{1} << 13;  // floats of the places of samples done together: a first-level cache

// ---- the places ----

// The stage of small images under windows two pixels apart, where every row of x is loaded once and split into its even
// and odd columns. False: not for this one. It took half of the time of all that is done to stage and places.
bool stage_pairs(const Plan& plan, const narrow::Taps& taps, size_t n, size_t from, size_t rows, float* stage) {
  const Problem& s = plan.stage.problem;
  const size_t q = as_size(s.x.out), reach = as_size(s.x.kernel), left = as_size(s.x.before), width = as_size(s.x.in);
  if (kLanes != 16 || s.x.stride != 2 || s.y.stride != 2 || q + (reach - 1) / 2 > kLanes || left >= kLanes ||
      left + width > 2 * kLanes)
    return false;
  for (size_t c = 0; c < s.in_channels; ++c)
    if (taps.centre && taps.centre[c] != 0.0f) return false;
  const size_t first = least(left + width, kLanes), count = plan.stage.stage_rows - plan.stage.band + rows;
  const Keep keep = keep_lanes(left, first), keep_rest = keep_lanes(0, left + width - first);
  const size_t up = as_size(s.y.before), height = as_size(s.y.in), residues = as_size(s.y.kernel) > 1 ? 2 : 1;
  for (size_t c = 0; c < s.in_channels; ++c)
    for (size_t r = 0; r < residues; ++r)
      for (size_t j = 0; j < count; ++j) {
        const size_t padded = 2 * (from + j) + r;
        F even = {}, odd = {};
        if (padded >= up && padded - up < height) {
          const float* row = taps.x.data + n * taps.x.sample + c * taps.x.plane + (padded - up) * taps.x.row - left;
          split_pairs(load_kept(row, keep), load_kept(row + kLanes, keep_rest), &even, &odd);
        }
        float* to = stage + c * reach * plan.stage.copy + (r * plan.stage.stage_rows + j) * q;
        for (size_t k = 0; k < reach; ++k, to += plan.stage.copy)
          store_first(to, joined(k % 2 == 0 ? even : odd, F{}, k / 2), q);
      }
  return true;
}

// x (vectors, places, kLanes) of `rows` rows of windows of one sample, the last vector filled up with zeros. `stage`
// has room for the plan's.
void lay_out_places(const Plan& plan, const narrow::Taps& taps, size_t n, size_t from, size_t rows, float* stage,
                    float* x) {
  if (!stage_pairs(plan, taps, n, from, rows, stage)) narrow::stage_taps(plan.stage, taps, n, from, rows, stage);
  const size_t values = rows * as_size(plan.stage.problem.x.out), step = plan.places * kLanes;
  for (size_t i = 0; i < plan.places; ++i) {
    const float* at = stage + plan.stage.at[i];
    float* to = x + i * kLanes;
    size_t v = 0;
    for (; v + kLanes <= values; v += kLanes, to += step) store(to, load(at + v));
    if (v < values) store(to, load_first(at + v, values - v));
  }
}

// ---- codes, a byte each ----

OBN_INLINE void store_codes(uint8_t* to, I codes, size_t values) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(codes));
  if (values == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  _mm_mask_storeu_epi8(to, static_cast<__mmask16>((1u << values) - 1), bytes);
#else
  for (size_t i = 0; i < values; ++i) to[i] = static_cast<uint8_t>(codes[i]);
#endif
}
OBN_INLINE I load_codes(const uint8_t* from, size_t values) {  // 0 in the other lanes
#if defined(__AVX512F__)
  const __m128i bytes = values == kLanes
                            ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))
                            : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << values) - 1), from);
  return reinterpret_cast<I>(_mm512_cvtepu8_epi32(bytes));
#else
#if defined(__AVX2__)
  if (values == kLanes)
    return reinterpret_cast<I>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  I codes = {};
  for (size_t i = 0; i < values; ++i) codes[i] = from[i];
  return codes;
#endif
}

// ---- forward ----

// Takes value and code where the value is larger, or is the first NaN.
OBN_INLINE void keep_largest(F value, int32_t code, F* best, I* best_code) {
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(value), b = reinterpret_cast<__m512>(*best);
  const __mmask16 take = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(b, b, _CMP_ORD_Q), v, b, _CMP_NLE_UQ);
  *best = reinterpret_cast<F>(_mm512_mask_mov_ps(b, take, v));
  *best_code = reinterpret_cast<I>(
      _mm512_mask_mov_epi32(reinterpret_cast<__m512i>(*best_code), take, _mm512_set1_epi32(code)));
#else
  const I take = ~(value <= *best) & (*best == *best);
  *best = take ? value : *best;
  *best_code = take ? splat(code) : *best_code;
#endif
}

// The largest of four values that are no NaN, not below `low`, and the code of the first that has it. What is not above
// `low` has any code.
OBN_INLINE void choose_of_four(const F (&z)[4], float low, F* best, I* code) {
  const F first = max(z[1], z[0]), second = max(z[3], z[2]);
  *best = max(splat(low), max(second, first));
#if defined(__AVX512F__)
  const auto is_above = [](F a, F b) __attribute__((always_inline)) {
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GT_OQ);
  };
  const __m512i one = _mm512_set1_epi32(1), two = _mm512_set1_epi32(2);
  const __m512i of_first = _mm512_maskz_mov_epi32(is_above(z[1], z[0]), one);
  const __m512i of_second = _mm512_mask_add_epi32(two, is_above(z[3], z[2]), two, one);
  *code = reinterpret_cast<I>(_mm512_mask_mov_epi32(of_first, is_above(second, first), of_second));
#else
  *code = second > first ? 2 - (z[3] > z[2]) : -(z[1] > z[0]);
#endif
}

// Some outputs of a run of windows.
struct Run {
  const float* x;         // (vectors, places, kLanes)
  size_t places;
  const uint16_t* place;  // (K, T)
  size_t pixels, taps;
  const float* w;         // of the outputs, (T) each
  const float* bias;
  float low;
  bool clips;
  float* y;
  size_t y_plane;
  uint8_t* winners;       // NULL: not wanted
  size_t winners_plane;
};

template <size_t kCount>
struct Best {
  F value[kCount];
  I code[kCount];
};

// Windows of 2x2 over 3x3 taps of one channel: pixel k is in row k / 2 and column k % 2, and has as taps the 3x3 of the
// window's 4x4 places that begin there.
constexpr size_t kSide = 3, kReach = 4;

// kCount outputs at the kLanes windows whose places are x, pixels first … first + kSome - 1 of each. kPairs: windows of
// pairs over one channel, where all is known, and no value is NaN.
template <size_t kCount, size_t kSome, bool kPairs>
OBN_INLINE void compare_pixels(const Run& s, const float* x, size_t first, Best<kCount>* best) {
  F z[kCount][kSome];
#pragma GCC unroll 4
  for (size_t o = 0; o < kCount; ++o)
#pragma GCC unroll 4
    for (size_t k = 0; k < kSome; ++k) z[o][k] = splat(s.bias[o]);
  const size_t taps = kPairs ? kSide * kSide : s.taps;
  const uint16_t* place = s.place + first * taps;
#pragma GCC unroll 9
  for (size_t t = 0; t < taps; ++t) {
    F weight[kCount];
#pragma GCC unroll 4
    for (size_t o = 0; o < kCount; ++o) weight[o] = splat(s.w[o * taps + t]);
#pragma GCC unroll 4
    for (size_t k = 0; k < kSome; ++k) {
      const size_t at = kPairs ? (k / 2 + t / kSide) * kReach + k % 2 + t % kSide : place[k * taps + t];
      const F pixel = held(load(x + at * kLanes));
#pragma GCC unroll 4
      for (size_t o = 0; o < kCount; ++o) z[o][k] = fma(weight[o], pixel, z[o][k]);
    }
  }
  if constexpr (kPairs) {
#pragma GCC unroll 4
    for (size_t o = 0; o < kCount; ++o) choose_of_four(z[o], s.low, &best->value[o], &best->code[o]);
    return;
  }
#pragma GCC unroll 4
  for (size_t o = 0; o < kCount; ++o)
#pragma GCC unroll 4
    for (size_t k = 0; k < kSome; ++k) {
      const F value = max(splat(s.low), z[o][k]);
      const int32_t code = static_cast<int32_t>(first + k);
      if (code == 0) {
        best->value[o] = value;
        best->code[o] = I{};
      } else {
        keep_largest(value, code, &best->value[o], &best->code[o]);
      }
    }
}

// Rows of two pixels share products: with places d and weights g of a row, the pixels' sums are m0 + m1 + m2 and
// m1 - m2 - m3 of
//   m0 = (d0 - d2)·g0   m1 = (d1 + d2)·(g0 + g1 + g2)/2   m2 = (d2 - d1)·(g0 - g1 + g2)/2   m3 = (d1 - d3)·g2
// which is Winograd's algorithm along rows: 24 products for 36. Pixels with equal taps have equal sums.
void share_places(const Plan& plan, size_t windows, float* x) {
  const size_t rows = (windows + kLanes - 1) / kLanes * (plan.places / kReach);
  for (size_t r = 0; r < rows; ++r, x += kReach * kLanes) {
    const F d0 = load(x), d1 = load(x + kLanes), d2 = load(x + 2 * kLanes), d3 = load(x + 3 * kLanes);
    store(x, d0 - d2);
    store(x + kLanes, d1 + d2);
    store(x + 2 * kLanes, d2 - d1);
    store(x + 3 * kLanes, d1 - d3);
  }
}

// What s.w is there: (3, 4) for each output.
template <size_t kCount>
OBN_INLINE void compare_shared(const Run& s, const float* x, Best<kCount>* best) {
  constexpr size_t kWeights = kSide * kReach;
  F m[kCount][2][kReach];
#pragma GCC unroll 4
  for (size_t o = 0; o < kCount; ++o)
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i)
#pragma GCC unroll 4
      for (size_t j = 0; j < kReach; ++j) m[o][i][j] = j == 1 ? splat(s.bias[o]) : F{};
#pragma GCC unroll 12
  for (size_t t = 0; t < kWeights; ++t) {
    F weight[kCount];
#pragma GCC unroll 4
    for (size_t o = 0; o < kCount; ++o) weight[o] = splat(s.w[o * kWeights + t]);
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i) {
      const F place = held(load(x + (i * kReach + t) * kLanes));
#pragma GCC unroll 4
      for (size_t o = 0; o < kCount; ++o) m[o][i][t % kReach] = fma(weight[o], place, m[o][i][t % kReach]);
    }
  }
#pragma GCC unroll 4
  for (size_t o = 0; o < kCount; ++o) {
    const auto& upper = m[o][0];
    const auto& lower = m[o][1];
    const F z[4] = {upper[0] + upper[1] + upper[2], upper[1] - upper[2] - upper[3],
                    lower[0] + lower[1] + lower[2], lower[1] - lower[2] - lower[3]};
    choose_of_four(z, s.low, &best->value[o], &best->code[o]);
  }
}

enum class Way { any, pairs, shared };

template <size_t kCount, Way kWay>
void largest(const Run& given, size_t n) {
  const Run s = given;  // a copy of its own: the compiler reads the other one again after every store
  const float* x = s.x;
  for (size_t v = 0; v < n; v += kLanes, x += s.places * kLanes) {
    const size_t values = least(kLanes, n - v);
    Best<kCount> best;
    if constexpr (kWay == Way::shared) {
      compare_shared(s, x, &best);
    } else if constexpr (kWay == Way::pairs) {
      compare_pixels<kCount, kPixels, true>(s, x, 0, &best);
    } else {
      size_t k = 0;
      for (; k + kPixels <= s.pixels; k += kPixels) compare_pixels<kCount, kPixels, false>(s, x, k, &best);
      for (; k < s.pixels; ++k) compare_pixels<kCount, 1, false>(s, x, k, &best);
    }
#pragma GCC unroll 4
    for (size_t o = 0; o < kCount; ++o) {
      float* y = s.y + o * s.y_plane + v;
      if (values == kLanes) {
        store(y, best.value[o]);
      } else {
        store_first(y, best.value[o], values);
      }
      if (!s.winners) continue;
      const I none = splat(int32_t{kNoWinner});
      store_codes(s.winners + o * s.winners_plane + v,
                  s.clips ? best.value[o] > F{} ? best.code[o] : none : best.code[o], values);
    }
  }
}

template <Way kWay>
void largest_of(const Run& s, size_t outputs, size_t n) {
  if constexpr (kOutputs >= 4) {
    if constexpr (kWay != Way::shared)
      if (outputs == 4) return largest<4, kWay>(s, n);
    if (outputs == 3) return largest<3, kWay>(s, n);
  }
  if (outputs == 2) return largest<2, kWay>(s, n);
  largest<1, kWay>(s, n);
}

// Σ |x| over the places of some windows.
float total_of(const Plan& plan, const float* x, size_t windows) {
  const size_t n = (windows + kLanes - 1) / kLanes * plan.places * kLanes;
  F sums[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t k = 0; k < 4; ++k) sums[k] += abs(load(x + i + k * kLanes));
  for (; i < n; i += kLanes) sums[0] += abs(load(x + i));
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// n <= kLanes / 2, most often some fours.
template <class T>
OBN_INLINE void copy_few(const T* from, size_t n, T* to) {
#pragma GCC unroll 2
  for (size_t i = 0; i < kLanes / 2; i += 4)
    if (i + 4 <= n) __builtin_memcpy(to + i, from + i, 4 * sizeof(T));
#pragma GCC unroll 1
  for (size_t i = n / 4 * 4; i < n; ++i) to[i] = from[i];
}

// The windows behind the last whole vector of several samples, side by side in one vector: 100 windows are 6 vectors
// and a quarter, and four samples 25 vectors instead of 28.
struct Ends {
  size_t windows;  // of a sample; 0: samples are not joined
  size_t block;    // floats between the places of two samples
  size_t samples;
  size_t sample[kLanes];
  alignas(sizeof(F)) float x[kReach * kReach * kLanes];

  explicit Ends(const Plan& plan) : samples(0) {
    const size_t all = plan.stage.rows * as_size(plan.stage.problem.x.out);
    windows = all % kLanes;
    block = (all + kLanes - 1) / kLanes * plan.places * kLanes;
    const bool is_whole = plan.in_pairs && plan.taps == kSide * kSide && plan.stage.band >= plan.stage.rows;
    if (!is_whole || 2 * windows > kLanes || 2 * block > kMostJoined) windows = 0;
    for (float& place : x) place = 0.0f;
  }

  bool is_full() const { return (samples + 1) * windows > kLanes || (samples + 1) * block > kMostJoined; }

  // Of sample n; from: its places.
  void take(size_t n, const float* from) {
    const float* last = from + block - kReach * kReach * kLanes;
    for (size_t i = 0; i < kReach * kReach; ++i)
      copy_few(last + i * kLanes, windows, x + i * kLanes + samples * windows);
    sample[samples++] = n;
  }
};

// Units, one after the other, then what is left of their ends.
class Units {
 public:
  Units(const Plan& plan, const Maxima& f) : plan_(plan), f_(f), ends_(plan) {}

  // Where the places of the next unit go.
  float* room(float* x) const { return x + ends_.samples * ends_.block; }

  // x: the places of `rows` rows of windows of sample n, which are changed.
  void run(size_t n, size_t from, size_t rows, float* x) {
    const size_t windows = rows * columns_;
    // Numbers so far from the largest one that no sum can be NaN.
    const bool is_plain = total_of(plan_, x, windows) * f_.most_weight + f_.most_bias < 1e37f;
    const bool by_pairs = is_plain && plan_.in_pairs && plan_.taps == kSide * kSide;
    if (by_pairs && shares_) share_places(plan_, windows, x);
    if (by_pairs && ends_.windows > 0) {
      ends_.take(n, x);
      if (ends_.is_full()) finish(x - (ends_.samples - 1) * ends_.block);
      return;
    }
    each_part(x, by_pairs, [&](Run& run, size_t o, size_t count, Largest* largest) {
      run.y = f_.y.data + n * f_.y.sample + o * f_.y.plane + from * f_.y.row;
      run.y_plane = f_.y.plane;
      if (f_.winners) run.winners = f_.winners + (n * outputs_ + o) * all_ + from * columns_;
      run.winners_plane = all_;
      largest(run, count, windows);
    });
  }

  void finish(const float* x) {
    const size_t samples = ends_.samples, n = ends_.windows, plane = f_.y.plane, all = all_;
    if (samples == 0) return;
    alignas(sizeof(F)) float y[kOutputs * kLanes];
    uint8_t winners[kOutputs * kLanes];
    each_part(ends_.x, true, [&](Run& run, size_t o, size_t count, Largest* largest) {
      run.y = y;
      run.winners = f_.winners ? winners : nullptr;
      run.y_plane = run.winners_plane = kLanes;
      largest(run, count, kLanes);
      run.y_plane = plane;
      run.winners_plane = all;
      for (size_t i = 0; i < samples; ++i) {
        const size_t s = ends_.sample[i];
        run.x = x + i * ends_.block;
        run.y = f_.y.data + s * f_.y.sample + o * plane;
        if (f_.winners) run.winners = f_.winners + (s * outputs_ + o) * all;
        largest(run, count, all - n);
        for (size_t k = 0; k < count; ++k) {
          copy_few(y + k * kLanes + i * n, n, run.y + k * plane + all - n);
          if (run.winners) copy_few(winners + k * kLanes + i * n, n, run.winners + k * all + all - n);
        }
      }
    });
    ends_.samples = 0;
  }

 private:
  using Largest = void(const Run& s, size_t outputs, size_t n);

  // Calls body(run, o, count, function) for some outputs after the other; the run has all but its results.
  template <class Body>
  void each_part(const float* x, bool by_pairs, const Body& body) {
    const bool shares = by_pairs && shares_;
    const float* w = shares ? f_.shared : f_.w;
    const size_t weights = shares ? kSide * kReach : plan_.taps;
    Largest* largest = shares ? largest_of<Way::shared> : by_pairs ? largest_of<Way::pairs> : largest_of<Way::any>;
    for (size_t o = 0; o < outputs_;) {
      const size_t now = narrow::next_part(outputs_ - o, shares ? kShared : kOutputs);
      Run run = {x, plan_.places, plan_.place, plan_.pixels, plan_.taps, w + o * weights, f_.bias + o, f_.low, f_.clips,
                 nullptr, 0, nullptr, 0};
      body(run, o, now, largest);
      o += now;
    }
  }

  const Plan& plan_;
  const Maxima& f_;
  const size_t columns_ = as_size(plan_.stage.problem.x.out), outputs_ = plan_.stage.problem.out_channels;
  const size_t all_ = plan_.stage.rows * columns_;  // windows of a plane
  const bool shares_ = f_.shared && kShared > 1;
  Ends ends_;
};

void maxima(const Plan& plan, const Maxima& f, size_t first_unit, size_t units, std::byte* work) {
  const narrow::Plan& stage = plan.stage;
  float* staged = reinterpret_cast<float*>(work);
  float* x = staged + round_up(stage.stage_floats);
  Units all(plan, f);
  for (size_t unit = first_unit; unit < first_unit + units; ++unit) {
    const size_t n = unit / stage.bands, from = unit % stage.bands * stage.band;
    if (from >= stage.rows) continue;
    const size_t rows = least(stage.band, stage.rows - from);
    float* here = all.room(x);
    lay_out_places(plan, f.x, n, from, rows, staged, here);
    all.run(n, from, rows, here);
  }
  all.finish(x);
}

// ---- backward ----

// Lanes whose code has a bit, and a choice by them.
#if defined(__AVX512F__)
typedef __mmask16 Chosen;
OBN_INLINE Chosen has_bit(I codes, int32_t bit) {
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(codes), _mm512_set1_epi32(bit));
}
OBN_INLINE F choose(Chosen chosen, F yes, F no) {
  return reinterpret_cast<F>(
      _mm512_mask_blend_ps(chosen, reinterpret_cast<__m512>(no), reinterpret_cast<__m512>(yes)));
}
#else
typedef I Chosen;
OBN_INLINE Chosen has_bit(I codes, int32_t bit) { return (codes & bit) != 0; }
OBN_INLINE F choose(Chosen chosen, F yes, F no) { return chosen ? yes : no; }
#endif

constexpr size_t kTaps = kSide * kSide;

// n windows of one output and one channel.
struct WinnerRun {
  const float* x;  // 16 places, the next vectors `step` further
  const float* dy;
  const uint8_t* winners;
  size_t n;
};

// sums (9) += dz·tap of the pixel that won, dz_sum += dz, lane by lane, over all runs.
void sum_winners(const WinnerRun* runs, size_t count, size_t step, F* sums_at, F* dz_sum) {
  F sums[kTaps], total = *dz_sum;
#pragma GCC unroll 9
  for (size_t t = 0; t < kTaps; ++t) sums[t] = sums_at[t];
  for (size_t i = 0; i < count; ++i) {
    const WinnerRun s = runs[i];
    const float* x = s.x;
    for (size_t v = 0; v < s.n; v += kLanes, x += step) {
      const size_t values = least(kLanes, s.n - v);
      const I codes = load_codes(s.winners + v, values);
      const F dy = values == kLanes ? load(s.dy + v) : load_first(s.dy + v, values);
      const F dz = choose(has_bit(codes, kNoWinner & ~3), F{}, dy);
      const Chosen lower = has_bit(codes, 2), right = has_bit(codes, 1);
      total += dz;
      F above[kReach], below[kReach];
#pragma GCC unroll 4
      for (size_t c = 0; c < kReach; ++c) above[c] = held(load(x + c * kLanes));
#pragma GCC unroll 3
      for (size_t ky = 0; ky < kSide; ++ky) {
#pragma GCC unroll 4
        for (size_t c = 0; c < kReach; ++c) below[c] = held(load(x + ((ky + 1) * kReach + c) * kLanes));
        F row[kReach];
#pragma GCC unroll 4
        for (size_t c = 0; c < kReach; ++c) row[c] = choose(lower, below[c], above[c]);
#pragma GCC unroll 3
        for (size_t kx = 0; kx < kSide; ++kx)
          sums[ky * kSide + kx] = fma(dz, choose(right, row[kx + 1], row[kx]), sums[ky * kSide + kx]);
#pragma GCC unroll 4
        for (size_t c = 0; c < kReach; ++c) above[c] = below[c];
      }
    }
  }
  *dz_sum = total;
#pragma GCC unroll 9
  for (size_t t = 0; t < kTaps; ++t) sums_at[t] = sums[t];
}

// All outputs of the samples that were joined; x: their places.
void sum_joined(const Plan& plan, const WinnerSums& call, const float* x, Ends* ends, F* sums) {
  const size_t samples = ends->samples, n = ends->windows, outputs = plan.stage.problem.out_channels;
  if (samples == 0) return;
  const size_t windows = plan.stage.rows * as_size(plan.stage.problem.x.out);
  alignas(sizeof(F)) float dy[kLanes];
  uint8_t winners[kLanes];
  WinnerRun runs[kLanes + 1];
  for (size_t o = 0; o < outputs; ++o) {
    for (size_t i = 0; i < samples; ++i) {
      const size_t sample = ends->sample[i];
      runs[i] = {x + i * ends->block, call.dy.data + sample * call.dy.sample + o * call.dy.plane,
                 call.winners + (sample * outputs + o) * windows, windows - n};
      copy_few(runs[i].dy + windows - n, n, dy + i * n);
      copy_few(runs[i].winners + windows - n, n, winners + i * n);
    }
    runs[samples] = {ends->x, dy, winners, samples * n};
    sum_winners(runs, samples + 1, kReach * kReach * kLanes, sums + o * kTaps, sums + outputs * kTaps + o);
  }
  ends->samples = 0;
}

void winner_sums(const Plan& plan, const WinnerSums& call, size_t first, size_t count, float* totals,
                 std::byte* work) {
  const narrow::Plan& stage = plan.stage;
  const size_t columns = as_size(stage.problem.x.out), outputs = stage.problem.out_channels;
  const size_t windows = stage.rows * columns, all = outputs * (plan.taps + 1), channels = stage.problem.in_channels;
  F* sums = reinterpret_cast<F*>(work);  // (O, T), (O)
  float* staged = reinterpret_cast<float*>(sums + all + kLanes);
  float* x = staged + round_up(stage.stage_floats);
  for (size_t i = 0; i < all + kLanes; ++i) sums[i] = F{};
  Ends ends(plan);
  for (size_t n = first; n < first + count; ++n)
    for (size_t from = 0; from < stage.rows; from += stage.band) {
      const size_t rows = least(stage.band, stage.rows - from);
      lay_out_places(plan, call.x, n, from, rows, staged, x + ends.samples * ends.block);
      if (ends.windows > 0) {
        ends.take(n, x + ends.samples * ends.block);
        if (ends.is_full()) sum_joined(plan, call, x, &ends, sums);
        continue;
      }
      for (size_t o = 0; o < outputs; ++o) {
        F unused = {};
        for (size_t c = 0; c < channels; ++c) {
          const WinnerRun run = {x + c * kReach * kReach * kLanes,
                                 call.dy.data + n * call.dy.sample + o * call.dy.plane + from * call.dy.row,
                                 call.winners + (n * outputs + o) * windows + from * columns, rows * columns};
          sum_winners(&run, 1, plan.places * kLanes, sums + o * plan.taps + c * kTaps,
                      c == 0 ? sums + outputs * plan.taps + o : &unused);
        }
      }
    }
  sum_joined(plan, call, x, &ends, sums);
  for (size_t i = 0; i < all; i += kLanes) {
    F some[kLanes];
    for (size_t k = 0; k < kLanes; ++k) some[k] = sums[i + k];
    const F each = sum_each(some);
    if (all - i >= kLanes) {
      store(totals + i, each);
    } else {
      store_first(totals + i, each, all - i);
    }
  }
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {maxima, winner_sums};

}  // namespace obn::OBN_TARGET::fused::windows
