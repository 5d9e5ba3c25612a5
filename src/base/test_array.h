// Arrays of the C++ tests: any descriptor over a batch, in memory of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "activation/activation.h"
#include "base/test.h"
#include "base/types.h"
#include "base/view.h"

namespace obn::test {

// A descriptor whose strides leave values free: gaps[0] behind each value, gaps[1] behind each row, gaps[2] behind each
// plane, and so on. For layouts whose first size is the fastest.
inline BNNSNDArrayDescriptor spaced(BNNSDataType type, BNNSDataLayout layout, const std::vector<size_t>& size,
                                    const std::vector<size_t>& gaps) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  d.data_type = type;
  size_t stride = 1 + gaps[0];
  for (size_t k = 0; k < size.size(); ++k) {
    d.size[k] = size[k];
    d.stride[k] = stride;
    if (k + 1 < size.size()) stride = stride * size[k] + gaps[k + 1];
  }
  return d;
}

// A batch with strides, and memory around and between the values that nobody may touch. Values are numbered along the
// fastest axis first, sample after sample. The descriptor has no data.
struct Array {
  static constexpr std::byte kUntouched{0x3c};
  static constexpr size_t kGuard = 8;  // bytes behind the last value

  BNNSNDArrayDescriptor descriptor = {};
  View view = {};
  size_t batch = 1, batch_stride = 0, shift = 0;
  std::vector<std::byte> bytes;

  Array() = default;
  // Strides are those of the descriptor; `gap`: values behind each sample, `shift`: in front of all.
  explicit Array(const BNNSNDArrayDescriptor& like, size_t n = 1, size_t gap = 0, size_t shift = 0,
                 size_t guard = kGuard)
      : descriptor(like), batch(n), shift(shift) {
    CHECK(read_view(descriptor, Access::read, "array", &view) == 0, "%s", obn_last_error());
    batch_stride = view.packed_batch + gap;
    allocate(std::max(n * batch_stride, (n - 1) * batch_stride + view.span), guard);
  }
  // With gaps as above, and behind each sample.
  Array(BNNSDataType type, BNNSDataLayout layout, size_t n, const std::vector<size_t>& size,
        const size_t (&gaps)[5] = {}, size_t shift = 0)
      : Array(spaced(type, layout, size, {gaps, gaps + 5}), n, gaps[size.size()], shift) {}

  void allocate(size_t values, size_t guard) {
    bytes.assign((shift + values) * bytes_of(descriptor.data_type) + guard, kUntouched);
  }
  size_t sample() const { return view.count; }
  size_t count() const { return bytes.empty() ? 0 : batch * view.count; }
  void* data() { return bytes.data() + shift * bytes_of(descriptor.data_type); }

  // Places are counted in values from the first one.
  size_t place_of(size_t i) const {
    size_t at = i / view.count * batch_stride;
    i %= view.count;
    for (size_t k = 0; k < view.rank; ++k) {
      at += i % view.extent[k] * view.stride[k];
      i /= view.extent[k];
    }
    return at;
  }
  // Of an indexed type the index itself.
  activation::ref::Values values() const {
    const BNNSDataType type = descriptor.data_type == BNNSDataTypeIndexed8 ? BNNSDataTypeUInt8 : descriptor.data_type;
    return {bytes.data() + shift * bytes_of(type), type, view.scale, view.bias, nullptr, BNNSDataTypeFloat32};
  }
  double get_at(size_t place) const {
    double value;
    activation::ref::get_reals(values(), place, 1, 1, &value);
    return value;
  }
  void set_at(size_t place, double value) { activation::ref::put_reals(values(), place, 1, 1, &value); }
  double get(size_t i) const { return get_at(place_of(i)); }
  void set(size_t i, double value) { set_at(place_of(i), value); }
  double get(size_t sample, size_t i) const { return get(sample * view.count + i); }
  void set(size_t sample, size_t i, double value) { set(sample * view.count + i, value); }

  template <class Numbers>
  void fill(Numbers& random, double mean = 0.0, double scale = 1.0) {
    for (size_t i = 0; i < count(); ++i) set(i, mean + scale * static_cast<double>(random.value()));
  }
  void fill(std::initializer_list<double> numbers) {
    size_t i = 0;
    for (double number : numbers) set(i++, number);
  }
  template <class Real = double>
  std::vector<Real> numbers() const {
    std::vector<Real> all(count());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Real>(get(i));
    return all;
  }
  BNNSNDArrayDescriptor with_data(bool accumulate = false) {
    BNNSNDArrayDescriptor d = descriptor;
    d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    d.data = data();
    return d;
  }
  // Whether what is in front of the values and behind them is as it was.
  bool has_its_guards() const {
    const auto is_untouched = [](std::byte b) { return b == kUntouched; };
    const auto front = static_cast<std::ptrdiff_t>(shift * bytes_of(descriptor.data_type));
    return std::all_of(bytes.begin(), bytes.begin() + front, is_untouched) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), is_untouched);
  }
};

// The same with its data in the descriptor, wherever it is copied.
struct PlacedArray : Array {
  PlacedArray() = default;
  explicit PlacedArray(const BNNSNDArrayDescriptor& like, size_t n = 1, size_t gap = 0, size_t shift = 0,
                       size_t guard = kGuard)
      : Array(like, n, gap, shift, guard) {
    descriptor.data = data();
  }
  PlacedArray(const PlacedArray& other) : Array(other) { descriptor.data = data(); }
  PlacedArray& operator=(const PlacedArray& other) {
    Array::operator=(other);
    descriptor.data = data();
    return *this;
  }
};

}  // namespace obn::test
