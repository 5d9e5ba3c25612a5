// Convolutions, fully connected layers, pooling, normalization, fused layers, and the first form of the interface.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "common.h"

namespace fuzz {
namespace {

// Weights and bias are copied at creation unless the caller asked otherwise: then they may go, but not what is in use.
void drop_parameters(World& w, std::initializer_list<const BNNSNDArrayDescriptor*> parameters,
                     std::initializer_list<const BNNSNDArrayDescriptor*> used = {}) {
  if (w.uses_client_pointer() || !w.flip()) return;
  for (const BNNSNDArrayDescriptor* d : parameters)
    if (std::none_of(used.begin(), used.end(), [&](auto* u) { return w.share_a_block(u->data, d->data); })) w.forget(d->data);
}

size_t product(std::initializer_list<size_t> factors) {
  size_t result = 1;
  for (size_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return SIZE_MAX;
  return result;
}

// Results of a window that moves over `in` values: as many as fit, seldom others.
size_t results(World& w, size_t in, size_t pads, size_t window, size_t stride) {
  if (w.odd()) return w.extent();
  const size_t padded = in + pads;
  if (in > 4096 || padded < window || stride == 0) return 1;
  const size_t most = (padded - window) / stride + 1;
  return w.in.one_in(8) && most > 1 ? most - 1 : most;
}

size_t span_of(size_t kernel, size_t dilation) { return kernel > 4096 || dilation > 4096 ? kernel : dilation * (kernel - 1) + 1; }

BNNSDataType weight_type(World& w, BNNSDataType type) { return w.in.one_in(6) ? w.any_type() : type; }

// The output channels of a bias or a norm.
BNNSNDArrayDescriptor per_channel(World& w, size_t channels, BNNSDataType type) {
  return w.optional(w.describe(BNNSDataLayoutVector, {channels}, type));
}

// Padding of windows; how much it makes a row and a column longer.
struct Pads {
  size_t x, y;
};
template <class Parameters>
Pads choose_padding(World& w, Parameters* p) {
  if (w.flip()) {
    p->x_padding = w.odd() ? w.extent() : w.in.pick(3);
    p->y_padding = w.in.one_in(4) ? w.in.pick(4) : p->x_padding;
  } else {
    for (size_t& pad : p->pad) pad = w.odd() ? w.extent() : w.in.pick(4);
  }
  if (p->x_padding != 0 || p->y_padding != 0) return {2 * p->x_padding, 2 * p->y_padding};
  return {p->pad[0] + p->pad[1], p->pad[2] + p->pad[3]};
}

}  // namespace

// ---- convolution ----

ConvolutionCase convolution_case(World& w, bool transposed, BNNSDataType type) {
  BNNSLayerParametersConvolution p = {};
  constexpr size_t kKernels[] = {3, 1, 2, 3, 4, 5, 7, 3};
  const size_t kw = w.odd() ? w.extent() : kKernels[w.in.pick(8)];
  const size_t kh = w.in.one_in(4) ? kKernels[w.in.pick(8)] : kw;
  p.x_stride = w.in.one_in(3) ? w.few(3) : w.in.pick(2);
  p.y_stride = w.in.one_in(4) ? w.few(3) : p.x_stride;
  p.x_dilation_stride = w.in.one_in(6) ? w.few(3) : w.in.pick(2);
  p.y_dilation_stride = w.in.one_in(6) ? w.few(3) : p.x_dilation_stride;
  const auto [pads_x, pads_y] = choose_padding(w, &p);
  size_t in = w.extent(), out = w.extent();
  if (w.in.one_in(3)) {
    const size_t groups = w.few(4);
    if (w.flip() && groups < 64) in *= groups, out *= groups;
    p.groups = w.in.one_in(4) ? in : groups;
    if (p.groups == in) out = in * (1 + w.in.pick(2));
  } else {
    p.groups = w.in.pick(2);
  }
  const size_t groups = p.groups ? p.groups : 1;
  const size_t large_x = w.extent() + (w.in.one_in(4) ? 16 : 0), large_y = w.in.one_in(3) ? w.extent() : large_x;
  const size_t dx = p.x_dilation_stride ? p.x_dilation_stride : 1, dy = p.y_dilation_stride ? p.y_dilation_stride : 1;
  const size_t small_x = results(w, large_x, pads_x, span_of(kw, dx), p.x_stride ? p.x_stride : 1);
  const size_t small_y = results(w, large_y, pads_y, span_of(kh, dy), p.y_stride ? p.y_stride : 1);
  const BNNSDataType out_type = w.in.one_in(6) ? w.float_type() : type;
  p.i_desc = transposed ? w.describe(BNNSDataLayoutImageCHW, {small_x, small_y, in}, type)
                        : w.describe(BNNSDataLayoutImageCHW, {large_x, large_y, in}, type);
  p.o_desc = transposed ? w.describe(BNNSDataLayoutImageCHW, {large_x, large_y, out}, out_type)
                        : w.describe(BNNSDataLayoutImageCHW, {small_x, small_y, out}, out_type);
  const BNNSDataType type_of_weights = weight_type(w, type);
  switch (w.in.pick(8)) {
    default:
      p.w_desc = w.describe(BNNSDataLayoutConvolutionWeightsOIHW, {kw, kh, in / groups, out}, type_of_weights);
      break;
    case 4:
      p.w_desc = w.describe(BNNSDataLayoutConvolutionWeightsOIHrWr, {kw, kh, in, out}, type_of_weights);
      break;
    case 5:
      p.w_desc = w.describe(BNNSDataLayoutConvolutionWeightsIOHrWr, {kw, kh, out, in}, type_of_weights);
      break;
    case 6:
      p.w_desc = w.describe(BNNSDataLayoutConvolutionWeightsOIHW_Pack32, {kw, kh, in, out}, type_of_weights);
      std::fill_n(p.w_desc.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
      break;
    case 7:
      p.w_desc = w.describe(BNNSDataLayout4DFirstMajor, {in, out / groups, kh, kw}, type_of_weights);
      break;
  }
  p.w_desc = w.with_data(p.w_desc);
  p.bias = per_channel(w, out, w.in.one_in(6) ? w.any_type() : BNNSDataTypeFloat32);
  p.activation = w.activation(out);
  w.say("x", p.i_desc), w.say("w", p.w_desc), w.say("y", p.o_desc), w.say("b", p.bias);
  w.say("  stride %zu %zu dilation %zu %zu padding %zu %zu pad %zu %zu %zu %zu groups %zu activation %u\n", p.x_stride,
        p.y_stride, p.x_dilation_stride, p.y_dilation_stride, p.x_padding, p.y_padding, p.pad[0], p.pad[1], p.pad[2],
        p.pad[3], p.groups, static_cast<unsigned>(p.activation.function));
  return {p, product({kw, kh, std::max(in, out)})};
}

void convolutions(World& w) {
  const bool transposed = w.in.one_in(3);
  constexpr BNNSDataType kIntegers[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeUInt16};
  const BNNSDataType type = w.in.one_in(6) ? kIntegers[w.in.pick(4)] : w.float_type();
  ConvolutionCase c = convolution_case(w, transposed, type);
  if (!w.affords(product({c.work, work_of({c.p.i_desc, c.p.o_desc}, 1)}))) return;
  const BNNSFilterParameters* options = w.options();
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create(transposed ? "BNNSFilterCreateLayerTransposedConvolution" : "BNNSFilterCreateLayerConvolution", [&] {
    return (transposed ? BNNSFilterCreateLayerTransposedConvolution
                       : BNNSFilterCreateLayerConvolution)(has_parameters ? &c.p : nullptr, options);
  });
  if (!filter) return;
  drop_parameters(w, {&c.p.w_desc, &c.p.bias});
  for (size_t runs = 1 + w.in.pick(2); runs > 0; --runs)
    run_generic(w, filter, {c.p.i_desc, c.p.o_desc, &c.p.w_desc, c.p.bias.size[0] ? &c.p.bias : nullptr, c.work});
  w.destroy(filter);
}

// ---- fully connected ----

BNNSLayerParametersFullyConnected fully_connected_case(World& w, BNNSDataType type) {
  BNNSLayerParametersFullyConnected p = {};
  const size_t in = w.extent() * (w.in.one_in(4) ? 16 : 1), out = w.extent() * (w.in.one_in(4) ? 16 : 1);
  const BNNSDataType type_of_weights = weight_type(w, type);
  p.i_desc = w.describe(BNNSDataLayoutVector, {in}, type);
  p.o_desc = w.describe(BNNSDataLayoutVector, {out}, w.in.one_in(6) ? w.float_type() : type);
  switch (w.in.pick(4)) {
    case 0: p.w_desc = w.describe(BNNSDataLayoutRowMajorMatrix, {in, out}, type_of_weights); break;
    case 1: p.w_desc = w.describe(BNNSDataLayoutColumnMajorMatrix, {out, in}, type_of_weights); break;
    case 2: p.w_desc = w.describe(BNNSDataLayout2DFirstMajor, {out, in}, type_of_weights); break;
    default: p.w_desc = w.describe(BNNSDataLayout2DLastMajor, {out, in}, type_of_weights);
  }
  p.w_desc = w.with_data(p.w_desc);
  p.bias = per_channel(w, out, w.in.one_in(6) ? w.any_type() : BNNSDataTypeFloat32);
  p.activation = w.activation(out);
  w.say("x", p.i_desc), w.say("w", p.w_desc), w.say("y", p.o_desc), w.say("b", p.bias);
  w.say("  activation %u\n", static_cast<unsigned>(p.activation.function));
  return p;
}

void fully_connected(World& w) {
  constexpr BNNSDataType kIntegers[] = {BNNSDataTypeInt8, BNNSDataTypeInt16};
  BNNSLayerParametersFullyConnected p =
      fully_connected_case(w, w.in.one_in(6) ? kIntegers[w.in.pick(2)] : w.float_type());
  const BNNSFilterParameters* options = w.options();
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerFullyConnected", [&] {
    return BNNSFilterCreateLayerFullyConnected(has_parameters ? &p : nullptr, options);
  });
  if (!filter) return;
  drop_parameters(w, {&p.w_desc, &p.bias});
  for (size_t runs = 1 + w.in.pick(2); runs > 0; --runs)
    run_generic(w, filter, {p.i_desc, p.o_desc, &p.w_desc, &p.bias, std::min(p.i_desc.size[0], p.o_desc.size[0])});
  w.destroy(filter);
}

void sparse(World& w) {
  constexpr BNNSDataType kIntegers[] = {BNNSDataTypeUInt32, BNNSDataTypeInt32, BNNSDataTypeInt64, BNNSDataTypeUInt8,
                                        BNNSDataTypeInt16,  BNNSDataTypeUInt64};
  const BNNSDataType type = w.float_type();
  const size_t in = w.extent(), out = w.extent(), nonzeros = w.extent();
  const bool by_rows = w.flip();
  BNNSNDArrayDescriptor shape = w.flip() ? w.describe(BNNSDataLayoutRowMajorMatrix, {in, out}, type)
                                         : w.describe(BNNSDataLayoutColumnMajorMatrix, {out, in}, type);
  BNNSNDArrayDescriptor values = w.with_data(w.describe(BNNSDataLayoutVector, {nonzeros}, type));
  const BNNSDataType index_type = w.odd() ? w.any_type() : kIntegers[w.in.pick(std::size(kIntegers))];
  BNNSNDArrayDescriptor columns =
      w.with_data(by_rows ? w.describe(BNNSDataLayoutVector, {nonzeros}, index_type)
                          : w.describe(BNNSDataLayout2DFirstMajor, {nonzeros, 2}, index_type));
  BNNSNDArrayDescriptor starts = w.with_data(w.describe(BNNSDataLayoutVector, {out + w.in.pick(2)}, index_type));
  const auto write = [&](BNNSNDArrayDescriptor& d, size_t count, auto&& value) {  // what is an index, mostly
    const Where at = locate(d);
    if (!at.sound || !d.data || at.count < count || at.bits < 8 || w.odd()) return;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t v = value(i);
      const size_t place = at.rank > 2 && at.extent[0] > 0 ? i % at.extent[0] * at.stride[0] + i / at.extent[0] * at.stride[1]
                                                           : i * at.stride[0];
      std::memcpy(static_cast<char*>(d.data) + place * at.bits / 8, &v, at.bits / 8);
    }
  };
  const bool is_row_major = shape.layout == BNNSDataLayoutRowMajorMatrix;
  if (in != 0 && out != 0 && in < 4096 && out < 4096 && nonzeros < 4096) {
    if (by_rows) {
      write(columns, nonzeros, [&](size_t) { return w.in.byte() % in; });
      write(starts, out + 1, [&](size_t i) { return i == 0 ? 0 : nonzeros * i / out; });
    } else {
      write(columns, 2 * nonzeros, [&](size_t i) { return w.in.byte() % ((i % 2 == 0) == is_row_major ? in : out); });
    }
  }
  BNNSNDArrayDescriptor packed = {};
  packed.layout = BNNSDataLayoutFullyConnectedSparse;
  packed.size[0] = in, packed.size[1] = out;
  packed.data_type = w.odd() ? w.any_type() : type;
  if (w.odd()) packed.size[w.in.pick(2)] = w.extent();
  const BNNSNDArrayDescriptor dense = [&] {
    BNNSNDArrayDescriptor d = packed;
    d.layout = BNNSDataLayoutRowMajorMatrix;
    return d;
  }();
  const bool owns = w.flip();
  if (owns) packed.data = w.place(dense);
  const size_t room = w.in.one_in(3) ? 2 * locate(dense).bytes : 0;
  void* workspace = room ? w.scratch(room) : nullptr;
  BNNSSparsityParameters hints = {0, {1, 2}, BNNSSparsityTypeUnstructured, BNNSTargetSystemGeneric};
  const BNNSFilterParameters* options = w.options();
  const size_t batch = w.batch();
  w.say("shape", shape), w.say("columns", columns), w.say("starts", starts), w.say("values", values);
  w.say("packed", packed);
  const void* given = packed.data;
  const int status = w.call(by_rows ? "SparsifySparseCSR" : "SparsifySparseCOO", {values_of(dense, packed.data)}, [&] {
    return by_rows ? BNNSNDArrayFullyConnectedSparsifySparseCSR(&shape, &columns, &starts, &values, &packed, &hints, batch,
                                                                workspace, room, options)
                   : BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &columns, &values, &packed, &hints, batch,
                                                                workspace, room, options);
  });
  if (status != 0) {
    if (packed.data != given) w.broken("failed and left memory");
    return;
  }
  // A copy exactly as long as it says, damaged now and then: a filter is made of it or it is refused.
  const size_t bytes = BNNSNDArrayGetDataSize(&packed);
  void* copy = w.raw(bytes, BNNSDataTypeUInt8);
  if (copy) std::memcpy(copy, packed.data, bytes);
  if (packed.data != given) (options && options->free_memory ? options->free_memory : std::free)(packed.data);
  if (!copy) return;
  packed.data = copy;
  if (w.in.one_in(3) && bytes > 0)
    for (size_t flips = 1 + w.in.pick(4); flips > 0; --flips)
      static_cast<char*>(copy)[(w.in.byte() << 8 | w.in.byte()) % bytes] ^= static_cast<char>(w.in.byte());
  BNNSLayerParametersFullyConnected p = {};
  p.i_desc = w.describe(BNNSDataLayoutVector, {in}, type);
  p.o_desc = w.describe(BNNSDataLayoutVector, {out}, type);
  p.w_desc = packed;
  p.bias = per_channel(w, out, BNNSDataTypeFloat32);
  p.activation = w.activation(out);
  options = w.options();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerFullyConnected",
                               [&] { return BNNSFilterCreateLayerFullyConnected(&p, options); });
  if (!filter) return;
  drop_parameters(w, {&p.w_desc, &p.bias});
  run_generic(w, filter, {p.i_desc, p.o_desc, &dense, &p.bias, std::min(in, out)});
  w.destroy(filter);
}

// ---- pooling ----

BNNSLayerParametersPooling pooling_case(World& w, const BNNSNDArrayDescriptor& x) {
  BNNSLayerParametersPooling p = {};
  p.i_desc = x;
  p.pooling_function = w.enumeration<BNNSPoolingFunction>(5);
  p.k_width = w.odd() ? w.extent() : 1 + w.in.pick(5);
  p.k_height = w.in.one_in(4) ? w.few(5) : p.k_width;
  p.x_stride = w.in.one_in(4) ? w.few(5) : w.in.pick(4);
  p.y_stride = w.in.one_in(4) ? w.few(5) : p.x_stride;
  p.x_dilation_stride = w.in.one_in(4) ? w.few(3) : w.in.pick(2);
  p.y_dilation_stride = w.in.one_in(4) ? w.few(3) : p.x_dilation_stride;
  const auto [pads_x, pads_y] = choose_padding(w, &p);
  const bool may_hang = w.in.one_in(3);  // over the edge
  const size_t dx = p.x_dilation_stride ? p.x_dilation_stride : 1, dy = p.y_dilation_stride ? p.y_dilation_stride : 1;
  const size_t out_x = results(w, x.size[0], pads_x, may_hang ? 1 : span_of(p.k_width, dx), p.x_stride ? p.x_stride : 1);
  const size_t out_y = results(w, x.size[1], pads_y, may_hang ? 1 : span_of(p.k_height, dy), p.y_stride ? p.y_stride : 1);
  p.o_desc = w.describe(BNNSDataLayoutImageCHW, {out_x, out_y, x.size[2]}, x.data_type);
  if (p.pooling_function == BNNSPoolingFunctionUnMax) std::swap(p.i_desc, p.o_desc);
  p.activation = w.activation(x.size[2]);
  w.say("x", p.i_desc), w.say("y", p.o_desc);
  w.say("  function %u kernel %zu %zu stride %zu %zu dilation %zu %zu padding %zu %zu pad %zu %zu %zu %zu activation %u\n",
        static_cast<unsigned>(p.pooling_function), p.k_width, p.k_height, p.x_stride, p.y_stride, p.x_dilation_stride,
        p.y_dilation_stride, p.x_padding, p.y_padding, p.pad[0], p.pad[1], p.pad[2], p.pad[3],
        static_cast<unsigned>(p.activation.function));
  return p;
}

void poolings(World& w) {
  BNNSLayerParametersPooling p =
      pooling_case(w, w.describe(BNNSDataLayoutImageCHW, {w.extent(), w.extent(), w.extent()}, w.float_type()));
  p.bias = per_channel(w, p.i_desc.size[2], w.in.one_in(4) ? w.float_type() : BNNSDataTypeFloat32);
  const BNNSFilterParameters* options = w.options();
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerPooling",
                               [&] { return BNNSFilterCreateLayerPooling(has_parameters ? &p : nullptr, options); });
  if (!filter) return;
  drop_parameters(w, {&p.bias});
  const Layer layer = {p.i_desc, p.o_desc, nullptr, &p.bias, product({p.k_width, p.k_height})};
  if (w.in.one_in(4)) run_generic(w, filter, layer);
  const size_t batch = w.batch(), x_step = w.step(p.i_desc), y_step = w.step(p.o_desc);
  if (!w.affords(work_of(layer, batch))) return;
  void* x = w.place(p.i_desc, batch, x_step);
  void* y = w.place(p.o_desc, batch, y_step, x);
  const bool is_inverse = p.pooling_function == BNNSPoolingFunctionUnMax;
  const bool is_plain = w.flip();  // the call whose indices are of type size_t
  BNNSNDArrayDescriptor index = is_inverse ? p.i_desc : p.o_desc;
  index.data_type = is_plain || w.flip() ? BNNSDataTypeUInt64 : BNNSDataTypeUInt32;
  if (!is_plain && w.odd()) index.data_type = w.any_type();
  const size_t i_step = w.step(index);
  void* indices = w.in.one_in(4) ? nullptr : w.place(index, batch, i_step);
  if (is_inverse && indices && !w.odd()) {  // small ones
    const size_t bytes = locate(index, batch, i_step).sound ? locate(index, batch, i_step).bytes : 0;
    const size_t width = (static_cast<uint32_t>(index.data_type) & 0x7fff) / 8;
    const size_t plane = std::max<size_t>(1, product({p.o_desc.size[0], p.o_desc.size[1]}));
    for (size_t i = 0; width >= 4 && i + width <= bytes; i += width) {
      const uint64_t v = i * 7 % plane;
      std::memcpy(static_cast<char*>(indices) + i, &v, width);
    }
  }
  w.say("  batch %zu steps %zu %zu %zu, x %p y %p indices %p type %x\n", batch, x_step, y_step, i_step, x, y, indices,
        static_cast<unsigned>(index.data_type));
  const bool writes_indices = p.pooling_function == BNNSPoolingFunctionMax;
  w.call("BNNSPoolingFilterApplyBatch(Ex)",
         {values_of(p.o_desc, y, batch, y_step), values_of(index, writes_indices ? indices : nullptr, batch, i_step)}, [&] {
           return is_plain ? BNNSPoolingFilterApplyBatch(filter, batch, x, x_step, y, y_step,
                                                         static_cast<size_t*>(indices), i_step)
                           : BNNSPoolingFilterApplyBatchEx(filter, batch, x, x_step, y, y_step, index.data_type, indices,
                                                           i_step);
         });
  if (w.in.one_in(4)) return;
  const size_t dx_step = w.step(p.i_desc), dy_step = w.step(p.o_desc);
  BNNSNDArrayDescriptor dx = w.gradient(p.i_desc, batch, dx_step), dy = w.gradient(p.o_desc, batch, dy_step);
  BNNSNDArrayDescriptor db = w.gradient(p.bias);
  BNNSNDArrayDescriptor *dx_or_none = w.maybe(&dx), *db_or_none = w.maybe(&db), *dy_or_none = w.odd() ? nullptr : &dy;
  if (w.in.one_in(4)) x = nullptr;
  if (w.in.one_in(4)) y = nullptr;
  w.say("dx", dx), w.say("dy", dy), w.say("db", db);
  w.call("BNNSPoolingFilterApplyBackwardBatch(Ex)", {values_of(dx_or_none, batch, dx_step), values_of(db_or_none)}, [&] {
    return is_plain
               ? BNNSPoolingFilterApplyBackwardBatch(filter, batch, x, x_step, dx_or_none, dx_step, y, y_step, dy_or_none,
                                                     dy_step, db_or_none, static_cast<size_t*>(indices), i_step)
               : BNNSPoolingFilterApplyBackwardBatchEx(filter, batch, x, x_step, dx_or_none, dx_step, y, y_step,
                                                       dy_or_none, dy_step, db_or_none, index.data_type, indices, i_step);
  });
  w.destroy(filter);
}

// ---- normalization ----

BNNSLayerParametersNormalization normalization_case(World& w, BNNSFilterType kind, const BNNSNDArrayDescriptor& x) {
  BNNSLayerParametersNormalization p = {};
  p.i_desc = x;
  p.o_desc = x;
  p.o_desc.data_type = w.in.one_in(6) ? w.float_type() : x.data_type;
  w.restride(&p.o_desc);
  if (w.odd()) p.o_desc.size[w.in.pick(3)] = w.extent();
  const bool is_image = x.layout == BNNSDataLayoutImageCHW;
  const size_t channels = is_image ? x.size[2] : x.size[0];
  p.normalization_axis = w.odd() ? w.in.number() : w.in.pick(3);
  p.num_groups = w.odd() ? w.in.number() : 1 + w.in.pick(4);
  if (w.flip() && channels > 0 && p.num_groups <= 4)
    while (p.num_groups > 1 && channels % p.num_groups != 0) --p.num_groups;
  const BNNSDataType type = w.in.one_in(6) ? w.float_type() : BNNSDataTypeFloat32;
  const auto parameter = [&] {
    if (kind != BNNSLayerNorm || !is_image) return per_channel(w, channels, type);
    if (w.flip()) return w.optional(w.describe(BNNSDataLayoutImageCHW, {x.size[0], x.size[1], x.size[2]}, type));
    const size_t part = p.normalization_axis == 0   ? product({x.size[0], x.size[1], x.size[2]})
                        : p.normalization_axis == 1 ? product({x.size[0], x.size[1]})
                                                    : x.size[0];
    return per_channel(w, part, type);
  };
  p.beta_desc = parameter();
  p.gamma_desc = parameter();
  p.moving_mean_desc = per_channel(w, channels, BNNSDataTypeFloat32);
  p.moving_variance_desc = per_channel(w, channels, BNNSDataTypeFloat32);
  p.momentum = w.unit(0.9f);
  p.epsilon = w.unit(1e-5f);
  p.activation = w.activation(channels);
  w.say("x", p.i_desc), w.say("y", p.o_desc), w.say("beta", p.beta_desc), w.say("gamma", p.gamma_desc);
  w.say("mean", p.moving_mean_desc), w.say("variance", p.moving_variance_desc);
  w.say("  kind %u axis %zu groups %zu momentum %g epsilon %g activation %u\n", static_cast<unsigned>(kind),
        p.normalization_axis, p.num_groups, static_cast<double>(p.momentum), static_cast<double>(p.epsilon),
        static_cast<unsigned>(p.activation.function));
  return p;
}

void normalizations(World& w) {
  const auto kind = w.enumeration<BNNSFilterType>(4, 2);
  const BNNSDataType type = w.float_type();
  const BNNSNDArrayDescriptor image = w.in.one_in(4)
                                          ? w.describe(BNNSDataLayoutVector, {w.extent()}, type)
                                          : w.describe(BNNSDataLayoutImageCHW, {w.extent(), w.extent(), w.extent()}, type);
  BNNSLayerParametersNormalization p = normalization_case(w, kind, image);
  const BNNSFilterParameters* options = w.options();
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerNormalization", [&] {
    return BNNSFilterCreateLayerNormalization(kind, has_parameters ? &p : nullptr, options);
  });
  if (!filter) return;
  drop_parameters(w, {&p.beta_desc, &p.gamma_desc});
  for (size_t runs = 1 + w.in.pick(2); runs > 0; --runs) {
    w.question(filter);
    const size_t batch = w.batch(), x_step = w.step(p.i_desc), y_step = w.step(p.o_desc);
    void* x = w.place(p.i_desc, batch, x_step);
    void* y = w.place(p.o_desc, batch, y_step, x);
    const bool training = !w.in.one_in(4);
    w.say("  batch %zu steps %zu %zu x %p y %p training %d\n", batch, x_step, y_step, x, y, training);
    w.call("BNNSNormalizationFilterApplyBatch",
           {values_of(p.o_desc, y, batch, y_step), values_of(&p.moving_mean_desc), values_of(&p.moving_variance_desc)},
           [&] { return BNNSNormalizationFilterApplyBatch(filter, batch, x, x_step, y, y_step, training); });
    if (w.odd()) w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(filter, x, y); });
    if (w.in.one_in(4)) continue;
    const size_t dx_step = w.step(p.i_desc), dy_step = w.step(p.o_desc);
    const size_t back = w.odd() ? w.batch() : batch;
    BNNSNDArrayDescriptor dx = w.gradient(p.i_desc, back, dx_step), dy = w.gradient(p.o_desc, back, dy_step);
    BNNSNDArrayDescriptor dbeta = w.gradient(p.beta_desc), dgamma = w.gradient(p.gamma_desc);
    BNNSNDArrayDescriptor *dx_or_none = w.maybe(&dx), *dbeta_or_none = w.maybe(&dbeta), *dgamma_or_none = w.maybe(&dgamma);
    void* y_of_apply = back == batch ? y : w.place(p.o_desc, back, y_step);
    if (w.in.one_in(4)) y_of_apply = nullptr;
    w.say("dx", dx), w.say("dy", dy), w.say("dbeta", dbeta), w.say("dgamma", dgamma);
    w.call("BNNSNormalizationFilterApplyBackwardBatch",
           {values_of(dx_or_none, back, dx_step), values_of(dbeta_or_none), values_of(dgamma_or_none),
            values_of(&dy, back, dy_step)},
           [&] {
             return BNNSNormalizationFilterApplyBackwardBatch(filter, back, dx_or_none, dx_step, y_of_apply, y_step, &dy,
                                                              dy_step, dbeta_or_none, dgamma_or_none);
           });
  }
  w.destroy(filter);
}

// ---- fused ----

namespace {

// One sample's worth of arithmetic for the first of two layers: a + b, a * b, sqrt(a), a * b + c …
struct ArithmeticCase {
  BNNSArithmeticUnary unary = {};
  BNNSArithmeticBinary binary = {};
  BNNSArithmeticTernary ternary = {};
  BNNSLayerParametersArithmetic p = {};
  size_t inputs = 1;
  BNNSNDArrayDescriptor x[3] = {};
  bool is_sample[3] = {true, true, true};
};

void make_arithmetic(World& w, const BNNSNDArrayDescriptor& y, ArithmeticCase* c) {
  constexpr BNNSArithmeticFunction kFunctions[] = {BNNSArithmeticAdd,         BNNSArithmeticMultiply, BNNSArithmeticSquareRoot,
                                                   BNNSArithmeticMultiplyAdd, BNNSArithmeticAbs,      BNNSArithmeticSubtract};
  c->p.arithmetic_function = kFunctions[w.in.pick(std::size(kFunctions))];
  const auto role = [&](size_t i) {
    const auto kind = w.in.one_in(4) ? w.enumeration<BNNSDescriptorType>(3) : BNNSSample;
    c->is_sample[i] = kind == BNNSSample;
    return kind;
  };
  for (BNNSNDArrayDescriptor& x : c->x) {
    x = y;
    w.restride(&x);
    if (w.in.one_in(6)) x.size[w.in.pick(3)] = 1;
  }
  switch (c->p.arithmetic_function) {
    case BNNSArithmeticSquareRoot:
    case BNNSArithmeticAbs:
      c->inputs = 1;
      c->x[0] = y;
      c->unary = {c->x[0], role(0), y, BNNSSample};
      c->p.arithmetic_function_fields = &c->unary;
      break;
    case BNNSArithmeticMultiplyAdd:
      c->inputs = 3;
      c->ternary = {c->x[0], role(0), c->x[1], role(1), c->x[2], role(2), y, BNNSSample};
      c->p.arithmetic_function_fields = &c->ternary;
      break;
    default:
      c->inputs = 2;
      c->binary = {c->x[0], role(0), c->x[1], role(1), y, BNNSSample};
      c->p.arithmetic_function_fields = &c->binary;
  }
}

enum class Kind { convolution, transposed, fully_connected, arithmetic, narrow, wide, depthwise };
constexpr size_t kKinds = 7;

// Convolutions that are run together with the layers behind them: of few taps, of many channels in planes of one size,
// or of single channels. The plane that comes out is chosen first.
ConvolutionCase joined_convolution(World& w, Kind kind) {
  BNNSLayerParametersConvolution p = {};
  constexpr size_t kKernels[] = {3, 3, 2, 1, 4, 5, 3, 2}, kWide[] = {16, 8, 17, 9, 32, 12, 24, 33};
  const bool is_wide = kind == Kind::wide;
  const size_t kw = is_wide ? 3 : kKernels[w.in.pick(8)], kh = is_wide || !w.in.one_in(4) ? kw : kKernels[w.in.pick(8)];
  p.x_stride = is_wide || !w.in.one_in(4) ? 1 : 1 + w.in.pick(3);
  p.y_stride = is_wide || !w.in.one_in(4) ? p.x_stride : 1 + w.in.pick(3);
  p.x_dilation_stride = p.y_dilation_stride = is_wide || !w.in.one_in(8) ? 1 : 2;
  const size_t pads[] = {1, 0, 2};
  std::fill_n(p.pad, 4, is_wide ? 1 : pads[w.in.pick(3)]);
  if (w.in.one_in(8)) p.pad[w.in.pick(4)] = w.in.pick(3);
  const size_t out_x = (is_wide ? 2 : 8) + w.in.pick(is_wide ? 9 : 26);
  const size_t out_y = w.in.one_in(3) ? (is_wide ? 2 : 8) + w.in.pick(9) : std::min<size_t>(out_x, 12);
  const auto image = [](size_t out, size_t span, size_t stride, size_t padded) {
    const size_t whole = (out - 1) * stride + span;
    return whole > padded ? whole - padded : 1;
  };
  const size_t x = image(out_x, span_of(kw, p.x_dilation_stride), p.x_stride, p.pad[0] + p.pad[1]);
  const size_t y = image(out_y, span_of(kh, p.y_dilation_stride), p.y_stride, p.pad[2] + p.pad[3]);
  size_t in = is_wide ? kWide[w.in.pick(8)] : kind == Kind::narrow ? 1 + w.in.pick(3) : w.extent(), out = in;
  if (is_wide) out = kWide[w.in.pick(8)];
  if (kind == Kind::narrow)  // enough outputs for a norm that is found from products of taps
    out = w.in.one_in(8) ? w.extent() : std::min<size_t>(48, in * in * kw * kw * kh * kh / 16 + 1 + w.in.pick(9));
  if (kind == Kind::depthwise) p.groups = in;
  const BNNSDataType type = w.in.one_in(4) ? w.float_type() : BNNSDataTypeFloat32;
  p.i_desc = w.describe(BNNSDataLayoutImageCHW, {x, y, in}, type);
  p.o_desc = w.describe(BNNSDataLayoutImageCHW, {out_x, out_y, out}, w.in.one_in(8) ? type : BNNSDataTypeFloat32);
  p.w_desc = w.with_data(w.describe(BNNSDataLayoutConvolutionWeightsOIHW, {kw, kh, p.groups == 0 ? in : 1, out},
                                    w.in.one_in(6) ? weight_type(w, type) : BNNSDataTypeFloat32));
  p.bias = per_channel(w, out, BNNSDataTypeFloat32);
  w.say("x", p.i_desc), w.say("w", p.w_desc), w.say("y", p.o_desc), w.say("b", p.bias);
  w.say("  stride %zu %zu dilation %zu pad %zu %zu %zu %zu groups %zu\n", p.x_stride, p.y_stride, p.x_dilation_stride,
        p.pad[0], p.pad[1], p.pad[2], p.pad[3], p.groups);
  return {p, product({kw, kh, p.groups == 0 ? in : 1})};
}

// A max pooling whose windows do not meet.
BNNSLayerParametersPooling joined_pooling(World& w, const BNNSNDArrayDescriptor& x) {
  BNNSLayerParametersPooling p = {};
  p.i_desc = x;
  p.pooling_function = BNNSPoolingFunctionMax;
  constexpr size_t kWindows[] = {2, 2, 3, 2, 4, 1};
  p.k_width = kWindows[w.in.pick(6)];
  p.k_height = w.in.one_in(4) ? kWindows[w.in.pick(6)] : p.k_width;
  p.x_stride = p.k_width + (w.in.one_in(6) ? w.in.pick(3) : 0);
  p.y_stride = p.k_height + (w.in.one_in(6) ? w.in.pick(3) : 0);
  const size_t out_x = results(w, x.size[0], 0, p.k_width, p.x_stride);
  const size_t out_y = results(w, x.size[1], 0, p.k_height, p.y_stride);
  p.o_desc = w.describe(BNNSDataLayoutImageCHW, {out_x, out_y, x.size[2]}, x.data_type);
  w.say("pooled", p.o_desc);
  w.say("  maxima of %zu %zu stride %zu %zu\n", p.k_width, p.k_height, p.x_stride, p.y_stride);
  return p;
}

}  // namespace

void fused(World& w) {
  const auto kind = static_cast<Kind>(w.in.pick(kKinds));
  const bool is_joined = kind >= Kind::narrow, is_arithmetic = kind == Kind::arithmetic;
  const BNNSDataType type = w.in.one_in(3) ? w.float_type() : BNNSDataTypeFloat32;
  ConvolutionCase conv = {};
  BNNSLayerParametersFullyConnected full = {};
  ArithmeticCase arithmetic;
  BNNSFilterType types[3] = {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING};
  const void* parameters[3] = {};
  BNNSNDArrayDescriptor x = {}, between = {};
  const BNNSNDArrayDescriptor *weights = nullptr, *bias = nullptr;
  size_t work = 1;
  if (is_joined || kind <= Kind::transposed) {
    if (kind == Kind::transposed) types[0] = BNNSTransposedConvolution;
    conv = is_joined ? joined_convolution(w, kind) : convolution_case(w, kind == Kind::transposed, type);
    if (!w.in.one_in(4)) conv.p.activation = {};
    if (!w.affords(product({conv.work, work_of({conv.p.i_desc, conv.p.o_desc}, 1)}))) return;
    parameters[0] = &conv.p;
    x = conv.p.i_desc, between = conv.p.o_desc, weights = &conv.p.w_desc, bias = &conv.p.bias, work = conv.work;
  } else if (kind == Kind::fully_connected) {
    types[0] = BNNSFullyConnected;
    full = fully_connected_case(w, type);
    if (!w.in.one_in(4)) full.activation = {};
    parameters[0] = &full;
    x = full.i_desc, between = full.o_desc, weights = &full.w_desc, bias = &full.bias, work = std::min(x.size[0], between.size[0]);
  } else {
    types[0] = BNNSArithmetic;
    between = w.describe(BNNSDataLayoutImageCHW, {w.extent(), w.extent(), w.extent()}, type);
    make_arithmetic(w, between, &arithmetic);
    parameters[0] = &arithmetic.p;
    x = arithmetic.x[0];
  }
  BNNSLayerParametersNormalization norm = {};
  BNNSLayerParametersQuantization quantization = {};
  BNNSLayerParametersPooling pooling = {};
  BNNSNDArrayDescriptor y = {};
  size_t layers = 2;
  if (w.in.one_in(5)) {
    types[1] = BNNSQuantization;
    quantization.function = w.enumeration<BNNSQuantizerFunction>(2);
    quantization.i_desc = between;
    quantization.o_desc = between;
    constexpr BNNSDataType kStored[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeInt32};
    quantization.o_desc.data_type = w.odd() ? w.any_type() : kStored[w.in.pick(4)];
    w.restride(&quantization.o_desc);
    size_t length = 1;
    if (w.flip()) {
      const size_t axis = w.in.pick(4);
      quantization.axis_mask = size_t{1} << axis;
      length = axis < 3 ? between.size[axis] : w.batch();
    }
    quantization.scale = per_channel(w, length, BNNSDataTypeFloat32);
    quantization.bias = per_channel(w, length, BNNSDataTypeFloat32);
    parameters[1] = &quantization;
    y = quantization.o_desc;
  } else {
    types[1] = is_joined && !w.in.one_in(4) ? BNNSBatchNorm : w.enumeration<BNNSFilterType>(4, 2);
    norm = normalization_case(w, types[1], between);
    if (is_joined && !w.in.one_in(6)) {
      norm.activation = {};
      norm.activation.function = w.flip() ? BNNSActivationFunctionRectifiedLinear : BNNSActivationFunctionIdentity;
    }
    parameters[1] = &norm;
    y = norm.o_desc;
    if (is_joined ? w.flip() : w.in.one_in(3)) {
      layers = 3;
      pooling = is_joined && !w.in.one_in(4) ? joined_pooling(w, y) : pooling_case(w, y);
      parameters[2] = &pooling;
      y = pooling.o_desc;
      work = product({work, pooling.k_width, pooling.k_height});
    }
  }
  if (w.odd()) layers = w.in.pick(4);
  if (layers == 2 && parameters[2]) y = norm.o_desc;
  if (w.odd()) std::swap(types[0], types[1]), std::swap(parameters[0], parameters[1]);
  for (size_t i = layers; i > 2 && i <= 3; --i)
    if (!parameters[i - 1]) return;  // a layer that was not made
  w.say("first to last: %u %u %u, %zu layers\n", static_cast<unsigned>(types[0]), static_cast<unsigned>(types[1]),
        static_cast<unsigned>(types[2]), layers);
  const BNNSFilterParameters* options = w.options();
  BNNSFilter filter = w.create("BNNSFilterCreateFusedLayer",
                               [&] { return BNNSFilterCreateFusedLayer(layers, types, parameters, options); });
  if (!filter) return;
  if (weights) drop_parameters(w, {weights, bias}, {&norm.moving_mean_desc, &norm.moving_variance_desc});
  for (size_t runs = 1 + w.in.pick(2); runs > 0; --runs) {
    w.question(filter);
    const size_t batch = w.batch(), y_step = w.step(y);
    if (!w.affords(work_of({x, y, nullptr, nullptr, work}, batch)) ||
        !w.affords(work_of({x, between, nullptr, nullptr, work}, batch)))
      return;
    const bool training = !w.in.one_in(4), is_multi = is_arithmetic && (arithmetic.inputs > 1 || w.flip());
    const size_t inputs = is_multi ? arithmetic.inputs : 1;
    const void* in[3] = {};
    size_t steps[3] = {};
    for (size_t i = 0; i < inputs; ++i) {
      const BNNSNDArrayDescriptor& one = is_arithmetic ? arithmetic.x[i] : x;
      const bool is_sample = !is_arithmetic || arithmetic.is_sample[i];
      steps[i] = w.step(one);
      in[i] = w.place(one, is_sample ? batch : 1, is_sample ? steps[i] : 0);
      if (i > 0 && w.in.one_in(8) && std::memcmp(&arithmetic.x[0], &one, sizeof one) == 0 && is_sample &&
          arithmetic.is_sample[0])
        in[i] = in[0], steps[i] = steps[0];
    }
    void* out = w.place(y, batch, y_step, const_cast<void*>(in[0]));
    w.say("  batch %zu steps %zu %zu training %d in %p out %p\n", batch, steps[0], y_step, training, in[0], out);
    w.call(is_multi ? "BNNSFusedFilterApplyMultiInputBatch" : "BNNSFusedFilterApplyBatch",
           {values_of(y, out, batch, y_step), values_of(&norm.moving_mean_desc), values_of(&norm.moving_variance_desc)},
           [&] {
             return is_multi
                        ? BNNSFusedFilterApplyMultiInputBatch(filter, batch, inputs, in, steps, out, y_step, training)
                        : BNNSFusedFilterApplyBatch(filter, batch, in[0], steps[0], out, y_step, training);
           });
    if (w.in.one_in(4)) continue;
    const size_t dy_step = w.step(y);
    BNNSNDArrayDescriptor dx[3], dy = w.gradient(y, batch, dy_step);
    BNNSNDArrayDescriptor* dx_pointers[3] = {};
    size_t dx_steps[3] = {};
    std::vector<Written> written = {values_of(&dy, batch, dy_step)};
    for (size_t i = 0; i < inputs; ++i) {
      const bool is_sample = !is_arithmetic || arithmetic.is_sample[i];
      const BNNSNDArrayDescriptor& one = is_arithmetic ? arithmetic.x[i] : x;
      dx_steps[i] = w.step(one);
      dx[i] = w.gradient(one, is_sample ? batch : 1, is_sample ? dx_steps[i] : 0);
      if (i > 0 && in[i] == in[0]) dx[i] = dx[0], dx_steps[i] = dx_steps[0];
      dx_pointers[i] = &dx[i];
      written.push_back(values_of(&dx[i], is_sample ? batch : 1, is_sample ? dx_steps[i] : 0));
    }
    if (!is_multi && w.in.one_in(4)) dx_pointers[0] = nullptr;
    BNNSNDArrayDescriptor of_parameters[4] = {weights ? w.gradient(*weights) : BNNSNDArrayDescriptor{},
                                              bias ? w.gradient(*bias) : BNNSNDArrayDescriptor{},
                                              w.gradient(norm.beta_desc), w.gradient(norm.gamma_desc)};
    BNNSNDArrayDescriptor* pointers[4] = {};
    const size_t first = is_arithmetic ? 2 : 0;
    for (size_t i = first; i < 4; ++i) {
      pointers[i - first] = w.maybe(&of_parameters[i]);
      written.push_back(values_of(pointers[i - first]));
      w.say("d parameter", of_parameters[i]);
    }
    BNNSNDArrayDescriptor** all = w.in.one_in(8) ? nullptr : pointers;
    const void* out_of_apply = w.in.one_in(4) ? nullptr : out;
    if (w.in.one_in(6)) in[0] = nullptr;
    w.say("dx", dx[0]), w.say("dy", dy);
    w.call_vector(is_multi ? "BNNSFusedFilterApplyBackwardMultiInputBatch" : "BNNSFusedFilterApplyBackwardBatch", written, [&] {
      return is_multi ? BNNSFusedFilterApplyBackwardMultiInputBatch(filter, batch, inputs, in, steps, dx_pointers, dx_steps,
                                                                    out_of_apply, y_step, &dy, dy_step, all)
                      : BNNSFusedFilterApplyBackwardBatch(filter, batch, in[0], steps[0], dx_pointers[0], dx_steps[0],
                                                          out_of_apply, y_step, &dy, dy_step, all);
    });
  }
  w.destroy(filter);
}

// ---- the first form of the interface ----

namespace {

BNNSImageStackDescriptor stack_of(World& w, size_t width, size_t height, size_t channels, BNNSDataType type) {
  BNNSImageStackDescriptor d = {};
  d.width = width, d.height = height, d.channels = channels, d.data_type = type;
  if (w.flip()) {
    d.row_stride = w.odd() ? w.extent() : width + w.in.pick(3);
    d.image_stride = w.odd() ? w.extent() : d.row_stride * height + w.in.pick(3);
  }
  d.data_scale = w.in.one_in(4) ? w.real(0.5f) : 0.0f;
  return d;
}

// The same as one of the descriptors of today.
BNNSNDArrayDescriptor array_of(const BNNSImageStackDescriptor& d) {
  BNNSNDArrayDescriptor a = {};
  a.layout = BNNSDataLayoutImageCHW;
  a.size[0] = d.width, a.size[1] = d.height, a.size[2] = d.channels;
  a.stride[0] = 1, a.stride[1] = d.row_stride, a.stride[2] = d.image_stride;
  a.data_type = d.data_type;
  return a;
}

BNNSLayerData data_of(World& w, size_t count, BNNSDataType type) {
  BNNSLayerData d = {};
  BNNSNDArrayDescriptor a = {};
  a.layout = BNNSDataLayoutVector;
  a.size[0] = count;
  a.data_type = type;
  d.data = w.place(a);
  d.data_type = type;
  d.data_scale = w.in.one_in(4) ? w.real(0.5f) : 0.0f;
  d.data_bias = w.in.one_in(4) ? w.real(0.5f) : 0.0f;
  if (static_cast<uint32_t>(type) & BNNSDataTypeIndexedBit && !w.odd())
    d.data_table = static_cast<const float*>(w.raw(256 * sizeof(float), BNNSDataTypeFloat32));
  return d;
}

}  // namespace

void legacies(World& w) {
  const BNNSDataType type = w.in.one_in(3) ? w.any_type() : w.float_type();
  const BNNSDataType out_type = w.in.one_in(4) ? w.any_type() : type;
  const BNNSFilterParameters* options = w.options();
  BNNSFilter filter = nullptr;
  Layer layer = {};
  const auto vectors = [&](BNNSVectorDescriptor* in, BNNSVectorDescriptor* out, size_t in_size, size_t out_size) {
    *in = {in_size, type, 0.0f, 0.0f};
    *out = {out_size, out_type, w.in.one_in(4) ? w.real(0.5f) : 0.0f, 0.0f};
    for (auto [from, to] : {std::pair{in, &layer.x}, std::pair{out, &layer.y}}) {
      to->layout = BNNSDataLayoutVector;
      to->size[0] = from->size;
      to->data_type = from->data_type;
    }
  };
  switch (w.in.pick(4)) {
    case 0: {
      BNNSVectorDescriptor in, out;
      const size_t n = w.extent();
      vectors(&in, &out, n, w.odd() ? w.extent() : n);
      BNNSActivation activation = w.activation(n);
      filter = w.create("BNNSFilterCreateVectorActivationLayer", [&] {
        return BNNSFilterCreateVectorActivationLayer(&in, &out, &activation, options);
      });
      break;
    }
    case 1: {
      BNNSVectorDescriptor in, out;
      BNNSFullyConnectedLayerParameters p = {};
      p.in_size = w.extent(), p.out_size = w.extent();
      vectors(&in, &out, p.in_size, p.out_size);
      p.weights = data_of(w, product({p.in_size, p.out_size}), weight_type(w, type));
      if (w.flip()) p.bias = data_of(w, p.out_size, weight_type(w, type));
      p.activation = w.activation(p.out_size);
      layer.reduction = std::min(p.in_size, p.out_size);
      filter = w.create("BNNSFilterCreateFullyConnectedLayer",
                        [&] { return BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, options); });
      break;
    }
    case 2: {
      BNNSConvolutionLayerParameters p = {};
      p.x_stride = w.few(2), p.y_stride = w.few(2), p.x_padding = w.in.pick(3), p.y_padding = w.in.pick(3);
      p.k_width = w.few(4), p.k_height = w.few(4), p.in_channels = w.extent(), p.out_channels = w.extent();
      const size_t out_x = w.extent(), out_y = w.extent();
      const size_t in_x = p.x_stride * (out_x - 1) + p.k_width - 2 * p.x_padding;
      const size_t in_y = p.y_stride * (out_y - 1) + p.k_height - 2 * p.y_padding;
      const BNNSImageStackDescriptor in = stack_of(w, in_x, in_y, p.in_channels, type);
      const BNNSImageStackDescriptor out = stack_of(w, out_x, out_y, p.out_channels, out_type);
      layer.x = array_of(in), layer.y = array_of(out);
      layer.reduction = product({p.k_width, p.k_height, p.in_channels});
      p.weights = data_of(w, product({layer.reduction, p.out_channels}), weight_type(w, type));
      if (w.flip()) p.bias = data_of(w, p.out_channels, weight_type(w, type));
      p.activation = w.activation(p.out_channels);
      if (!w.affords(work_of(layer, 1))) return;
      filter = w.create("BNNSFilterCreateConvolutionLayer",
                        [&] { return BNNSFilterCreateConvolutionLayer(&in, &out, &p, options); });
      break;
    }
    default: {
      BNNSPoolingLayerParameters p = {};
      p.x_stride = w.few(2), p.y_stride = w.few(2), p.x_padding = w.in.pick(3), p.y_padding = w.in.pick(3);
      p.k_width = w.few(4), p.k_height = w.few(4), p.in_channels = w.extent();
      p.out_channels = w.odd() ? w.extent() : p.in_channels;
      p.pooling_function = w.enumeration<BNNSPoolingFunction>(2);
      const BNNSImageStackDescriptor in = stack_of(w, w.extent(), w.extent(), p.in_channels, type);
      const size_t out_x = results(w, in.width, 2 * p.x_padding, 1, p.x_stride);
      const size_t out_y = results(w, in.height, 2 * p.y_padding, 1, p.y_stride);
      const BNNSImageStackDescriptor out = stack_of(w, out_x, out_y, p.out_channels, out_type);
      layer.x = array_of(in), layer.y = array_of(out);
      layer.reduction = product({p.k_width, p.k_height});
      if (w.flip()) p.bias = data_of(w, p.out_channels, weight_type(w, type));
      p.activation = w.activation(p.out_channels);
      filter = w.create("BNNSFilterCreatePoolingLayer",
                        [&] { return BNNSFilterCreatePoolingLayer(&in, &out, &p, options); });
    }
  }
  w.say("x", layer.x), w.say("y", layer.y);
  if (!filter) return;
  run_generic(w, filter, layer);
  w.destroy(filter);
}

}  // namespace fuzz
