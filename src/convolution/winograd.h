// Winograd's way to a 3x3 convolution of stride 1: what the drive (winograd.cpp) and the bench (winograd_kernels.cpp)
// share.
//
// Four outputs in a row are the product of two polynomials, seen through a transposition: six inputs d, three weights w
// and the points t = 0, ±3/4, ±3/2, ∞ give
//   y = Aᵀ ((G w) · (Bᵀ d)),   G w: w at the points,   Bᵀ d: d at the points,   Aᵀ: back, with the scales
// and on both axes 4x4 outputs take 36 products instead of 144. The six steps of the three passes:
//   forward         y  = Aᵀ (U · V) A     U = G w Gᵀ,  V = Bᵀ d B; the product is a matrix product over channels
//   input gradient  the forward pass from dz to dx, weights turned by 180 degrees, padding 2 - before
//   weight gradient dw = Gᵀ (Σ V · Y) G   Y = A dz Aᵀ, summed over all tiles
// With these points the error is about twice that of a plain float32 loop; with 0, ±1, ±2, ∞ it is 4 to 10 times.
//
// A last tile of one or two outputs is short: four inputs and the points 0, ±3/4, ∞ give two outputs, with the same
// G w. So the far points ±3/2 have fewer tiles: a plane of 14x14 takes 484 products per channel pair instead of 576.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "convolution/convolution.h"
#include "convolution/winograd_tiles.h"

namespace obn::convolution::winograd {

inline constexpr size_t kSide = 6;               // points on one axis, in the order 0, 3/4, -3/4, 3/2, -3/2, ∞
inline constexpr size_t kPoints = kSide * kSide;

// The same for transformed weights, `Kernels::panel` columns at a time: value (k, j) of point p lies at
// data[p·point + j / panel · step + k·panel + j % panel].
struct Panels {
  float* data;
  size_t point;
  size_t step;
};

// One target's loops. Channels go across lanes, so every matrix row is as long as round_up(channels, lanes); what is
// beyond the channels is zero. `room` is scratch of the size given by room_floats.
struct Kernels {
  size_t lanes;
  size_t panel;  // columns of the register tile

  // Floats of `room` for blocks of that many columns of tiles.
  size_t (*room_floats)(size_t columns);

  // U = G w Gᵀ between input channel k < inputs and output channel j < outputs, at most `lanes` of these; it lies at
  // u[p·point + k·panel + j]. The 9 taps begin at w[k·k_step + j·j_step], in reverse order if turned.
  void (*weights)(const float* w, size_t k_step, size_t j_step, bool turned, size_t inputs, size_t outputs, float* u,
                  size_t point);
  // v(tile, c) = Bᵀ d B for the channels of the range, which begins at a multiple of `lanes`; tile row 0 of a plane
  // begins at image row -up, tile column 0 at -left.
  void (*data)(const Image& x, int64_t up, int64_t left, const Block& block, Range channels, const Matrices& v,
               float* room);
  // The same with Y = A dz Aᵀ of 4x4 outputs.
  void (*gradient)(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room);

  // Both from lanes: of the pixel that the first tile begins with.
  void (*data_of_lanes)(const Lanes& x, const Block& block, Range channels, const Matrices& v);
  void (*gradient_of_lanes)(const Lanes& dz, const Block& block, Range channels, const Matrices& y);

  // m(tile, j) = Σ_k v(tile, k) · u(k, j) for k < depth and j < outputs, or added. m begins with the block's first tile.
  void (*multiply)(const Block& block, const Matrices& v, size_t depth, const Panels& u, size_t outputs,
                   bool accumulate, const Matrices& m);
  // y = Aᵀ m A + bias, or y += Aᵀ m A; m begins with channel channels.first. bias may be NULL.
  void (*outputs)(const Matrices& m, const Block& block, Range channels, const Image& y, const float* bias,
                  bool accumulate, float* room);
  // The same to lanes, where a last tile may write one row and one column that the plane has not.
  void (*outputs_to_lanes)(const Matrices& m, const Block& block, Range channels, const Lanes& y, const float* bias);

  // s(c - inputs.first, o - outputs.first) = Σ_tile v(tile, c) · y(tile, o), or added; outputs begin at a multiple of
  // `panel`.
  void (*correlate)(const Block& block, const Matrices& v, const Matrices& y, Range inputs, Range outputs,
                    bool accumulate, const Matrices& s);
  // dw (O, C, 3, 3) = Gᵀ s G, or added; s is the sum of `parts` sets, part_step floats apart, added in order, and
  // begins as correlate's does. c is C.
  void (*weight_gradient)(const Matrices& s, size_t parts, size_t part_step, Range inputs, Range outputs, size_t c,
                          bool accumulate, float* dw);
};

extern const Targets<Kernels> targets;

// The three passes on a given target; convolution.h's algorithms take the best.
size_t forward_bytes(const Kernels& kernels, const Problem& problem);
void forward(const Kernels& kernels, const Problem& problem, const Forward& call, size_t threads, std::byte* work);
size_t input_gradient_bytes(const Kernels& kernels, const Problem& problem);
void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& call, size_t threads,
                    std::byte* work);
size_t weight_gradient_bytes(const Kernels& kernels, const Problem& problem);
void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& call, size_t threads,
                     std::byte* work);

}  // namespace obn::convolution::winograd
