// Filters and the handles through which callers hold them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"
#include "openbnns/bnns/base.h"

namespace obn {

// The arguments of BNNSFilterApplyBackwardBatch, without the filter.
struct Backward {
  size_t batch;
  const void* x;  // may be NULL, as may everything but dy
  size_t x_stride;
  BNNSNDArrayDescriptor* dx;
  size_t dx_stride;
  const void* y;
  size_t y_stride;
  const BNNSNDArrayDescriptor* dy;
  size_t dy_stride;
  BNNSNDArrayDescriptor* dw;
  BNNSNDArrayDescriptor* db;
};

// The arguments of BNNSFilterApplyBackwardTwoInputBatch, without the filter.
struct BackwardTwo {
  size_t batch;
  const void* a;  // may be NULL, as may everything but dy
  size_t a_stride;
  BNNSNDArrayDescriptor* da;
  size_t da_stride;
  const void* b;
  size_t b_stride;
  BNNSNDArrayDescriptor* db;
  size_t db_stride;
  const BNNSNDArrayDescriptor* dy;
  size_t dy_stride;
  BNNSNDArrayDescriptor* dw;
  BNNSNDArrayDescriptor* dbias;
};

struct View;

inline constexpr size_t kMostLayers = 3;  // of a fused filter; and inputs of any

// What a filter says about itself (describe.h). Texts and views live as long as the filter.
struct Description {
  const char* kinds[kMostLayers] = {};     // what it is within its family; of a fused filter, its layers
  const char* forward = "kernels";         // the algorithms, by the names of their tables
  const char* input_gradient = "kernels";  // of all gradients,
  const char* weight_gradient = nullptr;   // unless there is one for the weights
  const View* inputs[kMostLayers] = {};    // of one sample
  const View* output = nullptr;
};

// What every layer is. A family derives from it, overrides the generic calls it serves, and owns memory only through
// `options`. All of it is noexcept in effect: the core is built without exceptions.
class Filter {
 public:
  Filter(const char* kind, const Options& options) : kind_(kind), options_(options) {}
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  virtual ~Filter() = default;

  const char* kind() const { return kind_; }  // the family's word: "pooling", compared by address
  const Options& options() const { return options_; }

  virtual int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride);
  virtual int apply_backward(const Backward& arguments);
  virtual int apply_two(size_t batch, const void* a, size_t a_stride, const void* b, size_t b_stride, void* y,
                        size_t y_stride);
  virtual int apply_two_backward(const BackwardTwo& arguments);
  virtual BNNSNDArrayDescriptor pointer(BNNSPointerSpecifier target);  // data NULL on failure
  virtual int set_winograd(int on);                // 0 or 1; -1: as the library says
  virtual int set_precision(int precision);        // a Precision; -1: as the library says
  virtual int set_borrow_input(int on);            // 0 or 1
  virtual void forget() {}                         // what a training call kept: it was interrupted
  virtual size_t work_bytes(size_t batch) const;   // what a call asks workspace() for, at most
  virtual size_t kept_bytes(size_t batch) const;   // what a training call keeps for its gradients
  virtual void describe(Description* description) const;  // fills in what differs from its defaults

 private:
  const char* kind_;
  Options options_;
};

// A handle is a ticket, not an address: slot and generation of a table, so that NULL, a destroyed filter, a filter
// destroyed twice, a handle of another kind or any stray number is recognised without touching memory. What cannot be
// caught: destroying a filter while another thread is inside a call on it.
enum class HandleKind : uint64_t { filter = 1, random_generator = 2, nearest_neighbors = 3 };

// NULL (with a sentence) when the table is full. The object's owner keeps ownership.
void* add_handle(HandleKind kind, void* object);
// The object, or NULL with a sentence that says what is wrong with the handle.
void* find_handle(HandleKind kind, const void* handle);
// Takes the handle out of the table and gives back the object, or NULL with a sentence.
void* drop_handle(HandleKind kind, const void* handle);

// The filter behind a handle, or NULL with a sentence. With `kind`, a filter of another family is refused too.
Filter* find_filter(BNNSFilter handle, const char* kind = nullptr);

// Registers a filter made with options.make<>(); on failure destroys it and returns NULL.
BNNSFilter publish(Filter* filter);
// The same after its preparation, whose status is 0 or a failure.
BNNSFilter publish(Filter* filter, int status);
void destroy(Filter* filter);

}  // namespace obn
