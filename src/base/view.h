// One descriptor, read and checked: the only place that knows layouts. Families work on views.
#pragma once

#include <cstddef>

#include "openbnns/bnns/base.h"

namespace obn {

enum class Access { read, write };  // what is written must not overlap itself

// Axes are kept fastest first: extent[k] and stride[k] (in values, resolved, never 0) belong together for every layout.
// An axis of one value has a stride no longer than without gaps, whatever the descriptor says. Entries from rank on
// are not set: clearing them took half of a small backward call.
struct View {
  size_t rank = 0;
  size_t extent[BNNS_MAX_TENSOR_DIMENSION];
  size_t stride[BNNS_MAX_TENSOR_DIMENSION];
  size_t axis_of_size[BNNS_MAX_TENSOR_DIMENSION];       // size[i] is extent[axis_of_size[i]]
  size_t count = 0;                                     // values in one sample
  size_t span = 0;                                      // 1 + Σ (extent-1)·stride: values from the first to the last
  size_t packed_batch = 0;                              // batch stride that 0 stands for: said stride·extent of the slowest axis
  BNNSDataLayout layout = BNNSDataLayoutVector;
  BNNSDataType type = BNNSDataTypeFloat32;
  void* data = nullptr;
  const void* table = nullptr;  // indexed types
  BNNSDataType table_type = BNNSDataTypeFloat32;
  float scale = 1.0f;  // integer types: real = scale·stored + bias
  float bias = 0.0f;
  bool accumulate = false;  // gradients: add to what is there

  bool is_packed() const { return span == count; }  // no gaps: the sample is one run of `count` values
};

// A FullyConnectedSparse descriptor keeps the bytes of its packed weights in this entry of stride, which its rank does
// not use.
inline constexpr size_t kSparseBytesEntry = BNNS_MAX_TENSOR_DIMENSION - 1;

// SIZE_MAX for a layout that does not exist.
size_t rank_of(BNNSDataLayout layout);
const char* name_of(BNNSDataLayout layout);

// Fills *view from the descriptor. `argument` is the word used in the sentence ("input", "output", "bias", …).
// Refuses unknown layouts and types, zero extents, decreasing strides, sizes that overflow, indexed types without a
// table, and (Access::write) strides that make values overlap. Does not require data. Returns 0 or -1; then *view is
// not to be used.
int read_view(const BNNSNDArrayDescriptor& descriptor, Access access, const char* argument, View* view);

// A view over a batch, checked against memory: `data` not NULL, aligned to the element, the whole span addressable.
// requested = 0 means packed. For Access::write samples must not overlap. Returns 0 or -1; *stride is in values.
int read_batch(const View& view, const void* data, size_t batch, size_t requested, Access access, const char* argument,
               size_t* stride);

// For questions about a batch without data: refuses one whose values could not be addressed.
int check_batch_size(const View& view, size_t batch);

// Like read_view + read_batch for a gradient descriptor that must have the extents and type of `like` (strides may
// differ). The flags choose set or accumulate.
int read_gradient(const BNNSNDArrayDescriptor& descriptor, const View& like, Access access, size_t batch,
                  size_t requested, const char* argument, View* view, size_t* stride);

// True when no value of one batch can be a value of the other. Exact for batches that lie apart or are interleaved
// sample by sample with the same batch stride (slices of one larger array); otherwise cautious.
bool disjoint(const View& a, const void* a_data, size_t a_stride, const View& b, const void* b_data, size_t b_stride,
              size_t batch);

// Refuses two batches that share memory. `a` and `b` are the words for the sentence.
int check_disjoint(const View& a, const void* a_data, size_t a_stride, const char* a_argument, const View& b,
                   const void* b_data, size_t b_stride, const char* b_argument, size_t batch);

// An array of a call, for the question whether two share memory. Those of one batch are compared sample by sample;
// one of no samples shares none.
struct Place {
  const char* word;
  const View* view;
  const void* data;  // NULL: none
  size_t step;
  size_t batch;      // 1 for parameters
};
int check_apart(const Place& a, const Place& b);
// Memory without shape, for such a question.
View view_of_bytes(size_t bytes);

// Makes a gradient that is a sum over no samples 0, unless it is added to; gaps stay. Nothing without data.
void clear_sum(const View& gradient);

// "(64, 112, 112)": slowest first, as NumPy prints it. The text lives in `buffer`.
struct ShapeText {
  char buffer[96];
};
const char* shape_text(const View& view, ShapeText* text);

}  // namespace obn
