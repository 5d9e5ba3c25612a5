// Quantization: to integers, y = scale·x + bias, rounded and saturated, and back, y = (x - bias) / scale.
//
//   x, y    input and output       factors    scales, then biases: one, or one per place along an axis or the batch
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "base/view.h"
#include "openbnns/bnns/quantization.h"

namespace obn::quantization {

inline constexpr size_t kIntegers = 6;  // int8, uint8, int16, uint16, int32, uint32
inline constexpr size_t kReals = 2;     // int32, float32; float16 goes through float32

// x (n), x_stride apart, is read; y (n), y_stride apart, is written; in place is fine where both have one width.
// scale and bias are (n) where they move, else one value. Computed in double.
using Row = void (*)(const void* x, size_t x_stride, void* y, size_t y_stride, const double* scale, const double* bias,
                     bool factors_move, size_t n);

// One target's loops.
struct Kernels {
  Row quantize[kReals][kIntegers];
  Row dequantize[kIntegers][kReals];
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);  // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious formulas (quantization_ref.cpp) ----

namespace ref {

// The value that is stored, in the range of the integer type `to`.
double quantize(double x, double scale, double bias, BNNSDataType to);
double dequantize(double x, double scale, double bias, BNNSDataType to);

}  // namespace ref

// ---- a layer, without a handle: what other layers are fused from ----

// A call, checked.
struct Call {
  size_t batch = 0;  // 0: nothing to do
  std::byte *x = nullptr, *y = nullptr;
  size_t x_step = 0, y_step = 0;
};

class Plan {
 public:
  // Does not look at the data of input and output. Returns 0, or -1 with a sentence.
  int read(const BNNSLayerParametersQuantization& parameters, size_t threads);

  const View& input() const { return x_; }
  const View& output() const { return y_; }
  bool is_along_batch() const { return axis_ == x_.rank; }
  size_t length() const { return length_; }  // of scale and bias; 1 where there is neither

  // factors (2, length()): what the descriptors of scale and bias hold now.
  void fill(double* factors) const;
  int check(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride, Call* call) const;
  // The same for a layer that ends in this one and puts its own memory into call->x afterwards.
  int check_output(size_t batch, void* y, size_t y_stride, Call* call) const;
  int check_factors_apart(const Call& call) const;  // the output, where scale and bias are read at every call
  // scratch() must be there.
  void run(const Call& call, const double* factors) const;

 private:
  int read_types();
  int read_axis(size_t mask);
  int read_factor(const BNNSNDArrayDescriptor& descriptor, const char* argument, View* view);

  const Kernels* kernels_ = nullptr;
  Row row_ = nullptr;
  size_t threads_ = 0;
  bool quantizes_ = true;
  View x_, y_, scale_, bias_;  // the last two: data NULL where switched off
  size_t axis_ = SIZE_MAX;     // of x_ along which factors vary; its rank: the batch; SIZE_MAX: none
  size_t length_ = 1;
};

}  // namespace obn::quantization
