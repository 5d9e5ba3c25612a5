// A convolution of few taps, a batch norm and a max pooling in one pass, the bench: compiled once per target. Assumes a
// checked call and a plan that fits. Letters and places as in fused_windows.h.
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
#else
constexpr size_t kOutputs = 4;  // 32 registers
#endif
constexpr size_t kPixels = 4;

// ---- the places ----

// x (places, pitch) of `rows` rows of windows of one sample. `stage` has room for the plan's.
void lay_out_places(const Plan& plan, const narrow::Taps& taps, size_t n, size_t from, size_t rows, float* stage,
                    float* x) {
  narrow::stage_taps(plan.stage, taps, n, from, rows, stage);
  const size_t values = rows * as_size(plan.stage.problem.x.out);
  for (size_t i = 0; i < plan.places; ++i) {
    const float* at = stage + plan.stage.at[i];
    float* to = x + i * plan.pitch;
    size_t v = 0;
    for (; v + kLanes <= values; v += kLanes) store(to + v, load(at + v));
    if (v < values) store(to + v, load_first(at + v, values - v));
  }
}

// ---- forward ----

typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

OBN_INLINE void store_codes(uint8_t* to, I codes, size_t values) {
  const Bytes bytes = __builtin_convertvector(codes, Bytes);
  if (values == kLanes) {
    __builtin_memcpy(to, &bytes, kLanes);
  } else {
    for (size_t i = 0; i < values; ++i) to[i] = bytes[i];
  }
}

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

// Some outputs of a run of windows.
struct Run {
  const float* x;         // (places, pitch)
  size_t pitch;
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

// `kCount` outputs at kLanes windows from v on, pixels first … first + kSome - 1 of each. kTaps is the number of taps
// where it is known, else 0.
template <size_t kCount, size_t kSome, size_t kTaps>
OBN_INLINE void compare_pixels(const Run& s, size_t v, size_t first, Best<kCount>* best) {
  F z[kCount][kSome];
#pragma GCC unroll 4
  for (size_t o = 0; o < kCount; ++o)
#pragma GCC unroll 4
    for (size_t k = 0; k < kSome; ++k) z[o][k] = splat(s.bias[o]);
  const size_t taps = kTaps > 0 ? kTaps : s.taps;
  const uint16_t* place = s.place + first * taps;
#pragma GCC unroll 9
  for (size_t t = 0; t < taps; ++t) {
    F weight[kCount];
#pragma GCC unroll 4
    for (size_t o = 0; o < kCount; ++o) weight[o] = splat(s.w[o * taps + t]);
#pragma GCC unroll 4
    for (size_t k = 0; k < kSome; ++k) {
      const F pixel = held(load(s.x + place[k * taps + t] * s.pitch + v));
#pragma GCC unroll 4
      for (size_t o = 0; o < kCount; ++o) z[o][k] += weight[o] * pixel;
    }
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

template <size_t kCount, size_t kTaps>
void largest(const Run& given, size_t n) {
  const Run s = given;  // a copy of its own: the compiler reads the other one again after every store
  for (size_t next = 0; next < n; next += kLanes) {
    // The last vector begins early rather than hang over, if there is room.
    const size_t v = next + kLanes <= n || n < kLanes ? next : n - kLanes, values = least(kLanes, n - v);
    Best<kCount> best;
    size_t k = 0;
    for (; k + kPixels <= s.pixels; k += kPixels) compare_pixels<kCount, kPixels, kTaps>(s, v, k, &best);
    for (; k < s.pixels; ++k) compare_pixels<kCount, 1, kTaps>(s, v, k, &best);
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

template <size_t kTaps>
void largest_of(const Run& s, size_t outputs, size_t n) {
  if constexpr (kOutputs >= 4) {
    if (outputs == 4) return largest<4, kTaps>(s, n);
    if (outputs == 3) return largest<3, kTaps>(s, n);
  }
  if (outputs == 2) return largest<2, kTaps>(s, n);
  largest<1, kTaps>(s, n);
}

void maxima(const Plan& plan, const Maxima& f, size_t first_unit, size_t units, std::byte* work) {
  const narrow::Plan& stage = plan.stage;
  const size_t columns = as_size(stage.problem.x.out), outputs = stage.problem.out_channels;
  const size_t windows = stage.rows * columns;
  float* staged = reinterpret_cast<float*>(work);
  float* x = staged + round_up(stage.stage_floats);
  for (size_t unit = first_unit; unit < first_unit + units; ++unit) {
    const size_t n = unit / stage.bands, from = unit % stage.bands * stage.band;
    if (from >= stage.rows) continue;
    const size_t rows = least(stage.band, stage.rows - from);
    lay_out_places(plan, f.x, n, from, rows, staged, x);
    for (size_t o = 0; o < outputs;) {
      const size_t now = narrow::next_part(outputs - o, kOutputs);
      uint8_t* winners = f.winners ? f.winners + (n * outputs + o) * windows + from * columns : nullptr;
      const Run run = {x, plan.pitch, plan.place, plan.pixels, plan.taps, f.w + o * plan.taps, f.bias + o, f.low,
                       f.clips, f.y.data + n * f.y.sample + o * f.y.plane + from * f.y.row, f.y.plane, winners,
                       windows};
      (plan.taps == 9 ? largest_of<9> : largest_of<0>)(run, now, rows * columns);
      o += now;
    }
  }
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

OBN_INLINE I load_codes(const uint8_t* from, size_t values) {
  Bytes bytes = {};
  if (values == kLanes) {
    __builtin_memcpy(&bytes, from, kLanes);
  } else {
    for (size_t i = 0; i < values; ++i) bytes[i] = from[i];
  }
  return __builtin_convertvector(bytes, I);
}

// Windows of 2x2 over 3x3 taps: pixel k is in row k / 2 and column k % 2, and has as taps the 3x3 of the window's 4x4
// places that begin there.
constexpr size_t kSide = 3, kReach = 4, kTaps = kSide * kSide;

// sums (9) += dz·tap of the pixel that won, dz_sum += dz, lane by lane over n windows. x: (16, pitch) of one channel.
void sum_winners(const float* x, size_t pitch, const float* dy, const uint8_t* winners, size_t n, F* to, F* dz_sum) {
  F sums[kTaps], total = *dz_sum;
#pragma GCC unroll 9
  for (size_t t = 0; t < kTaps; ++t) sums[t] = to[t];
  for (size_t v = 0; v < n; v += kLanes) {
    const size_t values = least(kLanes, n - v);
    const I codes = load_codes(winners + v, values);
    F dz = values == kLanes ? load(dy + v) : load_first(dy + v, values);
    dz = choose(has_bit(codes, kNoWinner & ~3), F{}, dz);
    total += dz;
    const Chosen lower = has_bit(codes, 2), right = has_bit(codes, 1);
    F above[kReach], below[kReach];
#pragma GCC unroll 4
    for (size_t c = 0; c < kReach; ++c) above[c] = held(load(x + c * pitch + v));
#pragma GCC unroll 3
    for (size_t ky = 0; ky < kSide; ++ky) {
      F row[kReach];
#pragma GCC unroll 4
      for (size_t c = 0; c < kReach; ++c) {
        below[c] = held(load(x + ((ky + 1) * kReach + c) * pitch + v));
        row[c] = choose(lower, below[c], above[c]);
        above[c] = below[c];
      }
#pragma GCC unroll 3
      for (size_t kx = 0; kx < kSide; ++kx) sums[ky * kSide + kx] += dz * choose(right, row[kx + 1], row[kx]);
    }
  }
#pragma GCC unroll 9
  for (size_t t = 0; t < kTaps; ++t) to[t] = sums[t];
  *dz_sum = total;
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
  for (size_t n = first; n < first + count; ++n)
    for (size_t from = 0; from < stage.rows; from += stage.band) {
      const size_t rows = least(stage.band, stage.rows - from);
      lay_out_places(plan, call.x, n, from, rows, staged, x);
      for (size_t o = 0; o < outputs; ++o) {
        const float* dy = call.dy.data + n * call.dy.sample + o * call.dy.plane + from * call.dy.row;
        const uint8_t* winners = call.winners + (n * outputs + o) * windows + from * columns;
        F unused = {};
        for (size_t c = 0; c < channels; ++c)
          sum_winners(x + c * kReach * kReach * plan.pitch, plan.pitch, dy, winners, rows * columns,
                      sums + o * plan.taps + c * kTaps, c == 0 ? sums + outputs * plan.taps + o : &unused);
      }
    }
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
