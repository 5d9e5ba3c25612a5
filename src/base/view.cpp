#include "base/view.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/loops.h"
#include "base/status.h"
#include "base/types.h"

namespace obn {
namespace {

// What an array may span, more than any machine has. Counts of values times a few thousand still fit into a size_t.
constexpr size_t kMaxBytes = size_t{1} << 48;

// How stride[k] pairs with size[]: stride k belongs to size[size_of_axis(k)].
enum class Pairing { in_order, reversed, attention };

struct Layout {
  BNNSDataLayout code;
  const char* name;
  size_t rank;
  Pairing pairing;
};

constexpr Layout kLayouts[] = {
    {BNNSDataLayoutVector, "Vector", 1, Pairing::in_order},
    {BNNSDataLayout1DLastMajor, "1DLastMajor", 1, Pairing::in_order},
    {BNNSDataLayout1DFirstMajor, "1DFirstMajor", 1, Pairing::in_order},
    {BNNSDataLayoutRowMajorMatrix, "RowMajorMatrix", 2, Pairing::in_order},
    {BNNSDataLayoutColumnMajorMatrix, "ColumnMajorMatrix", 2, Pairing::in_order},
    {BNNSDataLayoutFullyConnectedSparse, "FullyConnectedSparse", 2, Pairing::in_order},
    {BNNSDataLayout2DLastMajor, "2DLastMajor", 2, Pairing::in_order},
    {BNNSDataLayout2DFirstMajor, "2DFirstMajor", 2, Pairing::reversed},
    {BNNSDataLayoutImageCHW, "ImageCHW", 3, Pairing::in_order},
    {BNNSDataLayoutSNE, "SNE", 3, Pairing::in_order},
    {BNNSDataLayoutNSE, "NSE", 3, Pairing::in_order},
    {BNNSDataLayoutMHA_DHK, "MHA_DHK", 3, Pairing::attention},
    {BNNSDataLayout3DLastMajor, "3DLastMajor", 3, Pairing::in_order},
    {BNNSDataLayout3DFirstMajor, "3DFirstMajor", 3, Pairing::reversed},
    {BNNSDataLayoutConvolutionWeightsOIHW, "ConvolutionWeightsOIHW", 4, Pairing::in_order},
    {BNNSDataLayoutConvolutionWeightsOIHrWr, "ConvolutionWeightsOIHrWr", 4, Pairing::in_order},
    {BNNSDataLayoutConvolutionWeightsIOHrWr, "ConvolutionWeightsIOHrWr", 4, Pairing::in_order},
    {BNNSDataLayoutConvolutionWeightsOIHW_Pack32, "ConvolutionWeightsOIHW_Pack32", 4, Pairing::in_order},
    {BNNSDataLayout4DLastMajor, "4DLastMajor", 4, Pairing::in_order},
    {BNNSDataLayout4DFirstMajor, "4DFirstMajor", 4, Pairing::reversed},
    {BNNSDataLayout5DLastMajor, "5DLastMajor", 5, Pairing::in_order},
    {BNNSDataLayout5DFirstMajor, "5DFirstMajor", 5, Pairing::reversed},
    {BNNSDataLayout6DLastMajor, "6DLastMajor", 6, Pairing::in_order},
    {BNNSDataLayout6DFirstMajor, "6DFirstMajor", 6, Pairing::reversed},
    {BNNSDataLayout7DLastMajor, "7DLastMajor", 7, Pairing::in_order},
    {BNNSDataLayout7DFirstMajor, "7DFirstMajor", 7, Pairing::reversed},
    {BNNSDataLayout8DLastMajor, "8DLastMajor", 8, Pairing::in_order},
    {BNNSDataLayout8DFirstMajor, "8DFirstMajor", 8, Pairing::reversed},
};

const Layout* find_layout(BNNSDataLayout code) {
  for (const Layout& layout : kLayouts)
    if (layout.code == code) return &layout;
  return nullptr;
}

size_t size_of_axis(const Layout& layout, size_t axis) {
  constexpr size_t kAttention[] = {0, 2, 1};  // d_model, heads, d_key
  switch (layout.pairing) {
    case Pairing::in_order: return axis;
    case Pairing::reversed: return layout.rank - 1 - axis;
    case Pairing::attention: return kAttention[axis];
  }
  return axis;
}

// True when no two index tuples meet at one value: with axes sorted by stride, every stride steps over all that the
// faster axes reach. Axes of extent 1 do not move and do not count.
bool steps_apart(size_t count, const size_t* extent, const size_t* stride) {
  size_t order[BNNS_MAX_TENSOR_DIMENSION + 1];
  size_t moving = 0;
  for (size_t axis = 0; axis < count; ++axis) {
    if (extent[axis] == 1) continue;
    size_t place = moving++;
    for (; place > 0 && stride[order[place - 1]] > stride[axis]; --place) order[place] = order[place - 1];
    order[place] = axis;
  }
  size_t reach = 0;
  for (size_t k = 0; k < moving; ++k) {
    if (stride[order[k]] <= reach) return false;
    reach += (extent[order[k]] - 1) * stride[order[k]];  // cannot overflow: part of the checked span
  }
  return true;
}

// Bytes that `values` values of a type take, rounded up; false when that is more than an array may span.
bool bytes_for(size_t values, BNNSDataType type, size_t* bytes) {
  size_t bits;
  if (__builtin_mul_overflow(values, bits_of(type), &bits) || bits / 8 >= kMaxBytes) return false;
  *bytes = (bits + 7) / 8;
  return true;
}

// [first, last) of a batch in bytes from data.
size_t batch_bytes(const View& view, size_t stride, size_t batch) {
  return (((batch - 1) * stride + view.span) * bits_of(view.type) + 7) / 8;
}

}  // namespace

size_t rank_of(BNNSDataLayout code) {
  const Layout* layout = find_layout(code);
  return layout ? layout->rank : SIZE_MAX;
}

const char* name_of(BNNSDataLayout code) {
  const Layout* layout = find_layout(code);
  return layout ? layout->name : "unknown";
}

int read_view(const BNNSNDArrayDescriptor& descriptor, Access access, const char* argument, View* view) {
  const Layout* layout = find_layout(descriptor.layout);
  if (!layout) return fail("%s: expected a known layout; got 0x%x", argument, static_cast<unsigned>(descriptor.layout));
  if (!is_known(descriptor.data_type))
    return fail("%s: expected a known data type; got 0x%x", argument, static_cast<unsigned>(descriptor.data_type));
  View& v = *view;
  v.rank = layout->rank;
  v.layout = descriptor.layout;
  v.type = descriptor.data_type;
  v.data = descriptor.data;
  v.table = descriptor.table_data;
  v.table_type = descriptor.table_data_type;
  v.scale = descriptor.data_scale == 0.0f ? 1.0f : descriptor.data_scale;
  v.bias = descriptor.data_bias;
  v.accumulate = descriptor.flags == BNNSNDArrayFlagBackpropAccumulate;
  if (descriptor.flags > BNNSNDArrayFlagBackpropAccumulate)
    return fail("%s: expected flags 0 or 1; got %u", argument, static_cast<unsigned>(descriptor.flags));
  if (is_indexed(v.type)) {
    if (!v.table) return fail("%s: expected a lookup table for %s; got NULL", argument, name_of(v.type));
    if (!is_known(v.table_type) || bytes_of(v.table_type) == 0 || is_indexed(v.table_type))
      return fail("%s: expected a lookup table of a whole-byte type; got 0x%x", argument,
                  static_cast<unsigned>(v.table_type));
  }
  v.count = 1;
  v.span = 1;
  size_t given = 1;    // stride of the axis before, as it was said or stands for 0
  size_t natural = 1;  // what the next one would be without gaps
  for (size_t k = 0; k < v.rank; ++k) {
    size_t i = size_of_axis(*layout, k);
    v.axis_of_size[i] = k;
    v.extent[k] = descriptor.size[i];
    if (v.extent[k] == 0) return fail("%s: expected extents of at least 1; got size[%zu] = 0", argument, i);
    const size_t before = given;
    if (descriptor.stride[k] != 0) {
      given = descriptor.stride[k];
    } else if (k > 0 && __builtin_mul_overflow(before, v.extent[k - 1], &given)) {
      return fail("%s: expected a size that can be addressed; the strides overflow", argument);
    }
    if (k > 0 && given < before)
      return fail("%s: expected strides that do not decrease; got stride[%zu] = %zu after %zu", argument, k, given,
                  before);
    // One value never steps, so any stride may be said of it. None is kept that leads kernels, which form addresses of
    // rows that they do not touch, out of the address space.
    v.stride[k] = v.extent[k] == 1 ? std::min(given, natural) : given;
    if (__builtin_mul_overflow(v.stride[k], v.extent[k], &natural)) natural = SIZE_MAX;  // refused below
    size_t reach;
    if (__builtin_mul_overflow(v.count, v.extent[k], &v.count) ||
        __builtin_mul_overflow(v.extent[k] - 1, v.stride[k], &reach) || __builtin_add_overflow(v.span, reach, &v.span))
      return fail("%s: expected a size that can be addressed; the number of values overflows", argument);
  }
  size_t bytes;
  if (__builtin_mul_overflow(given, v.extent[v.rank - 1], &v.packed_batch) ||
      !bytes_for(v.span, v.type, &bytes) || !bytes_for(v.count, v.type, &bytes))
    return fail("%s: expected a size that can be addressed; the number of bytes overflows", argument);
  if (access == Access::write && !steps_apart(v.rank, v.extent, v.stride))
    return fail("%s: expected strides that keep values apart; got overlapping ones", argument);
  return 0;
}

int read_batch(const View& view, const void* data, size_t batch, size_t requested, Access access, const char* argument,
               size_t* stride) {
  *stride = requested ? requested : view.packed_batch;
  if (batch == 0) return 0;
  // As with axes of one value.
  if (batch == 1) *stride = std::min(*stride, view.stride[view.rank - 1] * view.extent[view.rank - 1]);
  if (!data) return fail("%s: expected data; got NULL", argument);
  size_t element = bytes_of(view.type);
  if (element > 1 && reinterpret_cast<uintptr_t>(data) % element != 0)
    return fail("%s: expected an address aligned to %s; got %p", argument, name_of(view.type), data);
  size_t reach, values, bytes;
  if (__builtin_mul_overflow(batch - 1, *stride, &reach) || __builtin_add_overflow(reach, view.span, &values) ||
      !bytes_for(values, view.type, &bytes) || bytes > SIZE_MAX - reinterpret_cast<uintptr_t>(data))
    return fail("%s: expected a batch that can be addressed; %zu samples with stride %zu overflow", argument, batch,
                *stride);
  if (element == 0 && batch > 1 && *stride * bits_of(view.type) % 8 != 0)
    return fail("%s: expected a batch stride that ends on a byte; got %zu values of %s", argument, *stride,
                name_of(view.type));
  if (access == Access::write && batch > 1) {
    size_t extent_all[BNNS_MAX_TENSOR_DIMENSION + 1], stride_all[BNNS_MAX_TENSOR_DIMENSION + 1];
    std::copy_n(view.extent, view.rank, extent_all);
    std::copy_n(view.stride, view.rank, stride_all);
    extent_all[view.rank] = batch;
    stride_all[view.rank] = *stride;
    if (!steps_apart(view.rank + 1, extent_all, stride_all))
      return fail("%s: expected samples that do not overlap; got batch stride %zu for samples of %zu values", argument,
                  *stride, view.span);
  }
  return 0;
}

int read_gradient(const BNNSNDArrayDescriptor& descriptor, const View& like, Access access, size_t batch,
                  size_t requested, const char* argument, View* view, size_t* stride) {
  if (read_view(descriptor, access, argument, view) != 0) return -1;
  bool same = view->layout == like.layout;
  for (size_t k = 0; same && k < like.rank; ++k) same = view->extent[k] == like.extent[k];
  if (!same) {
    ShapeText expected, got;
    return fail("%s: expected %s in layout %s; got %s in layout %s", argument, shape_text(like, &expected),
                name_of(like.layout), shape_text(*view, &got), name_of(view->layout));
  }
  if (view->type != like.type)
    return fail("%s: expected %s; got %s", argument, name_of(like.type), name_of(view->type));
  return read_batch(*view, view->data, batch, requested, access, argument, stride);
}

int check_batch_size(const View& view, size_t batch) {
  size_t values, bytes;
  if (!__builtin_mul_overflow(view.count, batch, &values) && bytes_for(values, view.type, &bytes)) return 0;
  return fail("batch: expected a number of samples that can be addressed; got %zu of %zu values", batch, view.count);
}

bool disjoint(const View& a, const void* a_data, size_t a_stride, const View& b, const void* b_data, size_t b_stride,
              size_t batch) {
  if (batch == 0 || !a_data || !b_data) return true;
  uintptr_t a_first = reinterpret_cast<uintptr_t>(a_data), b_first = reinterpret_cast<uintptr_t>(b_data);
  if (a_first + batch_bytes(a, a_stride, batch) <= b_first || b_first + batch_bytes(b, b_stride, batch) <= a_first)
    return true;
  // Slices of one larger array: sample i of both lies in the i-th period, each in its own part of it.
  size_t period = a_stride * bits_of(a.type) / 8;
  if (batch == 1 || period == 0 || period != b_stride * bits_of(b.type) / 8) return false;
  size_t a_bytes = batch_bytes(a, a_stride, 1), b_bytes = batch_bytes(b, b_stride, 1);
  size_t gap = b_first >= a_first ? (b_first - a_first) % period : (period - (a_first - b_first) % period) % period;
  return gap >= a_bytes && b_bytes <= period - gap;
}

int check_disjoint(const View& a, const void* a_data, size_t a_stride, const char* a_argument, const View& b,
                   const void* b_data, size_t b_stride, const char* b_argument, size_t batch) {
  if (disjoint(a, a_data, a_stride, b, b_data, b_stride, batch)) return 0;
  return fail("%s: expected memory apart from %s; the two overlap", a_argument, b_argument);
}

int check_apart(const Place& a, const Place& b) {
  if (!a.data || !b.data || a.batch == 0 || b.batch == 0) return 0;
  if (a.batch == b.batch)
    return check_disjoint(*a.view, a.data, a.step, a.word, *b.view, b.data, b.step, b.word, a.batch);
  const auto begin = [](const Place& p) { return reinterpret_cast<uintptr_t>(p.data); };
  const auto end = [&](const Place& p) { return begin(p) + batch_bytes(*p.view, p.step, p.batch); };
  if (end(a) <= begin(b) || end(b) <= begin(a)) return 0;
  return fail("%s: expected memory apart from %s; the two overlap", a.word, b.word);
}

void clear_sum(const View& gradient) {
  if (!gradient.data || gradient.accumulate) return;
  Loops<1> loops;
  loops.tensors = 1;
  for (size_t k = 0; k < gradient.rank; ++k) loops.add(gradient.extent[k], &gradient.stride[k]);
  loops.finish();
  // Zero has the same bits in all types that gradients have.
  const size_t value = bytes_of(gradient.type), n = loops.extent[0], step = loops.stride[0][0] * value;
  Position<1> at(loops, 1);
  at.seek(0);
  for (size_t row = 0; row < gradient.count / n; ++row, at.step()) {
    std::byte* first = static_cast<std::byte*>(gradient.data) + at.offset(0) * value;
    if (step == value) {
      std::memset(first, 0, n * value);
    } else {
      for (size_t i = 0; i < n; ++i) std::memset(first + i * step, 0, value);
    }
  }
}

View view_of_bytes(size_t bytes) {
  View view;
  view.rank = 1;
  view.extent[0] = view.count = view.span = view.packed_batch = bytes;
  view.stride[0] = 1;
  view.axis_of_size[0] = 0;
  view.type = BNNSDataTypeUInt8;
  return view;
}

const char* shape_text(const View& view, ShapeText* text) {
  size_t used = 0;
  const size_t room = sizeof text->buffer;
  for (size_t k = view.rank; k > 0 && used < room; --k)
    used += static_cast<size_t>(std::snprintf(text->buffer + used, room - used, "%s%zu", k == view.rank ? "(" : ", ",
                                              view.extent[k - 1]));
  if (used < room) std::snprintf(text->buffer + used, room - used, view.rank == 1 ? ",)" : ")");
  return text->buffer;
}

}  // namespace obn

extern "C" {

size_t BNNSDataLayoutGetRank(BNNSDataLayout layout) {
  size_t rank = obn::rank_of(layout);
  if (rank == SIZE_MAX) obn::fail("layout: expected a known layout; got 0x%x", static_cast<unsigned>(layout));
  return rank;
}

size_t BNNSNDArrayGetDataSize(const BNNSNDArrayDescriptor* array) {
  if (!array || !array->data) {
    obn::fail("array: expected a descriptor with data; got NULL");
    return 0;
  }
  if (array->layout == BNNSDataLayoutFullyConnectedSparse) return array->stride[obn::kSparseBytesEntry];
  obn::View view;
  if (obn::read_view(*array, obn::Access::read, "array", &view) != 0) return 0;
  size_t bytes = 0;
  obn::bytes_for(view.span, view.type, &bytes);  // read_view made sure that it fits
  return bytes;
}

size_t BNNSTensorGetAllocationSize(const BNNSTensor* tensor) {
  if (!tensor) {
    obn::fail("tensor: expected a tensor; got NULL");
    return SIZE_MAX;
  }
  if (!obn::is_known(tensor->data_type) || tensor->rank > BNNS_MAX_TENSOR_DIMENSION) {
    obn::fail("tensor: expected a known data type and at most 8 axes; got 0x%x and %u",
              static_cast<unsigned>(tensor->data_type), static_cast<unsigned>(tensor->rank));
    return SIZE_MAX;
  }
  size_t values = 1;
  for (size_t k = 0; k < tensor->rank; ++k) {
    if (tensor->shape[k] < 0 || tensor->stride[k] < 0) {
      obn::fail("tensor: expected known extents and strides; axis %zu is dynamic", k);
      return SIZE_MAX;
    }
    if (tensor->shape[k] == 0) return 0;  // no values at all
    size_t reach;
    if (__builtin_mul_overflow(static_cast<size_t>(tensor->shape[k] - 1), static_cast<size_t>(tensor->stride[k]),
                               &reach) ||
        __builtin_add_overflow(values, reach, &values)) {
      obn::fail("tensor: expected a size that can be addressed; axis %zu overflows", k);
      return SIZE_MAX;
    }
  }
  size_t bytes;
  if (!obn::bytes_for(values, tensor->data_type, &bytes)) {
    obn::fail("tensor: expected a size that can be addressed; the number of bytes overflows");
    return SIZE_MAX;
  }
  return bytes;
}
}
