// Convolution as products over blocks laid out on the fly: what direct.cpp plans and direct_kernels.cpp runs.
//
// Forward and input gradient are the same sum, with other taps:
//   out(n, m, i, j) = Σ a(m, c, ty, tx) · in(n, c, step·i + shift(ty), step·j + shift(tx))
// Forward has step = stride and one phase. The input gradient has step = 1 and one phase per remainder of the output
// position by the stride: position phase + stride·i of an axis meets only the taps that belong to its phase, so nothing
// is multiplied by the zeros between the windows.
//
// A block of the input is copied into scratch (a frame), its padding as zeros and its rows and columns split by
// remainder modulo `step` (slots). There every tap is one distance from the output position, whatever kernel, stride,
// dilation and padding are:
//   out(m, pixel) = Σ_k a(m, k) · frame[offset(k) + pixel], k = (c, ty, tx), pixel = i·pitch + j
// Padding takes part as zeros, so where an infinite or NaN weight (in the weight gradient: gradient) meets padding, the
// sum is NaN; the formula leaves padding out. Input values stay within their windows.
// Either pixels lie across the lanes and weights are broadcast, or output channels do and pixels are broadcast: then no
// lane is spent on the columns between the rows of the frame, but sums must be transposed on their way out.
// The weight gradient sums over the pixels of the same frame.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "convolution/convolution.h"

namespace obn::convolution::direct {

inline constexpr size_t kFrameSlack = 64;  // floats behind a frame that tiles may read

struct Tap {
  int64_t index;  // in the kernel
  size_t slot;    // which remainder of the frame
  size_t at;      // rows or columns from the start of the frame
};

// One axis of a pass.
struct Taps {
  int64_t in;       // values of the input
  int64_t out;      // positions of the output
  int64_t step;     // input values from one position of a phase to the next
  int64_t phases;   // position phase + phases·i belongs to phase
  int64_t first;    // frame starts at input value step·(i + first) + remainder
  int64_t span;     // frame is positions + span - 1 long
  size_t slots;
  int64_t* remainders;  // (slots)
  Tap* taps;            // those of phase 0, of phase 1, …; without those that only ever meet padding
  size_t* begin;        // (phases + 1) into taps

  // Positions of the longest phase.
  [[gnu::always_inline]] inline size_t count() const { return static_cast<size_t>((out + phases - 1) / phases); }
  [[gnu::always_inline]] inline size_t count(size_t phase) const {
    return static_cast<size_t>((out - static_cast<int64_t>(phase) + phases - 1) / phases);
  }
};

// Output positions of a phase that are computed together, and the frame they need. Sizes in values.
struct Block {
  size_t rows, columns;
  size_t row_blocks, column_blocks;
  size_t pitch;     // from one row of a slot to the next
  size_t slot;      // from one slot to the next
  size_t channel;   // from one channel to the next
  size_t channels;  // that lie in scratch at a time
};

// The taps of one phase of both axes.
struct Phase {
  size_t taps;
  size_t channels;        // channels of k done in a row, so that their weights stay in the first cache
  const size_t* offsets;  // (channels · taps): offset(k)
  size_t weights;         // where its weights begin in `packed`, group 0
};

// One call of forward or input gradient. Channels are those of a group.
struct Correlation {
  Planes in;
  Planes out;
  const float* bias;
  const activation::Fused* activation;
  bool accumulate;
  size_t batch, groups;
  size_t in_channels, out_channels;
  const float* w;            // a(m, c, tap) lies at w[m·w_out + c·w_in + tap], tap = ky·kw + kx
  size_t w_out, w_in, w_group;
  size_t kernel_columns;     // kw
  Taps x, y;
  Block block;
  const Phase* phases;       // (y.phases · x.phases)
  float* packed;             // weights: (group, phase, panel of output channels, k, channels of the panel)
  size_t packed_group;
  bool outputs_in_lanes;     // a panel is kTileColumns output channels, filled up with zeros; else see row_panels()
  size_t panels;
  size_t parts;              // pieces that output channels are cut into
  bool by_rows;              // tiles stay in a row of the frame; else they run over its end into the next
  bool in_place;             // tiles are added up in the output itself, not in scratch
  bool is_flat;              // one tap, one row, no padding
  bool in_strips;            // flat and in place: a block is a strip of columns, its frame (tile, k, kTileColumns)
  size_t blocks_at_once;     // column blocks of a piece
};

struct WeightSum {
  Planes x;
  Planes dz;
  float* dw;
  bool accumulate;
  size_t batch, groups;
  size_t in_channels, out_channels;
  size_t taps;               // of the kernel
  size_t kernel_columns;
  Taps x_taps, y_taps;       // one phase each
  Block block;
  bool is_flat;              // x is its own frame
  size_t used;               // taps that meet the image
  const size_t* offsets;     // (block.channels · used)
  size_t panels;             // of kTileColumns output channels
  size_t panels_at_once;     // in one piece
  size_t parts;              // that the blocks of all samples are cut into
  float* sums;               // (part, group, panel, channel, used tap, kTileColumns)
};

// One target's loops.
struct Kernels {
  size_t lanes;
  size_t tile_rows;
  size_t tile_columns;

  // Packs one panel of one group's weights.
  void (*pack_weights)(const Correlation&, size_t group, size_t panel);
  // Computes one piece: (sample, group, part of the panels, row block, some column blocks).
  void (*correlate)(const Correlation&, size_t piece, float* scratch);
  // Sums over one part of the pixels: piece = (part, group, panels, channels).
  void (*sum_weights)(const WeightSum&, size_t piece, float* scratch);
  // Adds up the parts for kLanes output channels.
  void (*finish_weights)(const WeightSum&, size_t group, size_t lanes_of_outputs);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// The passes on a given target; tests walk through all of them.
bool fits_forward(const Kernels&, const Problem&);
size_t forward_bytes(const Kernels&, const Problem&);
void forward(const Kernels&, const Problem&, const Forward&, size_t threads, std::byte* work);
bool fits_input_gradient(const Kernels&, const Problem&);
size_t input_gradient_bytes(const Kernels&, const Problem&);
void input_gradient(const Kernels&, const Problem&, const InputGradient&, size_t threads, std::byte* work);
bool fits_weight_gradient(const Kernels&, const Problem&);
size_t weight_gradient_bytes(const Kernels&, const Problem&);
void weight_gradient(const Kernels&, const Problem&, const WeightGradient&, size_t threads, std::byte* work);

}  // namespace obn::convolution::direct
