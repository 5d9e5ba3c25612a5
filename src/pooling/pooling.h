// Two-dimensional pooling over ImageCHW: what the desk (pooling.cpp), the benches (pooling_kernels.cpp) and the
// reference loops (pooling_ref.cpp) share.
//
// Letters: N samples, C channels, an image plane of H rows and W columns, a window plane of P rows and Q columns, one
// window per value. Max, the averages and the L2 norm go from the image to the windows; UnMax goes back.
// Window (q, p) covers the image columns sx·q + dx·kx - left, kx < kw, and the rows sy·p + dy·ky - up, ky < kh.
//
// Choices where the public documents are silent (docs/interface/pooling.md), all of them PyTorch's where it has an opinion:
//   padding never wins a maximum (the alternative: it counts as 0);
//   the first maximum in window order (ky outer, kx inner) wins, the first NaN wins over everything;
//   a window with no position inside the image has value 0, index 0 and passes no gradient;
//   AverageCountIncludePadding divides by kw·kh even where a window hangs over the padded image;
//   indices are y·W + x of the logical plane and start again in every channel;
//   of several UnMax inputs with one index the last in scan order wins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "base/targets.h"
#include "base/filter.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/bnns/pooling.h"

namespace obn::pooling {

inline constexpr size_t kPad = 16;  // lanes of the widest target: kernels may write this far past a row of scratch
inline constexpr size_t kRowsAtOnce = 8;    // image rows under one row of windows that a pass keeps in registers
inline constexpr size_t kOversAtOnce = 16;  // rows of windows over one image row that max backward compares with

// One axis of the geometry. Window positions that no window has inside the image are cut off, so kernel may be smaller
// than what the caller said, and before (the padding in front) may be negative.
struct Axis {
  int64_t image;
  int64_t windows;
  int64_t kernel;
  int64_t stride;
  int64_t dilation;
  int64_t before;

  // Where window o starts.
  [[gnu::always_inline]] inline int64_t start(int64_t o) const { return stride * o - before; }
  // The window positions k of window o that lie inside the image are first(o) <= k < end(o).
  [[gnu::always_inline]] inline int64_t first(int64_t o) const {
    int64_t missing = -start(o);
    if (missing <= 0) return 0;
    int64_t k = dilation == 1 ? missing : (missing + dilation - 1) / dilation;
    return k < kernel ? k : kernel;
  }
  [[gnu::always_inline]] inline int64_t end(int64_t o) const {
    int64_t room = image - start(o);
    int64_t k = room <= 0 ? 0 : dilation == 1 ? room : (room - 1) / dilation + 1;
    if (k > kernel) k = kernel;
    int64_t from = first(o);
    return k > from ? k : from;
  }
  // The windows o that may hold image position i are first_window(i) <= o < end_window(i).
  [[gnu::always_inline]] inline int64_t first_window(int64_t i) const {
    int64_t t = i + before - dilation * (kernel - 1);
    return t <= 0 ? 0 : (t + stride - 1) / stride;
  }
  [[gnu::always_inline]] inline int64_t end_window(int64_t i) const {
    int64_t t = i + before;
    if (t < 0) return 0;
    int64_t o = t / stride + 1;
    return o < windows ? o : windows;
  }
};

// Window column kx as the kernels see it. An image row is split by residue = column mod sx, so that column kx of
// neighbouring windows lies side by side: window q reads value q + shift of its residue.
struct Column {
  int32_t offset;   // dx·kx - left: image column of window 0
  int32_t residue;  // image column = sx·(q + shift) + residue
  int32_t shift;
  int32_t at;       // where window 0 finds its value in a split row (Plan::row_floats)
};

// One value per channel. The legacy interface also has integers, and bytes that are looked up in a table.
struct Bias {
  const void* data;  // NULL: none
  BNNSDataType type;
  size_t stride;
  float scale;
  float offset;
  const float* table;
};

// How the rows of a plane are cut into pieces of work.
struct RowCut {
  size_t rows;
  size_t rows_per_piece;
  size_t pieces;
};

// Everything decided when a filter is created.
struct Plan {
  BNNSPoolingFunction function;
  size_t channels;
  Axis x;
  Axis y;
  bool count_padding;   // divide by the whole window
  float full_width;     // kw and kh of the caller
  float full_height;
  Bias bias;
  activation::Fused activation;
  bool has_activation;
  bool activation_needs_rows;  // the softmax family: one row is one distribution

  size_t plane_values;      // of image and windows together
  size_t planes_per_piece;  // small planes are taken several at a time
  RowCut image_rows;        // large planes in parts
  RowCut window_rows;

  // The rest serves the kernels only.
  bool fits;                       // the kernels can run it within their scratch; otherwise the reference loops do
  bool prefers_scatter;            // backward of maxima whose windows overlap so much that scattering beats comparing
  bool is_global_average;          // one window over the whole plane, which fits into a stage
  bool is_in_pairs;                // stride 2, columns 0, 1 or -1, 0, 1, at most three rows: 2x2, 3x3 with padding 1
  bool pushes;                     // backward of 2x2 and 3x3 with padding 1, stride 2 both ways, except L2 norms
  bool has_empty_columns;          // some window has no column inside the image
  Column* columns;                 // (columns_count) in order of kx
  Column* columns_by_residue;      // the same, sorted by residue
  int32_t* residue_begin;          // (residues + 1) into columns_by_residue
  int32_t* first_column;           // (Q + kPad) first image column of each window
  int32_t* column_count;           // (Q + kPad) image columns in each window
  int32_t* first_position;         // (P·Q + kPad) y·W + x of the first one of each window; NULL: not for this plan
  float* column_weight;            // (forward_rows·Q + kPad) columns that an average counts, the row repeated
  float* column_factor;            // the same size: 1 / column_weight
  bool weights_are_powers_of_two;  // all of column_weight
  size_t columns_count;
  size_t residues;                 // min(sx, W)
  size_t used_residues;
  int32_t* used_residue;           // (used_residues) those with a column, ascending
  size_t slot_floats;              // one residue of a split row, with its padding
  size_t slot_left;                // padding in front of it
  size_t row_floats;               // used_residues · slot_floats
  size_t ring_rows;                // split rows kept at a time, a power of two
  size_t rows_at_once;             // of them that one pass over a row of windows takes, at most kRowsAtOnce
  bool splits_ahead;               // the ring holds the image rows under two rows of windows
  size_t line_floats;              // one plain row of the image or of the windows
  size_t forward_rows;             // window rows (UnMax: image rows) staged at a time
  int64_t full_begin;              // window rows that lie in the image from top to bottom: full_begin <= p < full_end
  int64_t full_end;
  size_t backward_rows;            // image rows staged at a time
  size_t push_rows;                // the same when windows push their gradients
  size_t scatter_rows;             // the same when scattering
  size_t gradient_rows;            // window rows that backward_rows image rows can touch
  size_t gradient_left;            // zeros in front of a staged row of window gradients
  size_t gradient_floats;          // such a row with the zeros on both sides

  // Rows and columns of y and dy.
  [[gnu::always_inline]] inline size_t output_rows() const {
    return static_cast<size_t>(function == BNNSPoolingFunctionUnMax ? y.image : y.windows);
  }
  [[gnu::always_inline]] inline size_t output_columns() const {
    return static_cast<size_t>(function == BNNSPoolingFunctionUnMax ? x.image : x.windows);
  }
};

// One array of a call: strides count values. Without data the rest is zero.
struct Tensor {
  std::byte* data = nullptr;
  size_t x_stride = 0;
  size_t y_stride = 0;
  size_t c_stride = 0;
  size_t n_stride = 0;
  BNNSDataType type = {};
  bool accumulate = false;
  bool stream = false;  // so large that it should go past the caches

  // Rows of that many values lie side by side, one after the other.
  [[gnu::always_inline]] inline bool is_one_run(size_t columns) const { return x_stride == 1 && y_stride == columns; }
  [[gnu::always_inline]] inline bool has_float_rows() const { return type == BNNSDataTypeFloat32 && x_stride == 1; }
  [[gnu::always_inline]] inline std::byte* at(size_t n, size_t c, size_t row) const {
    return data + (n * n_stride + c * c_stride + row * y_stride) * bytes_of(type);
  }
};

// What one thread does at a time: planes [plane, plane + planes) of all N·C, rows [row, row + rows) of each.
struct Piece {
  size_t plane;
  size_t planes;
  size_t row;
  size_t rows;
};

// How a call is cut: whole planes together while they are small, parts of one plane when it is large. Depends on the
// shapes only. Most small calls are one piece and pay no division.
struct Cut {
  size_t planes = 0;
  size_t planes_per_piece = 0;
  RowCut rows = {};
  size_t pieces = 0;

  Cut() = default;
  Cut(size_t all_planes, size_t together, const RowCut& row_cut)
      : planes(all_planes), planes_per_piece(together), rows(row_cut),
        pieces(all_planes <= together ? row_cut.pieces : ((all_planes - 1) / together + 1) * row_cut.pieces) {}
  [[gnu::always_inline]] inline Piece piece(size_t i) const {
    if (pieces == 1) return {0, planes, 0, rows.rows};
    const size_t plane = i / rows.pieces * planes_per_piece, row = i % rows.pieces * rows.rows_per_piece;
    const size_t more_planes = planes - plane, more_rows = rows.rows - row;
    return {plane, more_planes < planes_per_piece ? more_planes : planes_per_piece, row,
            more_rows < rows.rows_per_piece ? more_rows : rows.rows_per_piece};
  }
};

// One checked call.
struct Call {
  const Plan* plan;
  size_t batch;
  Cut cut;  // of what is being run
  Tensor x;
  Tensor y;
  Tensor indices;
  Tensor dy;
  Tensor dx;
  bool stray_indices = false;  // max backward: some index may lie outside its own window
  std::byte* db = nullptr;
  BNNSDataType db_type = {};
  size_t db_stride = 0;
  bool db_accumulate = false;
};

// Findings of a look at the indices.
inline constexpr unsigned kIndexOutOfRange = 1;  // not below W·H
inline constexpr unsigned kIndexStray = 2;       // not in its own window

// Does piece i of the cut of a Call, which `call` points to: what run_pieces (base/pool.h) wants.
using Run = void (*)(void* call, size_t i);

// One implementation of the family: a function for every algorithm (the lists in pooling.cpp say when).
struct Kernels {
  // y = activation(bias + function(x)); rows are rows of y. Max writes indices if there are any, UnMax reads them.
  Run forward_inverse, forward_global, forward_in_place, forward_windows;
  // dx from dy (and x, y, indices as the function needs them); rows are rows of dx.
  Run backward_inverse, backward_global, push_two_maxima, push_two_averages, push_three_maxima, push_three_averages,
      backward_pull, backward_scatter;
  // db of channels [plane, plane + planes).
  Run bias_backward;
  // `work` is a block of kScratchBytes. Rows are rows of the windows.
  unsigned (*look_at_indices)(const Call&, const Piece&, std::byte* work);
  // The activation can be differentiated at every value of y; rows are rows of y.
  bool (*accepts_output)(const Call&, const Piece&, std::byte* work);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();
extern const Kernels reference;

// An algorithm of one direction. The list of a direction has the best first and the reference last.
struct Algorithm {
  const char* name;
  bool (*fits)(const Plan&);   // by the shapes, at creation; NULL: always
  bool (*takes)(const Call&);  // by types and strides, once per call; NULL: always
  Run Kernels::*run;
};

float bias_of(const Plan& plan, size_t channel);  // -0 without a bias: adding it changes nothing

class Pooling final : public Filter {
 public:
  Pooling(const Options& options, const View& input, const View& output, const Plan& plan, void* tables,
          void* copied_bias);
  ~Pooling() override;

  int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) override;
  int apply_backward(const Backward& arguments) override;
  void describe(Description* description) const override;

  int apply_indexed(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride,
                    BNNSDataType indices_type, void* indices, size_t indices_stride);
  int apply_backward_indexed(const Backward& arguments, BNNSDataType indices_type, const void* indices,
                             size_t indices_stride);

  const Plan& plan() const { return plan_; }
  const View& output() const { return output_; }
  // What the shapes chose; a call whose arrays it does not take goes to the next that fits.
  const Algorithm& forward() const { return *forward_; }
  const Algorithm& backward() const { return *backward_; }
  // From now on the indices have no gaps, whatever the windows have.
  void pack_indices();

  const Kernels* kernels;  // the plan's choice; tests put others here

 private:
  const View& indices_of(BNNSDataType type) const { return indices_[type == BNNSDataTypeUInt64]; }
  // The kernel for a call, from what the shapes chose.
  Run kernel_of(const Algorithm* chosen, const Call& call) const;
  Place own_bias() const { return {"bias", &bias_, bias_.data, 0, 1}; }  // the caller's, where calls read it
  unsigned look_at_indices(const Call& call, size_t threads) const;
  int check_backward(const Backward& arguments, BNNSDataType indices_type, const void* indices, size_t indices_stride,
                     Call* call, View* db) const;

  View input_;
  View output_;
  View indices_[2];  // uint32 and uint64, lying like the windows, or packed
  View bias_;  // the caller's; without data: none, or copied
  Plan plan_;
  const Algorithm* forward_;
  const Algorithm* backward_;
  void* tables_;       // one block with all arrays of the plan; NULL: none
  void* copied_bias_;  // NULL: none
};

// A filter made by options.make that is not published; NULL with a sentence.
Pooling* make_pooling(const BNNSLayerParametersPooling& parameters, const Options& options);

}  // namespace obn::pooling
