// Depthwise convolution: what the desk (depthwise.cpp) and the benches (depthwise_kernels.cpp) share.
//
// Letters as in convolution.h; one group per input channel, O = m·C. Every plane is convolved with kernels of its own,
// so a pass is many small convolutions of one plane with one kernel, and none of them is worth more than reading and
// writing its planes once.
//
// The plane that is read is first laid out in scratch (the stage), with zeros around it and rows and columns split by
// phase (phases.h), so that a tap is one fixed distance in the stage whatever borders and strides are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "convolution/phases.h"

namespace obn::convolution::depthwise {

inline constexpr size_t kChain = 3;       // taps above each other that one load serves
inline constexpr size_t kMostTaps = 128;  // of a kernel
inline constexpr size_t kMostPhases = 64;  // sx·sy

// Kernel rows ky[0], ky[1], … that read neighbouring rows of the stage, the first of them row `row`.
struct Chain {
  uint16_t row;
  uint8_t count;
  uint8_t ky[kChain];
};

// One kernel column of a chain: tap[i] of the kernel reads `at` + i·line from the stage.
struct Group {
  uint32_t at;
  uint8_t count;
  uint8_t tap[kChain];
};

// Decided from the shape alone.
struct Plan {
  Problem problem;
  size_t multiplier;  // m
  size_t taps;        // kh·kw

  // The stage: rows of `line` values; forward and dw: phase r of a row begins r·pitch values into it, rows of
  // phase r begin with row r·stage_rows.
  size_t pitch;
  size_t line;
  size_t stage_rows;  // of one phase
  size_t stage_left;  // dx: zeros in front of dz
  size_t stage_up;
  size_t stage_floats;

  // Rows done at a time: rows of y, for dx rows of places.
  size_t rows;
  size_t band;
  size_t bands;

  Places inside[kMostPhases];  // of the rows, by phase

  // Forward and dx. The groups of phase (ry, rx) are those from begin[ry·sx + rx] on; forward has one phase.
  Group groups[kMostTaps];
  uint16_t begin[kMostPhases + 1];

  // dw
  Chain chains[kMostTaps];
  size_t chain_count;
  uint32_t column[kMostTaps];  // of kx in the stage
  size_t segments;             // parts of the batch that are summed on their own
  size_t block;                // channels done together: their planes follow each other in memory
};

// One implementation. A unit is one band of one plane of all N·C; `work` is a block of kScratchBytes.
struct Kernels {
  void (*forward)(const Plan&, const Forward&, size_t first_unit, size_t units, std::byte* work);
  void (*input_gradient)(const Plan&, const InputGradient&, size_t first_unit, size_t units, std::byte* work);
  // Sums (channels, m, kh, kw) of channels [channel, channel + channels) over samples [first, first + count).
  void (*weight_gradient)(const Plan&, const WeightGradient&, size_t channel, size_t channels, size_t first,
                          size_t count, float* sums, std::byte* work);
  // dx and sums (kh, kw) of one channel, where O = C and a kernel of 3x3 moves over images with a border of one zero;
  // NULL: not on this target. dz are the planes of that channel.
  void (*gradients)(const Plan&, const InputGradient&, const WeightGradient&, size_t channel, size_t first,
                    size_t count, float* sums);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// The passes with a choice of kernels, for the tests; the algorithms take the best.
bool fits(const Problem& problem);
size_t work_bytes(const Problem& problem);  // of the weight gradient; the others need none
void forward(const Kernels& kernels, const Problem& problem, const Forward& call, size_t threads);
void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& call, size_t threads);
void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& call, size_t threads,
                     std::byte* work);

// Gradients of single channels alone on the calling thread, where O = C: for layers that have just made dz of one. The
// bits are those of the passes. dz are the planes of all samples, one after the other.
struct Channels {
  const Kernels* kernels;
  Plan input, weight;  // of dx and dw

  static bool fits(const Problem& problem) { return problem.out_channels == problem.in_channels; }  // and fits() above
  void plan(const Problem& problem);
  void add_input_gradient(const InputGradient& call, size_t channel, float* dz, std::byte* scratch) const;
  // Both at a time, where that is quicker; `work` as below.
  bool adds_both() const;
  void add_gradients(const InputGradient& to_x, const WeightGradient& to_w, size_t channel, float* dz,
                     std::byte* work) const;
  // `work` (work_bytes) is one and the same for all channels; finish is last.
  void sum_weight_gradient(const WeightGradient& call, size_t channel, float* dz, std::byte* scratch,
                           std::byte* work) const;
  void finish_weight_gradient(const WeightGradient& call, std::byte* work) const;
};

}  // namespace obn::convolution::depthwise
