// Winograd's way to a convolution of stride 2 with kernels of 3 or 4 on each axis: what the drive
// (winograd_strided.cpp) and the bench (winograd_strided_kernels.cpp) share.
//
// The stride splits an axis of the image into halves, its even and its odd positions, and the taps with it; within a
// half the stride is 1 and there are two taps (of a kernel of 3 the odd half has one):
//   forward         y(o) = Σ_half Σ_i w[half](i) · x[half](o + i)
//   input gradient  dx[half](o) = Σ_i w[half](i) · dz(o + i + shift(half)), the taps turned
// Four outputs in a row of one half take five inputs d, two weights w and the points t = ∞, ±3/8, ±5/4:
//   y = Aᵀ ((G w) · (Bᵀ d)),   G w: w at the points,   Bᵀ d: d at the points,   Aᵀ: back, with the scales
// so on both axes 4x4 outputs take 25 products instead of 64 for a kernel of 4. One tap has no value at ∞, and none is
// computed. A last tile of one or two outputs is short, as in winograd.h: it has the points ∞ and ±3/8.
// The error is less than twice that of a plain float32 loop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "convolution/convolution.h"
#include "convolution/winograd_tiles.h"

namespace obn::convolution::winograd::strided {

inline constexpr size_t kSide = 5;  // points on one axis, in the order ∞, 3/8, -3/8, 5/4, -5/4
inline constexpr size_t kPoints = kSide * kSide;
inline constexpr size_t kMostTaps = 16;

// One axis of an image as tiles see it: value i of tile t in a half lies at start + step·(4·t + i) + shift[half].
struct Grid {
  int64_t start;
  size_t step;   // 1 or 2
  size_t count;  // of halves: 1 or 2
  size_t shift[2];
};
struct Grids {
  Grid y, x;
};

// Taps of one axis: number i of a half is tap[half][i] of the kernel.
struct Taps {
  size_t kernel;
  size_t tap[2][2];
  size_t count[2];  // 1 or 2
};
struct KernelTaps {
  Taps y, x;
};

// Where the values of a pair of halves [y][x] lie, in floats.
struct Slots {
  size_t at[2][2];
};

// One target's loops. Channels go across lanes, so every matrix row is as long as round_up(channels, lanes), once for
// each pair of halves; what is beyond the channels is zero. `room` is scratch of the size given by room_floats.
struct Kernels {
  size_t lanes;
  size_t panel;  // columns of the register tile

  // Floats of `room` for blocks of that many columns of tiles.
  size_t (*room_floats)(size_t columns);

  // U = G w Gᵀ of all halves between input channel k < inputs and output channel j < outputs, at most `lanes` of these;
  // it lies at u[p·point + slot + k·panel + j]. The taps begin at w[k·k_step + j·j_step]. Rows k of [inputs, rows)
  // become zeros.
  void (*weights)(const KernelTaps& taps, const float* w, size_t k_step, size_t j_step, size_t inputs, size_t rows,
                  size_t outputs, const Slots& slots, float* u, size_t point);
  // v(tile, slot + c) = Bᵀ d B of all halves, for the channels of the range, which begins at a multiple of `lanes`.
  void (*data)(const Image& x, const Grids& grids, const Block& block, Range channels, const Slots& slots,
               const Matrices& v, float* room);
  // The same with y(tile, o) = A dz Aᵀ of 4x4 outputs.
  void (*gradient)(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room);

  // c (tiles, outputs) = a (tiles, depth) · b, whose columns come in panels, `step` floats apart.
  void (*multiply)(const float* a, size_t a_row, size_t tiles, const float* b, size_t step, size_t depth,
                   size_t outputs, float* c, size_t c_row);
  // y = Aᵀ m A + bias, or y += Aᵀ m A, of all halves; bias may be NULL.
  void (*outputs)(const Matrices& m, const Slots& slots, const KernelTaps& taps, const Grids& grids,
                  const Block& block, const Image& y, const float* bias, bool accumulate, float* room);

  // s (inputs, outputs) = Σ_tile v(tile, input) · y(tile, output), or added.
  void (*correlate)(const float* v, size_t v_row, size_t inputs, const float* y, size_t y_row, size_t outputs,
                    size_t tiles, bool accumulate, float* s, size_t s_row);
  // dw (O, C, kh, kw) = Gᵀ s G, or added. Between channels c and o of the ranges s lies at
  // data[p·point + slot + (c - inputs.first)·row + (o - outputs.first)], and is the sum of `parts` sets, part_step
  // floats apart, added in order. c is C.
  void (*weight_gradient)(const Matrices& s, const Slots& slots, const KernelTaps& taps, size_t parts,
                          size_t part_step, Range inputs, Range outputs, size_t c, bool accumulate, float* dw);
};

extern const Targets<Kernels> targets;

// Whether a pass can be done at all, and the passes on a given target; tests walk through all of them.
bool is_possible(const Problem& problem);
size_t forward_bytes(const Kernels& kernels, const Problem& problem);
void forward(const Kernels& kernels, const Problem& problem, const Forward& call, size_t threads, std::byte* work);
size_t input_gradient_bytes(const Kernels& kernels, const Problem& problem);
void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& call, size_t threads,
                    std::byte* work);
size_t weight_gradient_bytes(const Kernels& kernels, const Problem& problem);
void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& call, size_t threads,
                     std::byte* work);

}  // namespace obn::convolution::winograd::strided
